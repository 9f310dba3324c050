# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits flipped in every memory of CXL.io, one and two of a code word, while a host uses it.

A device is booted once; each flip happens in a copy of its process (fork), which does what a copy
without a flip did: commands, events, messages, data objects. What the host reads, and what leaves
the device, is compared.

``python -m kelp_verif.cxlio.flip_campaign --each 20`` writes ``build/flips_cxlio.json`` and prints
a table; it exits with 1 where a flip was silent, or the device did not answer."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from amaranth.hdl import UnusedElaboratable

from kelp_hw.cxlio.cxl_io import CxlIo
from kelp_hw.export.tools import build_root
from kelp_rtl.cxlio.model import RegisterModel
from kelp_rtl.timing import DriverError
from kelp_spec.cxlio.commands import Opcode, knob_uuid
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.pci import MSIX_TABLE
from kelp_spec.files import write_whole

from ..endpoint.flip_model import Memory
from ..endpoint.inventory import Cells, inventory, memory_name

__all__ = ["Bench", "Flip", "campaign", "main", "table"]

CONFIG = named_cxlio("full")
#: What came of a flip, worst first. `silent`: the host reads something else, or something else
#: leaves, before anything has told of it; `hang`: no answer; `fatal`: told by the fatal error;
#: `told`: by the answer to the access that met it; `corrected`: counted; `masked`: nothing.
OUTCOMES = ("silent", "hang", "fatal", "told", "corrected", "masked")
BAD = {"silent", "hang"}
_STEPS = 24
_DOE = 0x10  #: words of a data object, from the capability on
_DISCOVERY = 0x1


@dataclass(frozen=True)
class Flip:
    """Bits of a row, turned over before the access of that number."""

    memory: str
    row: int
    bits: tuple[int, ...]
    access: int


class Life:
    """A host and its device for a while; `seen` is all that the host read and all that left."""

    def __init__(self, model: RegisterModel, seed: int, flips: Sequence[Flip], rows):
        self.model, self.rng = model, random.Random(seed)
        self.flips, self.rows = list(flips), rows
        self.seen, self.told, self.accesses = [], None, 0
        #: Accesses after which a data object's answer stands in its memory.
        self.objects = []

    def _turn(self):
        for flip in [f for f in self.flips if f.access == self.accesses]:
            self.rows[flip.memory].flip(flip.row, *flip.bits)
        self.accesses += 1

    def read(self, space, at, size=8):
        self._turn()
        value, code = self.model.read(space, at, size)
        return self._note(value, code)

    def write(self, space, at, size, value):
        self._turn()
        return self._note(0, self.model.write(space, at, size, value))

    def _note(self, value, code):
        self.seen.append((value, code))
        if code and self.told is None:
            self.told = len(self.seen) - 1
        return value

    def command(self, opcode, payload):
        for i in range(0, len(payload), 4):
            word = payload[i : i + 4]
            self.write("device", 0x1020 + i, len(word), int.from_bytes(word, "little"))
        self.write("device", 0x1008, 8, opcode | len(payload) << 16)
        self.write("device", 0x1004, 4, 1)
        for _ in range(40):
            # As long as any command takes: what is seen does not depend on when it ends.
            self._turn()
            self.model.clock(150)
        if self.read("device", 0x1004, 4) & 1:
            raise DriverError("a command hangs", self.model.cycles)
        self.read("device", 0x1010)
        length = self.read("device", 0x1008) >> 16
        for at in range(0, min(length, CONFIG.payload), 8):
            self.read("device", 0x1020 + at)

    def exchange(self, words):
        at = self.model.doe
        for word in words:
            self.write("configuration", at + _DOE, 4, word)
        self.write("configuration", at + 8, 4, 1 << 31)
        self.model.clock(1200)
        for _ in range(16):
            status = self.read("configuration", at + 0xC, 4)
            if status & 4 and self.told is None:
                self.told = len(self.seen) - 1
            if not status >> 31:
                break
            self.objects.append(self.accesses)
            self.read("configuration", at + 0x14, 4)
            self.write("configuration", at + 0x14, 4, 0)
        self.write("configuration", at + 8, 4, 1)

    def step(self):
        rng, model = self.rng, self.model
        what = rng.randrange(8)
        line = (rng.randrange(1 << 10) << 6).to_bytes(8, "little")
        if what == 0:
            model.event(
                log=rng.randrange(4),
                kind=rng.randrange(4),
                poison=rng.randrange(2),
                dpa=rng.randrange(1 << 20) << 6,
                word=rng.getrandbits(32),
            )
            self._turn()
            model.clock(900)
        elif what == 1:
            log = rng.randrange(4)
            self.command(Opcode.GET_EVENTS, bytes([log]))
            if rng.random() < 0.5:
                self.command(Opcode.CLEAR_EVENTS, bytes([log, 1, 0, 0, 0, 0]))
        elif what == 2:
            self.command(Opcode.INJECT_POISON, line)
        elif what == 3:
            self.command(Opcode.POISON_LIST, bytes(8) + (1 << 20).to_bytes(8, "little"))
        elif what == 4:
            self.command(Opcode.CLEAR_POISON, line + rng.randbytes(64))
        elif what == 5:
            self.exchange(
                (_DISCOVERY, 3, 0) if rng.random() < 0.3 else (0x21E98, 3, rng.randrange(6) << 16)
            )
        elif what == 6:
            opcode, given = rng.choice(
                (
                    (Opcode.IDENTIFY, b""),
                    (Opcode.HEALTH, b""),
                    (Opcode.GET_LSA, bytes(4) + (64).to_bytes(4, "little")),
                    (Opcode.SET_LSA, bytes(8) + rng.randbytes(32)),
                    (Opcode.GET_FEATURE, knob_uuid(1) + bytes(2) + b"\x04\x00\x00"),
                    (Opcode.GET_ALERTS, b""),
                    (Opcode.SUPPORTED_LOGS, b""),
                )
            )
            self.command(opcode, given)
        else:
            for at in range(0, 16 * CONFIG.vectors, 8):
                self.read("device", MSIX_TABLE + at)
            entry = MSIX_TABLE + 16 * rng.randrange(CONFIG.vectors)
            self.write("device", entry + 8, 4, rng.getrandbits(16))

    def report(self) -> dict:
        problem = ""
        try:
            for _ in range(_STEPS):
                self.step()
        except DriverError as error:
            problem = str(error)
        model = self.model
        return {
            "seen": self.seen,
            "told": self.told,
            "accesses": self.accesses,
            "objects": self.objects,
            "messages": [[m["address"], m["data"]] for m in model.messages],
            "requests": [[r["kind"], r["line"], r["data"] % 2**61] for r in model.requests],
            "status": model.read("device", 0x200, 8)[0] if not problem else 0,
            "problem": problem,
            **model.faults(),
        }


