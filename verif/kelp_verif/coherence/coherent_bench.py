# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The coherent front between a host that caches and a plain memory (coherent_host.cpp):
`python -m kelp_verif.coherence.coherent_bench --transactions 1000000`.

Each decision of its directory is compared with the golden model's."""

from __future__ import annotations

import argparse
import ctypes
import functools
import random
import sys
from pathlib import Path

import numpy as np

from kelp_golden.coherence import Directory, Row
from kelp_hw.coherence.front import CoherentFront
from kelp_hw.coherence.layouts import CoherenceLayouts
from kelp_hw.export.packing import Packing
from kelp_hw.export.verilog import to_verilog
from kelp_rtl.library import ports_header, reachable
from kelp_rtl.verilator import QUICK_OPT, Cpp, verilate_model
from kelp_spec.coherence import (
    SIZES,
    Coherence,
    DirectoryOp,
    DirectoryOutcome,
    MetaField,
    MetaValue,
    SnpType,
)
from kelp_spec.config import Config, named
from kelp_spec.messages import M2SReq
from kelp_verif.endpoint.inventory import memory_name
from kelp_verif.harness.covered import leave_figures

__all__ = [
    "ROUGH",
    "SMOOTH",
    "Figures",
    "audit",
    "compare",
    "expected",
    "main",
    "memories",
    "run",
    "some_lines",
]

_CHANNELS = ("req", "rwd", "birsp", "drs", "ndr", "bisnp")
_INNER = ("inner_req", "inner_rwd", "inner_drs", "inner_ndr")
#: Every channel in every cycle.
SMOOTH = dict.fromkeys((*_CHANNELS, *_INNER), 256)
#: Channels that stand still most of the time, and queues that are full.
ROUGH = dict.fromkeys((*_CHANNELS, *_INNER), 60)


