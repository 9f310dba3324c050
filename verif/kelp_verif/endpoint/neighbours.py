# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a tenant's legal but nasty traffic costs a neighbour that only reads resident lines:
`python -m kelp_verif.endpoint.neighbours` (docs/design.md, "How slow").

Each kind of traffic runs alone beside the neighbour, on a device of its own reset. Both have always
another message for the host's port; there they take turns on Req, and have a channel each where
the tenant writes. A message's *turn* begins when the neighbour's one before it is accepted, so what
it waits for behind the tenant's counts. `full`: every second message on Req is the neighbour's, or
all of them beside writes; `quarter`: one in four, and beside writes others that ask for nothing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from kelp_rtl.device import Descriptor, Driver, FlashTiming, MemoryTiming, QueueParameters, RunRules
from kelp_rtl.program import PARTIAL, POISON, READ, SPEC_READ, WRITE, Program, Response, rwd
from kelp_spec.config import Config
from kelp_spec.config_text import configuration
from kelp_spec.formats import LINE_BYTES, Format
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.messages import M2SReq
from kelp_spec.registers import SessionCommand
from kelp_spec.select import BELL_FIELDS, SelectMap, record_bytes
from kelp_spec.select_plan import plan_lines

__all__ = ["ATTACKS", "Cell", "Neighbours", "main"]

THEIRS, MINE = 0, 1  #: sessions
THEM, ME, MANAGER = 1, 2, 0  #: LD-IDs
_WARM = 500  #: cycles at the beginning that are not counted
_FLASH = 1000  #: cycles of a fetch
_PAGES = 2  #: of each of the neighbour's queues
_MORE = 3  #: pages of a queue that fit a pool beside the frames that eviction keeps free
_NEVER = rwd(15)  #: an opcode that there is not
_OUTSIDE = (1 << 52) - 64  #: an address outside the map


@dataclass(frozen=True)
class Asks:
    """Messages that are sent again and again: their opcode, address and, of writes, data and
    enabled bytes."""

    opcode: np.ndarray
    address: np.ndarray
    data: np.ndarray | None = None  #: uint8[n, 64], of each message
    enable: int = (1 << 64) - 1
    flags: int = 0
    ld_id: int = THEM

    @property
    def writes(self) -> bool:
        return bool(self.opcode[0] & rwd(0))


@dataclass(frozen=True)
class Attack:
    """A tenant's traffic: what it sends (of a bench that has just been set up), how its pages are
    stored, how often its step advances by itself, and whether it needs `Config.select`."""

    make: Callable[[Neighbours], Asks]
    stored: Format = Format.RAW16
    auto_step: int = 0
    select: bool = False


@dataclass(frozen=True)
class Cell:
    """What came of it: the neighbour's lines and the tenant's messages a cycle, and cycles of the
    neighbour's turns, the median and the longest but one in a hundred."""

    attack: str
    pace: str
    lines: float
    median: int
    longest: int
    theirs: float