def judge(report: dict, reference: dict) -> str:
    """What came of a flip, beside a copy without one."""
    if report["problem"]:
        return "hang"
    # Whatever has been told: nothing leaves that would not have left.
    sent = iter(reference["messages"])
    if not all(any(each == other for other in sent) for each in report["messages"]):
        return "silent"
    asked = report["requests"]
    if asked != reference["requests"][: len(asked)]:
        return "silent"
    fatal = report["fatal"] > reference["fatal"]
    if fatal != bool(report["status"] & 1):
        return "silent"
    same = len(asked) == len(reference["requests"])
    same &= len(report["messages"]) == len(reference["messages"])
    if fatal:
        return "fatal"
    told = report["told"]
    upto = len(reference["seen"]) if told is None else told
    if report["seen"][:upto] != reference["seen"][:upto]:
        return "silent"
    if told is not None:
        return "told"
    if report["seen"] != reference["seen"] or not same:
        return "silent"
    return "corrected" if report["corrected"] > reference["corrected"] else "masked"


class Bench:
    """A device that has booted, of which each trial is a copy."""

    def __init__(self, seed: int = 1, config=CONFIG):
        self.rng = random.Random(seed)
        self.model = model = RegisterModel(config, seed=seed)
        model.doe = _doe(model)
        self.cells: dict[str, Cells] = inventory(CxlIo(config=config))
        self.rows = {
            memory_name(*a.scope.decode().split(".")[2:], a.name.decode()): Memory(
                a.name.decode(),
                a.width,
                a.depth,
                np.ctypeslib.as_array(
                    (ctypes.c_uint8 * (a.depth * a.row_bytes)).from_address(a.rows)
                ).reshape(a.depth, a.row_bytes),
                model.propagate,
            )
            for a in model.arrays()
        }
        strays = set(self.cells) ^ set(self.rows)
        assert not strays, f"either the model or the design lacks {sorted(strays)}"
        model.write("configuration", 4, 2, 6)
        model.write("configuration", 0x7E, 2, 0x8000)
        for vector in range(config.vectors):
            for at, value in ((0, 0xFEE00000 + 0x1000 * vector), (4, 0), (8, vector), (12, 0)):
                model.write("device", MSIX_TABLE + 16 * vector + at, 4, value)
        model.command(Opcode.SET_INTERRUPT_POLICY, b"\1\1\1\1")
        self.references: dict[int, dict] = {}

    def live(self, seed: int, flips: Sequence[Flip] = ()) -> dict:
        """A life in a copy of this process."""
        readable, writable = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.close(readable)
                report = Life(self.model, seed, flips, self.rows).report()
                with os.fdopen(writable, "w") as pipe:
                    json.dump(report, pipe)
                status = 0
            finally:
                os._exit(status)
        os.close(writable)
        with os.fdopen(readable) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        report = json.loads(text)
        report["seen"] = [tuple(each) for each in report["seen"]]
        return report

    def draw(self, name: str, bits: int, seed: int) -> Flip:
        """`bits` flips in one code word, in every second case of a row that says something."""
        rng, cells, rows = self.rng, self.cells[name], self.rows[name].rows
        used = np.flatnonzero(rows.any(axis=1))
        choice = used if len(used) and rng.random() < 0.7 else np.arange(cells.depth)
        reference = self.reference(seed)
        access = rng.randrange(reference["accesses"])
        if name == "doe.words" and reference["objects"]:
            access = rng.choice(reference["objects"])
            choice = np.arange(8)
        return Flip(
            name,
            int(rng.choice(choice)),
            tuple(rng.sample(list(rng.choice(cells.words)), bits)),
            access,
        )

    def reference(self, seed: int) -> dict:
        if seed not in self.references:
            self.references[seed] = self.live(seed)
            assert not self.references[seed]["problem"], self.references[seed]["problem"]
        return self.references[seed]

    def trial(self, seed: int, *flips: Flip) -> tuple[str, dict]:
        report = self.live(seed, flips)
        return judge(report, self.reference(seed)), report


