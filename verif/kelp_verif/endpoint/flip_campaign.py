# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits flipped in every memory of the endpoint, one and two of a code word, under traffic.

A device is brought into traffic once; each flip happens in a copy of its process (fork), which goes
on under traffic of its own, reads every line, and says what it saw beside a copy in which nothing
flipped.

``python -m kelp_verif.endpoint.flip_campaign --each 20`` writes ``build/flips.json`` and prints a
table; it exits with 1 where a flip was silent, or the device did not answer."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

import numpy as np
from amaranth.hdl import UnusedElaboratable

from kelp_hw.endpoint import Endpoint
from kelp_hw.export.tools import build_root
from kelp_rtl.device import Driver, DriverError
from kelp_rtl.program import Program
from kelp_spec.files import write_whole
from kelp_spec.metadata import Event

from .flip_coherent import CachingHost
from .flip_model import Memory, memories
from .flip_select import SelectHost
from .flip_traffic import PRESSURES, TURN, Host, ready_device
from .inventory import Cells, inventory

__all__ = ["BAD", "HOSTS", "Bench", "Flip", "Outcome", "campaign", "hidden", "main", "table"]

#: Events that tell the host that data are lost or in doubt.
_LOUD = tuple(
    Event[name]
    for name in (
        "UNCORRECTED",
        "WORD_LOST",
        "FATAL",
        "FETCH_FAILED",
        "WRITE_BACK_FAILED",
        "FRAME_RECOVERED",
    )
)
#: What the device answers where it takes a request for one outside the map, always with an event.
_REFUSALS = (Event.OUT_OF_MAP, Event.CLOSED_SESSION, Event.FOREIGN_LD)
_CHOICES = 2 * len(PRESSURES)  # of what follows in a copy
_CYCLES = 40_000  # until a register is answered, at most
_SECONDS = 120  # of processor time of a copy, before it counts as hanging
_FATAL_CYCLES = 4  # from the use of a word to `irq`, at most
_HANGS = ("nothing has moved", "nothing moves", "unfinished", "busy after")


class Outcome(StrEnum):
    """What came of a flip, worst first."""

    SILENT = "silent"  #: wrong data, a lost write or another's line, without poison or event
    BROKEN = "broken"  #: a rule of a port was broken: answered twice, outside the memory …
    HANG = "hang"  #: a request was never answered
    MUTE = "mute"  #: the fatal event, by `irq` alone: no register is answered any more
    #: the fatal event: no data are answered; what had no answer, or another's tag, may be so for
    #: ever
    FATAL = "fatal"
    POISON = "poison"  #: lines answered poison
    EVENT = "event"  #: told by an event alone
    CORRECTED = "corrected"  #: counted as corrected; the host saw nothing else
    CHANGED = "changed"  #: right data, at other times
    MASKED = "masked"  #: nothing changed


@dataclass(frozen=True)
class Flip:
    """Bits of one row of a memory, turned over `cycle` cycles into the traffic or later. With
    `fresh` it is a row that was written in the `TURN` cycles before, when one has been, else any:
    `which` of them, 0 … 1."""

    memory: str
    which: float
    fresh: bool
    bits: tuple[int, ...]
    cycle: int

    def happen(self, memory: Memory, before: np.ndarray) -> int:
        """Turns the bits over, `before` being the rows `TURN` cycles ago; the row, -1 when there
        is none yet."""
        rows = np.arange(memory.depth)
        if self.fresh:
            rows = np.flatnonzero((memory.rows != before).any(axis=1))
        if not len(rows):
            return -1
        row = int(rows[int(self.which * len(rows))])
        memory.flip(row, *self.bits)
        return row