class Neighbours:
    """A device, and cells measured on it one after another.

    Parameters
    ----------
    config : Config
        With two sessions.
    cycles : int
        Of a cell.
    memory : int
        Cycles of a read and of a write.
    seed : int
        Of what is random.
    """

    def __init__(self, config: Config, *, cycles: int = 20_000, memory: int = 2, seed: int = 1):
        if config.sessions < 2:
            raise ValueError(f"sessions = {config.sessions} is refused; legal: 2 and up")
        if cycles < 2 * _WARM:
            raise ValueError(f"cycles = {cycles!r} is refused; legal: {2 * _WARM} and up")
        self.config, self.cycles, self.seed = config, cycles, seed
        self.rng = np.random.default_rng(seed)
        self.driver = Driver(
            config,
            memory=MemoryTiming(latency=memory, write_latency=memory),
            flash=FlashTiming(latency=_FLASH, write_latency=_FLASH),
            seed=seed,
            rules=RunRules(max_skip=0),
        )

    def close(self) -> None:
        self.driver.close()

    # - what is asked ------------------------------------------------------------------------------
    def lines(self, session: int, pages: int) -> np.ndarray:
        """Addresses [page, line] of so many pages of each queue, queue by queue within a page."""
        c, d = self.config, self.driver
        return np.array(
            [
                [d.address(session, q, p, kv, n) for kv in (0, 1) for n in range(c.half_lines)]
                for p in range(pages)
                for q in range(c.queues)
            ],
            np.uint64,
        )

    def noise(self, count: int) -> np.ndarray:
        """Lines of numbers that any format stores."""
        numbers = self.rng.standard_normal((count, LINE_BYTES // 2)).astype("<f2")
        return numbers.view(np.uint8)

    def register(self, name: str) -> int:
        offset = self.driver.registers[name].offset
        return self.driver.addresses.register_base + offset // LINE_BYTES * LINE_BYTES

    def stored(self, pages: int = _PAGES) -> np.ndarray:
        """The tenant's lines of so many pages of each queue, written."""
        lines = self.lines(THEIRS, pages)
        self.driver.run(
            Program.writes(lines.reshape(-1), self.noise(lines.size), ld_id=THEM), settle=True
        )
        return lines

    # - cells --------------------------------------------------------------------------------------
    def _set_up(self, attack: Attack) -> Asks | None:
        """A device as after a reset: two sessions, the neighbour's pages resident, and what the
        tenant will send."""
        d = self.driver
        d.reset(seed=self.seed)
        self.rng = np.random.default_rng(self.seed)
        shape = {"layers": 1, "kv_heads": self.config.queues}
        formats = ((1023, attack.stored, attack.stored),)
        steps = QueueParameters(auto_step=attack.auto_step)
        d.open_session(THEIRS, Descriptor(**shape, formats=formats), steps, owner=THEM)
        d.open_session(MINE, Descriptor(**shape), owner=ME)
        own = self.lines(MINE, _PAGES).reshape(-1)
        d.run(Program.writes(own, self.noise(own.size), ld_id=ME), settle=True)
        asks = attack.make(self)
        d.settle()
        return asks

    def cell(self, name: str, pace: str = "full") -> Cell:
        """Measure the traffic `name` of `ATTACKS` at a pace of the neighbour's, full or quarter."""
        if name not in ATTACKS:
            raise ValueError(f"name = {name!r} is refused; legal: {', '.join(ATTACKS)}")
        if pace not in ("full", "quarter"):
            raise ValueError(f"pace = {pace!r} is refused; legal: full, quarter")
        program, mine, theirs = self._mixed(self._set_up(ATTACKS[name]), pace)
        result = self.driver.run(program, max_cycles=self.cycles, partial=True)
        return self._seen(name, pace, result, mine, theirs)

    def _mixed(self, asks: Asks | None, pace: str) -> tuple[Program, np.ndarray, np.ndarray]:
        """The messages of both, one a cycle on each channel, and which of them are whose."""
        beside = asks is None or asks.writes
        every = (1 if beside else 2) if pace == "full" else 4
        own = _reads(self.lines(MINE, _PAGES), ld_id=ME)
        # A MemSpecRd outside the map asks for nothing.
        other = Asks(np.array([SPEC_READ]), np.array([_OUTSIDE], np.uint64)) if beside else asks
        mine = np.arange(self.cycles) % every == 0
        columns = _merged(mine, own, other)
        theirs = np.zeros(self.cycles, bool) if beside else ~mine
        if asks is not None and asks.writes:
            writes = _columns(asks, self.cycles)
            columns = {name: np.r_[column, writes[name]] for name, column in columns.items()}
            mine, theirs = np.r_[mine, theirs], np.r_[theirs, ~theirs]
        return Program(data=asks.data if asks else None, **columns), mine, theirs

    def _seen(self, name, pace, result, mine, theirs) -> Cell:
        first = result.accept_cycle[result.accept_cycle >= 0].min() + _WARM
        last = first - _WARM + self.cycles - 1
        accepted, answered = result.accept_cycle[mine], result.response_cycle[mine]
        data = result.response[mine]
        if not set(data.tolist()) <= {Response.NONE, Response.DATA}:
            raise RuntimeError(f"{name}: a resident line of the neighbour is {set(data.tolist())}")
        turns = answered[1:] - accepted[:-1]
        turns = turns[(answered[1:] >= 0) & (answered[1:] > first)]
        # The one that is under way at the end has waited so long at least.
        waiting = np.flatnonzero(answered < 0)[:1]
        begun = accepted[waiting[0] - 1] if waiting.size and waiting[0] else last
        turns = np.sort(np.r_[turns, max(last - begun, 0)])
        seconds = last - first + 1
        return Cell(
            attack=name,
            pace=pace,
            lines=float((answered > first).sum() / seconds),
            median=int(turns[len(turns) // 2]),
            longest=int(turns[min(len(turns) - 1, len(turns) * 99 // 100)]),
            theirs=float((result.accept_cycle[theirs] > first).sum() / seconds),
        )

    def cells(self, names: Sequence[str], paces: Sequence[str]) -> Iterator[Cell]:
        for name in names:
            if not ATTACKS[name].select or self.config.select:
                yield from (self.cell(name, pace) for pace in paces)


# - kinds of traffic -------------------------------------------------------------------------------
def _columns(asks: Asks, count: int) -> dict[str, np.ndarray]:
    """So many messages, as a `Program` takes them."""
    turn = np.arange(count) % len(asks.opcode)
    return {
        "opcode": asks.opcode[turn],
        "address": asks.address[turn],
        "ld_id": np.full(count, asks.ld_id),
        "byte_enable": np.full(count, asks.enable, np.uint64),
        "flags": np.full(count, asks.flags),
        "data_index": np.full(count, -1) if asks.data is None else turn,
    }


def _merged(mine: np.ndarray, own: Asks, other: Asks) -> dict[str, np.ndarray]:
    """Messages of one channel: where `mine` is set `own`, and `other` between."""
    first, second = _columns(own, int(mine.sum())), _columns(other, int((~mine).sum()))
    merged = {}
    for name, column in first.items():
        merged[name] = np.empty(mine.size, column.dtype)
        merged[name][mine], merged[name][~mine] = column, second[name]
    return merged


def _reads(address, ld_id: int = THEM) -> Asks:
    address = np.array(address, np.uint64).reshape(-1)
    return Asks(np.full(address.size, READ), address, ld_id=ld_id)


def _writes(bench: Neighbours, address, opcode: int = WRITE, **more) -> Asks:
    address = np.array(address, np.uint64).reshape(-1)
    data = more.pop("data", None)
    if data is None:
        data = bench.noise(address.size)
    return Asks(np.full(address.size, opcode), address, data, **more)


def _shuffled(bench: Neighbours, address) -> np.ndarray:
    return bench.rng.permutation(np.array(address, np.uint64).reshape(-1))


def _register_write(bench: Neighbours, name: str, *values: int, ld_id: int = THEM) -> Asks:
    low = bench.driver.registers[name].offset % LINE_BYTES
    data = np.zeros((len(values), LINE_BYTES), np.uint8)
    for row, value in zip(data, values, strict=True):
        row[low : low + 8] = np.frombuffer(int(value).to_bytes(8, "little"), np.uint8)
    at = [bench.register(name)] * len(values)
    return _writes(bench, at, PARTIAL, data=data, enable=0xFF << low, ld_id=ld_id)


def _command(bench: Neighbours, *commands: SessionCommand, ld_id: int = THEM) -> Asks:
    name = f"s{THEIRS}_command"
    values = [bench.driver.pack(name, command=c, argument=1) for c in commands]
    return _register_write(bench, name, *values, ld_id=ld_id)


def _hints(bench: Neighbours, kind: HintKind, pages: Sequence[int], advance=False) -> Asks:
    """Hint lines of each queue in turn, in sequence."""
    queues = bench.config.queues
    entries = tuple(pages) if kind != HintKind.MASS else tuple(1000 + p for p in pages)
    rows = b"".join(
        pack(
            HintLine(
                kind=kind,
                session=THEIRS,
                queue=n % queues,
                sequence=n & 0xFFFF,
                entries=entries,
                advance=advance,
            )
        )
        for n in range(bench.cycles)
    )
    data = np.frombuffer(rows, np.uint8).reshape(-1, LINE_BYTES)
    return _writes(bench, [bench.driver.addresses.hint_base] * len(data), data=data)


def _many(bench: Neighbours) -> np.ndarray:
    """First lines of every page of the tenant's, more than its pool has frames; written, so that
    all pages but as many are cold by then."""
    lines = bench.lines(THEIRS, bench.config.pages)[:, 0]
    bench.driver.run(Program.writes(lines, bench.noise(lines.size), ld_id=THEM), settle=True)
    return lines


def _region(bench: Neighbours, line: int) -> int:
    return bench.driver.addresses.select_base + LINE_BYTES * line


def _doorbells(bench: Neighbours, *, release: bool = False) -> Asks:
    """SELECTs of every queue in turn, by queries and a plan that are there."""
    c, where = bench.config, SelectMap(bench.config)
    pages = min(c.frames[0] // c.queues - 1, _PAGES * 2)
    bench.stored(pages)
    shared = [
        _region(bench, where.query(THEIRS, group, row, n))
        for group in range(c.select_groups)
        for row in range(c.select_heads + 1)  # the last is the plan
        for n in range(c.select_lines)
    ]
    queries = bench.noise(c.select_heads * c.select_lines)
    of_heads = queries.view("<f2").reshape(c.select_heads, -1).astype(np.float64)
    plan = plan_lines(bench.rng.standard_normal((256, of_heads.shape[1])), of_heads)
    rows = np.tile(np.concatenate([queries, plan]), (c.select_groups, 1))
    bench.driver.run(Program.writes(np.array(shared, np.uint64), rows, ld_id=THEM), settle=True)
    at, data = [], []
    for n in range(1, bench.cycles):
        fields = {"sequence": n, "queue": n % c.queues, "newest": pages - 1, "release": release}
        fields |= {"tokens": c.half_lines // c.select_lines, "lines": c.select_lines}
        fields |= {"most": min(c.select, pages) - 1, "target": c.select_heads << 16}
        data.append(record_bytes(BELL_FIELDS, fields | {"m": 33421, "sh": 16}).ljust(64, b"\0"))
        at.append(_region(bench, where.bell(THEIRS, n % c.select_groups)))
    return _writes(bench, at, data=np.frombuffer(b"".join(data), np.uint8).reshape(-1, 64))


def _queries(bench: Neighbours) -> Asks:
    where = SelectMap(bench.config)
    return _writes(bench, [_region(bench, where.query(THEIRS, 0, 0, 0))])


def _answers(bench: Neighbours) -> Asks:
    return _reads([_region(bench, SelectMap(bench.config).bell(THEIRS, 0))])


def _gathers(bench: Neighbours) -> Asks:
    gather = bench.driver.addresses.gather
    return _reads([gather(THEIRS, q, 0, 0, n, 0) for n in range(4) for q in range(4)])


def _others(bench: Neighbours, opcode: int) -> Asks:
    lines = bench.stored().reshape(-1)
    return Asks(np.full(lines.size, opcode), lines)


_INT4 = Format.INT4
_OPEN = SessionCommand.OPEN, SessionCommand.CLOSE

#: By name, in the order of the table. Where nothing else is said a tenant's pages are resident.
ATTACKS: dict[str, Attack] = {
    "nobody": Attack(lambda b: None),
    "reads, page by page": Attack(lambda b: _reads(b.stored())),
    "reads of one line": Attack(lambda b: _reads(b.stored()[0, 0])),
    "reads of lines at random": Attack(lambda b: _reads(_shuffled(b, b.stored()))),
    "reads of int4 lines at random": Attack(lambda b: _reads(_shuffled(b, b.stored(_MORE))), _INT4),
    "reads of pages at random": Attack(
        lambda b: _reads(_shuffled(b, b.stored(_MORE)[:, 0])), _INT4
    ),
    "reads, a step each": Attack(lambda b: _reads(b.stored()), auto_step=1),
    "reads of pages that are not there": Attack(lambda b: _reads(b.lines(THEIRS, 8))),
    "reads of a neighbour's lines": Attack(lambda b: _reads(b.lines(MINE, 2))),
    "reads outside the map": Attack(lambda b: _reads([_OUTSIDE])),
    "reads of cold pages": Attack(lambda b: _reads(_many(b)), _INT4),
    "reads of one cold page after another": Attack(
        lambda b: _reads(np.repeat(_many(b), 2 * b.config.parked)), _INT4
    ),
    "writes": Attack(lambda b: _writes(b, b.stored())),
    "writes of one line": Attack(lambda b: _writes(b, b.stored()[0, 0])),
    "writes of int4 lines at random": Attack(
        lambda b: _writes(b, _shuffled(b, b.stored(_MORE))), _INT4
    ),
    "writes with poison": Attack(lambda b: _writes(b, b.stored(), flags=POISON)),
    "writes of an unknown kind": Attack(lambda b: _writes(b, b.stored(), _NEVER)),
    "writes of cold pages": Attack(lambda b: _writes(b, _many(b)), _INT4),
    "writes in part": Attack(lambda b: _writes(b, b.stored(), PARTIAL, enable=1)),
    "writes in part of one line": Attack(lambda b: _writes(b, b.stored()[0, 0], PARTIAL, enable=1)),
    "writes in part of int4 lines": Attack(
        lambda b: _writes(b, _shuffled(b, b.stored(_MORE)), PARTIAL, enable=1), _INT4
    ),
    "writes of no byte": Attack(lambda b: _writes(b, b.stored(), PARTIAL, enable=0)),
    "MemSpecRd of cold pages": Attack(
        lambda b: Asks(np.full(_many(b).size, SPEC_READ), b.lines(THEIRS, b.config.pages)[:, 0]),
        _INT4,
    ),
    "MemInv": Attack(lambda b: _others(b, int(M2SReq.MEM_INV))),
    "register reads": Attack(lambda b: _reads([b.register("identity")])),
    "register reads that are refused": Attack(lambda b: _reads([b.register("count_accesses")])),
    "reads of a queue's counters": Attack(lambda b: _reads([b.register(f"s{THEIRS}_queue_hits")])),
    "reads of resident": Attack(lambda b: _reads([b.register(f"s{THEIRS}_resident")])),
    "register writes": Attack(lambda b: _register_write(b, f"s{THEIRS}_auto_step", 0)),
    "APPLY_ALL": Attack(lambda b: _command(b, SessionCommand.APPLY_ALL)),
    "ADVANCE": Attack(lambda b: _command(b, SessionCommand.ADVANCE)),
    "PEEK": Attack(lambda b: _command(b, SessionCommand.PEEK)),
    "OPEN and CLOSE, by the manager": Attack(lambda b: _command(b, *_OPEN, ld_id=MANAGER)),
    "pool limits, by the manager": Attack(
        lambda b: _register_write(b, "pool_limit_int4", 8, ld_id=MANAGER)
    ),
    "reads of the hint window": Attack(lambda b: _reads([b.driver.addresses.hint_base])),
    "hints: masses": Attack(lambda b: _hints(b, HintKind.MASS, range(b.config.pages)[:26])),
    "hints: pins": Attack(lambda b: _hints(b, HintKind.PIN, range(b.config.pages)[:26])),
    "hints: steps": Attack(lambda b: _hints(b, HintKind.MASS, (), advance=True)),
    "hints: pages to fetch": Attack(
        lambda b: (_many(b), _hints(b, HintKind.PREFETCH, range(b.config.pages)[:26]))[1], _INT4
    ),
    "hints: resident pages to fetch": Attack(
        lambda b: (b.stored(), _hints(b, HintKind.PREFETCH, range(2)))[1]
    ),
    "queries": Attack(_queries, select=True),
    "looks at a SELECT's answer": Attack(_answers, select=True),
    "SELECTs": Attack(_doorbells, select=True),
    "SELECTs that release": Attack(lambda b: _doorbells(b, release=True), select=True),
    "reads of empty slots": Attack(_gathers, select=True),
}


# - the table --------------------------------------------------------------------------------------
def table(cells: Sequence[Cell], title: str) -> Table:
    shown = Table(title=title)
    for column in ("the tenant sends", "pace", "lines/cycle", "p50", "p99", "its own/cycle"):
        shown.add_column(
            column, justify="left" if column in ("the tenant sends", "pace") else "right"
        )
    for c in cells:
        shown.add_row(
            c.attack, c.pace, f"{c.lines:.3f}", str(c.median), str(c.longest), f"{c.theirs:.3f}"
        )
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_verif.endpoint.neighbours", description=__doc__
    )
    parser.add_argument("--config", default="unit_select")
    parser.add_argument("--cycles", type=int, default=20_000, help="of each cell")
    parser.add_argument("--memory", type=int, default=2, help="cycles of a read and of a write")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds of traffic whose name has this")
    parser.add_argument("--json", help="a file for the figures")
    args = parser.parse_args(argv)
    names = [name for name in ATTACKS if args.only in name]
    if not names:
        parser.error(f"--only {args.only!r}: there is {', '.join(ATTACKS)}")
    bench = Neighbours(
        configuration(args.config), cycles=args.cycles, memory=args.memory, seed=args.seed
    )
    cells = list(bench.cells(names, ("full", "quarter")))
    bench.close()
    title = f"{args.config}, {args.cycles} cycles a cell, memory at {args.memory}, seed {args.seed}"
    Console(width=100).print(table(cells, title))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"seed": args.seed, "cells": [asdict(c) for c in cells]}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