def _structure(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": [(f, ctypes.c_uint64) for f in fields]})


_Options = _structure(
    "_Options",
    *("seed", "transactions", "limit", "lines", "sector", "opened", "rounded"),
    *_CHANNELS,
    *_INNER,
    *("latency", "jitter", "acts", "ask", "late", "silent", "refuse", "timeout"),
    *("stream", "patience", "dwell"),
    *("flip_cycle", "flip_memory", "flip_row", "flip_bits", "session_shift", "blocks"),
    "no_op",
)
_KINDS = (
    "none",
    "read_shared",
    "read_any",
    "own",
    "look",
    "clean_evict",
    "write_i",
    "write_s",
    "write_a",
    "uncached",
)
_COUNTS = (
    *("cycles", "transactions", "hits", "snoops", "conflicts", "ack_first", "ack_after", "asks"),
    *("lost", "silent", "too_late", "refused", "unasked", "ungranted", "changed", "commits"),
    *("first", "last", "granted", "corrected", "fatal", "blocks"),
)


class Figures(ctypes.Structure):
    """What a run counted; `said` is what was wrong."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in _COUNTS),
        ("done", ctypes.c_uint64 * len(_KINDS)),
        ("said", ctypes.c_char * 200),
    ]

    def as_dict(self) -> dict:
        counts = {name: getattr(self, name) for name in _COUNTS}
        return counts | dict(zip(_KINDS[1:], self.done[1:], strict=True))


@functools.cache
def _build(make, config: Config, sizes: Coherence):
    driver = Path(__file__).with_name("coherent_host.cpp")
    front = make(config=config, sizes=sizes)
    bits = Path(sys.modules["kelp_rtl.library"].__file__).with_name("cpp") / "bits.h"
    library = verilate_model(
        reachable(to_verilog(front, checked=True)),
        Cpp(
            sources=[driver],
            headers={
                "kelp_ports.h": ports_header(front, config),
                "bits.h": bits.read_text(encoding="utf-8"),
            },
        ),
        name=f"coherent-{config.name}",
        sources=[bits.with_name("arrays.vlt")],
        opt=QUICK_OPT,
    )
    loaded = ctypes.CDLL(str(library))
    function = loaded.coherent_run
    function.argtypes = [
        ctypes.POINTER(_Options),
        np.ctypeslib.ndpointer(np.uint64, flags="C_CONTIGUOUS"),
        np.ctypeslib.ndpointer(np.uint32, flags="C_CONTIGUOUS"),
        ctypes.c_uint64,
        ctypes.POINTER(Figures),
    ]
    return loaded


def some_lines(config: Config, sizes: Coherence, sectors: int, *, seed=1, opened=None) -> list[int]:
    """Line addresses of so many sectors, drawn over the whole of the open sessions' aperture."""
    rng = random.Random(seed)
    per_queue = config.aperture_bits - 6 - config.session_bits - config.queue_bits
    places = []
    while len(places) < sectors:
        session, queue = rng.randrange(config.sessions), rng.randrange(config.queues)
        inner = rng.randrange(1 << per_queue) // sizes.sector
        at = ((session << config.queue_bits | queue) << per_queue) // sizes.sector + inner
        if at not in places and (opened is None or opened >> session & 1):
            places.append(at)
    return [at * sizes.sector + k for at in places for k in range(sizes.sector)]


def memories(config: Config, sizes: Coherence, make=CoherentFront) -> list[str]:
    """The front's memories, by name, in the order in which `flip_memory` counts them."""
    text = ctypes.create_string_buffer(1 << 16)
    _build(make, config, sizes).coherent_memories(text, len(text))
    return [memory_name(*name.split(".")[2:]) for name in text.value.decode().split()]


def run(
    config: Config,
    sizes: Coherence,
    lines: list[int],
    *,
    commits: int = 0,
    make=CoherentFront,
    **options,
) -> tuple[Figures, np.ndarray]:
    """A run, and the first `commits` of the directory's results. `options` are those of the driver
    (`_Options`); `opened` and `rounded` have a bit for each session. AssertionError with what was
    wrong; with a flip, `bad` of the figures says whether something was."""
    unknown = options.keys() - {name for name, _ in _Options._fields_}
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    sessions = (1 << config.sessions) - 1
    chosen = {
        **SMOOTH,
        "seed": 1,
        "opened": sessions,
        "rounded": 0,
        "latency": 20,
        "acts": 2,
        "limit": 1 << 40,
        "patience": 50_000,
        **options,
    }
    opened, rounded = (chosen[name] & sessions for name in ("opened", "rounded"))
    shift = config.aperture_bits - 6 - config.session_bits
    session_of = [n >> shift for n in lines]
    marked = np.array(
        [
            n << 2 | (rounded >> session & 1) << 1 | opened >> session & 1
            for n, session in zip(lines, session_of, strict=True)
        ],
        np.uint64,
    )
    settings = _Options(lines=len(lines), sector=sizes.sector, session_shift=shift, **chosen)
    words = -(-CoherenceLayouts(config, sizes).result.size // 32)
    log, figures = np.zeros((max(1, commits), words), np.uint32), Figures()
    bad = _build(make, config, sizes).coherent_run(settings, marked, log, commits, figures)
    if settings.flip_memory:
        figures.bad = bool(bad)
        return figures, log[:0]
    assert not bad, f"seed {chosen['seed']}, cycle {figures.cycles}: {figures.said.decode()}"
    leave_figures("kelp_verif.coherence.coherent_bench", figures.as_dict())
    return figures, log[: min(commits, figures.commits)]


def audit(config: Config, sizes: Coherence, log: np.ndarray) -> int:
    """Compare the directory's results, in order, with the golden model's; how many."""
    layouts, golden = CoherenceLayouts(config, sizes), Directory(sizes, config)
    packing = Packing(layouts.result)
    for n, row in enumerate(log):
        got = packing.unpack(int.from_bytes(row.tobytes(), "little"))
        op = {name[3:]: value for name, value in got.items() if name.startswith("op.")}
        want = expected(golden, op, got, sizes)
        if want is not None:
            compare(n, got, want, golden, op, sizes)
    return len(log)


def expected(golden: Directory, op: dict, got: dict, sizes: Coherence):
    """The golden model's result, where recalls may begin as `got` has it; None where the directory
    has no say."""
    may = {
        "free": bool(got["free"]),
        "granting": [n for n in range(sizes.ways) if got["granting"] >> n & 1],
    }
    kind, line = DirectoryOp(op["kind"]), op["sector"] * sizes.sector + op["line"]
    if kind == DirectoryOp.ASK:
        return golden.ask(op["sector"], **may)
    if kind == DirectoryOp.FINISH:
        return golden.finish(op["sector"], op["way"])
    if not op["tracked"]:
        return None
    value = MetaValue.INVALID
    if op["holds"]:
        value = MetaValue.SHARED if op["shared"] else MetaValue.ANY
    looks = not op["holds"] and not op["evicts"]
    message = {
        "opcode": M2SReq.MEM_RD,
        "meta_field": MetaField.NO_OP if looks else MetaField.META0,
        "meta_value": value,
        "snp_type": SnpType.CUR,
        "gathers": op.get("gathers", 0),
    }
    if kind == DirectoryOp.WRITE:
        return golden.write(line, message, rounds=bool(op["rounds"]))
    return golden.request(line, message, **may)


def compare(n, got, want, golden, op, sizes):
    assert got["outcome"] == want.outcome, f"op {n}: {got}, expected {want}"
    row: Row = golden.rows[golden.place(op["sector"])[0]]
    assert len(row.ways) == sizes.ways
    index = golden.place(op["sector"])[0] << sizes.way_bits
    done = want.outcome in (DirectoryOutcome.DONE, DirectoryOutcome.DONE_RECALL)
    if want.reply and done:
        assert got["ndr"] == (want.reply.ndr or 0), f"op {n}: {got}, expected {want}"
        if op["holds"]:
            assert got["place"] == index | want.way, f"op {n}: {got}, expected {want}"
    if want.recall:
        way, sector, lines = want.recall
        said = (got["recalled"], got["recalled_sector"], got["lines"])
        assert said == (index | way, sector, sum(1 << k for k in lines)), f"op {n}: {got}, {want}"
    assert got["ungranted"] == want.ungranted


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kelp_verif.coherence.coherent_bench")
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="unit", choices=SIZES)
    args = parser.parse_args(argv)
    config, sizes = named(args.config), SIZES[args.config]
    # Half as much again as the directory holds: some is called back, some is hit.
    lines = some_lines(config, sizes, sizes.sets * sizes.ways * 3 // 2)
    for name, pace, late in (("smooth", SMOOTH, 0), ("rough", ROUGH, 60)):
        for rounded, blocks in ((0, 0), (0xFFFF, 1)):
            figures, log = run(
                config,
                sizes,
                lines,
                seed=args.seed,
                transactions=args.transactions,
                rounded=rounded,
                blocks=blocks,
                commits=20_000,
                jitter=40,
                ask=1,
                late=late,
                **pace,
            )
            agreed = audit(config, sizes, log)
            kind = "rounding, in blocks" if rounded else "raw16"
            print(f"{name}, {kind}, seed {args.seed}: {figures.as_dict()}; {agreed} ops agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