@dataclass
class _Pending:
    """A flip that is still to happen."""

    flip: Flip
    memory: Memory
    left: int  #: calls of `happens`
    before: np.ndarray  #: the rows at the last call
    row: int = -1

    @classmethod
    def of(cls, flip: Flip, there: dict[str, Memory]) -> _Pending:
        memory = there[flip.memory]
        return cls(flip, memory, flip.cycle // TURN, memory.rows.copy())

    def happens(self) -> bool:
        """Called every `TURN` cycles: whether it has happened."""
        self.left -= 1
        if self.left < 0:
            self.row = self.flip.happen(self.memory, self.before)
        self.before = self.memory.rows.copy()
        return self.row >= 0


@dataclass(frozen=True)
class Report:
    """What one copy saw."""

    wrong: tuple[str, ...] = ()
    poisoned: int = 0
    refused: int = 0
    foreign: int = 0  # lines shown to strangers
    events: tuple[int, ...] = ()
    fatal: bool = False
    corrected: int = 0
    answers: str = ""  # digest of every answer
    cycles: str = ""  # and of when it came
    rows: tuple[int, ...] = ()  # that were flipped, -1 where none was
    error: str = ""
    hang: bool = False
    mute: bool = False  # a register was not answered

    def outcome(self, reference: Report) -> Outcome:
        loud = any(event in _LOUD for event in self.events)
        told = self.fatal or loud or any(event in _REFUSALS for event in self.events)
        # Lost data are poison, and after a fatal error none are answered: none can be wrong.
        if self.foreign or self.wrong or (self.refused and not told):
            return Outcome.SILENT
        if self.fatal and self.mute:
            return Outcome.MUTE
        if self.fatal:
            return Outcome.FATAL
        if self.error:
            return Outcome.HANG if self.hang else Outcome.BROKEN
        if self.poisoned:
            return Outcome.POISON
        if self.refused or loud:
            return Outcome.EVENT
        if self.answers != reference.answers or self.cycles != reference.cycles:
            return Outcome.CHANGED
        return Outcome.CORRECTED if self.corrected != reference.corrected else Outcome.MASKED


#: By name: of `unit` with eight codec lanes, of `unit_select`, of `unit_coherent` with eight.
HOSTS = {"plain": Host, "select": SelectHost, "caching": CachingHost}
#: What must never come of a flip.
BAD = (Outcome.SILENT, Outcome.BROKEN, Outcome.HANG, Outcome.MUTE)


class _Life:
    """What follows in one copy: traffic, flips in its midst, more traffic, in every second copy
    with a new owner of a session, and every line at the end."""

    def __init__(self, driver: Driver, host: Host, flips: Sequence[Flip], choice: int):
        self.driver, self.host, self.choice = driver, host, choice
        there = memories(driver) if flips else {}
        self.flips = [_Pending.of(flip, there) for flip in flips]

    def report(self) -> Report:
        driver, host = self.driver, self.host
        said = {"fatal": False}
        lives = True
        try:
            host.begin(driver, self.choice)
            self._live()
            lives = False
            said = self._told()
            host.strangers(driver)
        except DriverError as problem:
            text = str(problem)
            # A word beyond repair may stand at a port when it is found: `fatal` follows.
            driver.clock(_FATAL_CYCLES)
            said |= {
                "fatal": driver.irq,
                "error": text,
                "hang": any(sign in text for sign in _HANGS),
                "mute": not lives,
            }
        seen = asdict(host.seen)
        return Report(
            **seen | {"wrong": tuple(seen["wrong"])},
            **said,
            rows=tuple(each.row for each in self.flips),
        )

    def _live(self) -> None:
        driver, host, pending = self.driver, self.host, list(self.flips)

        def turn():
            pending[:] = [each for each in pending if not each.happens()]

        host.play(driver, 300, turn if pending else None)
        if self.choice >= len(PRESSURES) and not driver.irq:
            host.reopen(driver, self.choice % len(host.owners))
        host.play(driver, 120)
        host.everything(driver)

    def _told(self) -> dict:
        """What registers say, which are answered whatever has happened."""
        driver = self.driver
        driver.run(Program.reads([driver.addresses.register_base]), max_cycles=_CYCLES)
        count = driver.read64("event_count")
        events = driver.read_registers([f"event_{i}" for i in range(count)])
        return {
            "events": tuple(driver.unpack("event_0", event)["code"] for event in events),
            "fatal": bool(driver.read_fields("status")["fatal"]),
            "corrected": driver.read64("count_corrected"),
        }


def _in_a_copy(driver: Driver, host: Host, flips: Sequence[Flip], choice: int) -> Report:
    """A life in a copy of this process, which leaves this one as it was."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(readable)
            # Not by the clock: a copy that waits for a core does not hang.
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                os.dup2(nowhere.fileno(), 1)  # of assertions, which only speak here
            report = _Life(driver, host, flips, choice).report()
            with os.fdopen(writable, "w") as pipe:
                json.dump(asdict(report), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        hang = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
        return Report(error=f"the copy ended with status {status}", hang=hang)
    values = json.loads(text)
    return Report(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def drawn(rng: np.random.Generator, memory: Memory, cells: Cells, bits: int) -> Flip:
    """`bits` flips in one code word of `memory`, of which the design says where it is."""
    word = cells.words[int(rng.integers(len(cells.words)))]
    chosen = rng.choice(np.array(word), min(bits, len(word)), replace=False)
    return Flip(
        memory.name,
        float(rng.random()),
        bool(rng.random() < 0.8),
        tuple(int(bit) for bit in chosen),
        int(rng.integers(20, 600)),
    )


def hidden(rng: np.random.Generator, memory: Memory, cells: Cells) -> Flip:
    """A flip that no decoder can tell: one data bit of a code word, and the check bits that are its
    column."""
    word, columns = cells.words[0], cells.columns[0]
    bit = int(rng.integers(len(word) - columns[-1].bit_length()))
    checks = word[len(word) - columns[-1].bit_length() :]
    return Flip(
        memory.name,
        float(rng.random()),
        True,
        (word[bit], *(check for r, check in enumerate(checks) if columns[bit] >> r & 1)),
        int(rng.integers(20, 600)),
    )


class Bench:
    """A device in traffic, of which each trial is a copy; `host`'s, or one of the plain kind."""

    def __init__(self, seed: int, host: Host | None = None):
        self.rng = np.random.default_rng(seed)
        self.driver, self.host = ready_device(seed, host)
        self.cells = inventory(Endpoint(config=self.host.config))
        self.memories = memories(self.driver)
        strays = set(self.cells) ^ set(self.memories)
        assert not strays, f"either the model or the design lacks {sorted(strays)}"
        self._begin()

    def _begin(self) -> None:
        self.driver.write64("event_clear", 1)
        self._references: dict[int, Report] = {}

    def advance(self) -> None:
        """On to another state: the next trials begin there."""
        self.host.play(self.driver, 400)
        self._begin()

    def draw(self, name: str, bits: int) -> Flip:
        return drawn(self.rng, self.memories[name], self.cells[name], bits)

    def trial(self, *flips: Flip) -> tuple[Outcome, dict]:
        """What came of flips in one life, and all that is known of it."""
        choice = int(self.rng.integers(_CHOICES))
        if choice not in self._references:
            self._references[choice] = reference = _in_a_copy(self.driver, self.host, (), choice)
            assert reference.outcome(reference) is Outcome.MASKED, f"no flip: {reference}"
        report = _in_a_copy(self.driver, self.host, flips, choice)
        outcome = report.outcome(self._references[choice])
        seen = {k: v for k, v in asdict(report).items() if v and k not in ("answers", "cycles")}
        return outcome, {
            "outcome": outcome,
            "flips": [*map(asdict, flips)],
            "choice": choice,
        } | seen


def campaign(
    *,
    each: int,
    seed: int = 1,
    only: Sequence[str] = (),
    bits: Iterable[int] = (1, 2),
    states: int = 4,
    bench: Bench | None = None,
    say=lambda text: None,
) -> dict:
    """`each` flips of each number of `bits` in every memory whose name contains one of `only`, from
    `states` states of a device in traffic. What came of them:
    ``{"memories": {name: {"1": {outcome: count}, "2": …}}, "bad": [flip, what was seen]}``."""
    bench = bench or Bench(seed)
    chosen = [name for name in bench.memories if not only or any(part in name for part in only)]
    flips = [bench.draw(name, count) for name in chosen for count in bits for _ in range(each)]
    bench.rng.shuffle(flips)
    found: dict[str, dict[str, Counter]] = {name: {} for name in chosen}
    bad, done, began = [], 0, time.monotonic()
    for state in range(states):
        for flip in flips[state::states]:
            outcome, seen = bench.trial(flip)
            found[flip.memory].setdefault(str(len(flip.bits)), Counter())[outcome] += 1
            if outcome in BAD:
                bad.append({"state": state} | seen)
            done += 1
            if done % 20 == 0:
                say(f"{done} of {len(flips)} flips, {time.monotonic() - began:.0f} s")
        bench.advance()
    return {
        "seed": seed,
        "each": each,
        "flips": done,
        "memories": {
            name: {
                "width": bench.memories[name].width,
                "depth": bench.memories[name].depth,
                **{kind: dict(sorted(counts.items())) for kind, counts in sorted(kinds.items())},
            }
            for name, kinds in found.items()
        },
        "bad": bad,
    }


def table(result: dict) -> str:
    """The result for people."""
    head = ["memory", "rows × bits", "flips", *Outcome]
    rows = [
        [
            name,
            f"{kinds['depth']} × {kinds['width']}",
            kind,
            *(str(kinds[kind].get(outcome, "·")) for outcome in Outcome),
        ]
        for name, kinds in result["memories"].items()
        for kind in ("1", "2")
        if kind in kinds
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kelp_verif.endpoint.flip_campaign", description=__doc__
    )
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--states", type=int, default=4)
    parser.add_argument("--host", choices=HOSTS, default="plain", help="and what it is a host of")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", UnusedElaboratable)  # the inventory only looks at blocks
    result = campaign(
        bench=Bench(given.seed, HOSTS[given.host](given.seed)),
        each=given.each,
        seed=given.seed,
        only=given.only,
        states=given.states,
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    write_whole(build_root() / "flips.json", json.dumps(result, indent=1) + "\n")
    print(table(result))
    return int(bool(result["bad"]))


if __name__ == "__main__":
    sys.exit(main())