def _doe(model) -> int:
    """Where configuration space has the DOE capability."""
    at = 0x100
    while at:
        header = model.read("configuration", at, 4)[0]
        if header & 0xFFFF == 0x2E:
            return at
        at = header >> 20
    raise ValueError(f"configuration {model.config.name!r} has no DOE")


def campaign(
    *,
    each: int,
    seed: int = 1,
    bits: Iterable[int] = (1, 2),
    lives: int = 4,
    bench: Bench | None = None,
    say=lambda text: None,
) -> dict:
    """`each` flips of each number of `bits` in every memory: ``{"memories": {name: {"1": {outcome:
    count}, "2": …}}, "bad": [flip, …]}``."""
    bench = bench or Bench(seed)
    found = {name: {str(n): Counter() for n in bits} for name in bench.cells}
    bad, done = [], 0
    for name in found:
        for count in bits:
            for n in range(each):
                life = seed * 100 + n % lives
                flip = bench.draw(name, count, life)
                outcome, _ = bench.trial(life, flip)
                found[name][str(count)][outcome] += 1
                if outcome in BAD:
                    bad.append({"outcome": outcome, "life": life, **vars(flip)})
                done += 1
        say(f"{name}: {done} flips so far")
    return {
        "seed": seed,
        "flips": done,
        "memories": {
            name: {kind: dict(counts) for kind, counts in kinds.items()}
            for name, kinds in found.items()
        },
        "bad": bad,
    }


def table(result: dict) -> str:
    """The result for people."""
    lines = [f"{'memory':34}{'flips':>6}" + "".join(f"{o:>11}" for o in OUTCOMES)]
    for name, kinds in result["memories"].items():
        for kind, counts in kinds.items():
            cells = "".join(f"{counts.get(o, 0) or '·':>11}" for o in OUTCOMES)
            lines.append(f"{name:34}{kind:>6}{cells}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_verif.cxlio.flip_campaign", description=__doc__
    )
    parser.add_argument("--each", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", UnusedElaboratable)  # the inventory only looks at blocks
    result = campaign(
        each=given.each,
        seed=given.seed,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    write_whole(build_root() / "flips_cxlio.json", json.dumps(result, indent=1) + "\n")
    print(table(result))
    return int(bool(result["bad"]))


if __name__ == "__main__":
    sys.exit(main())
