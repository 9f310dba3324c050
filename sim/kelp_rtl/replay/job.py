# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What is replayed, the device that is told to, and what came of it: common to both ways of
replaying."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from kelp_golden.endpoint import Endpoint
from kelp_golden.setup import SESSION, Setup
from kelp_spec.address import AddressMap
from kelp_spec.metadata import Answer, Op, Outcome, PrefetchSource
from kelp_spec.registers import COUNTERS, QUEUE_COUNTERS, RegisterMap

from ..device import Driver, FlashTiming, RunRules, UncheckedDriver, Waves
from ..program import PARTIAL, READ, WRITE, Program, Response
from ..program import Result as Answers
from ..records import Commits

__all__ = [
    "CHUNK",
    "EVERY",
    "EXAMPLES",
    "KINDS",
    "PLANTS",
    "Device",
    "Findings",
    "Job",
    "Replay",
    "ReplayError",
]

#: Faults put into what the device reported, to show that the comparison sees them: another victim,
#: a commit record left out, a data bit turned over.
PLANTS = ("victim", "commit", "bit")
CHUNK = 1 << 17  #: requests of one program at most, by whole steps: arrays stay small
EVERY = 20_000  #: cycles between two looks at the commit stream
EXAMPLES = 20  #: mismatches described; all are counted
#: Answer by program.Response
KINDS = np.array([Answer.NONE, Answer.DATA, Answer.DATA, Answer.NXM, Answer.CMP], np.uint8)
# Not counted by the golden endpoint, which has no part that would; and candidates that never became
# an op.
_UNCOUNTED = (
    "hint_lines",
    "hint_updates",
    "sweeps",
    *(f"prefetch_dropped_{s.name.lower()}" for s in PrefetchSource if s),
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """Line requests in order, arrays of one entry each, and the device they are for."""

    setup: Setup
    write: np.ndarray
    queue: np.ndarray
    page: np.ndarray
    kv: np.ndarray
    line: np.ndarray
    row: np.ndarray  #: of `lines`: what a write sends
    step: np.ndarray  #: −1 in the history
    lines: np.ndarray  #: uint8 [rows, 64]
    #: by step: hint lines that the host writes when it is over
    hints: Sequence[Sequence[bytes]] = ()
    seed: int = 1
    flash: FlashTiming = FlashTiming()  #: at full speed
    plant: str | None = None  #: one of PLANTS
    waves: Path | None = None
    checked: bool = True  #: the stream rule is asserted in the RTL

    @property
    def history(self) -> int:
        return int(np.searchsorted(self.step, 0))

    @cached_property
    def kv_line(self) -> np.ndarray:
        return self.kv.astype(np.int64) * self.setup.config.half_lines + self.line

    def chunks(self, size: int = CHUNK) -> list[tuple[int, int]]:
        """(first, end) of parts of whole steps, the history by itself; more than `size` requests
        only where one step has them."""
        found, first = [(0, self.history)] if self.history else [], self.history
        ends = np.append(np.flatnonzero(np.diff(self.step)) + 1, len(self.step))
        ends = ends[ends > first]
        for n, end in enumerate(ends.tolist()):
            if n + 1 == len(ends) or ends[n + 1] - first > size:
                found.append((first, end))
                first = end
        return found

    def program(self, first: int, end: int) -> tuple[Program, np.ndarray]:
        """The requests as the driver takes them, and which of them are line requests.

        A step begins with the hint lines of the step before, then the register write that advances
        the session's step. A layer's requests are one group: they are issued when the layer before
        has been answered.
        """
        c, part = self.setup.config, slice(first, end)
        write, step, queue = (
            self.write[part],
            self.step[part].astype(np.int64),
            self.queue[part].astype(np.int64),
        )
        address = (
            ((queue << c.page_bits | self.page[part]) << 1 | self.kv[part]) << c.half_line_bits
            | self.line[part]
        ) << 6
        groups = self.setup.layers + 2
        group = np.where(step < 0, -1, step * groups + 2 + queue // self.setup.kv_heads)
        name, value = self.setup.advance()
        offset = RegisterMap(c).by_name[name].offset
        row = np.zeros(8, "<u8")
        row[offset % 64 // 8] = value
        # What is put in before the requests at these places: (opcode, address, group, row of data,
        # byte enable).
        places, extra, rows = [], [], [row.tobytes()]
        for at in np.flatnonzero(np.diff(step, prepend=step[0] - (step[0] >= 0))).tolist():
            begun = int(step[at])
            for line in self.hints_after(begun - 1):
                places.append(at)
                extra.append(
                    (
                        WRITE,
                        AddressMap(c).hint_base,
                        begun * groups,
                        len(self.lines) + len(rows),
                        (1 << 64) - 1,
                    )
                )
                rows.append(line)
            places.append(at)
            extra.append(
                (
                    PARTIAL,
                    AddressMap(c).register_base + offset // 64 * 64,
                    begun * groups + 1,
                    len(self.lines),
                    0xFF << offset % 64,
                )
            )
        columns = list(zip(*extra, strict=True)) or [()] * 5

        def put(array, column, dtype):
            return np.insert(array.astype(dtype), places, np.array(columns[column], dtype))

        program = Program(
            opcode=put(np.where(write, WRITE, READ), 0, np.uint8),
            address=put(address, 1, np.uint64),
            group=put(group, 2, np.int64),
            data=np.concatenate(
                [self.lines, np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 64)]
            ),
            data_index=put(np.where(write, self.row[part], -1), 3, np.int64),
            byte_enable=put(np.full(end - first, (1 << 64) - 1, np.uint64), 4, np.uint64),
        )
        return program, np.flatnonzero(np.insert(np.ones(end - first, bool), places, False))

    def hints_after(self, step: int) -> Sequence[bytes]:
        return self.hints[step] if 0 <= step < len(self.hints) else ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Replay:
    """What came of a job. Counters and latencies are the device's own registers, of the replay
    without its history."""

    mismatches: int
    examples: tuple[str, ...]
    requests: int
    counters: dict[str, int]
    hit_latency: np.ndarray
    miss_latency: np.ndarray
    cycles: int
    step_cycles: np.ndarray  #: [steps]: from the last answer of the step before to its own last
    evaluated: int  #: cycles simulated one by one
    #: wall-clock time of the replay, comparison included, without build, set-up and history
    seconds: float
    flash_read_bytes: int
    flash_write_bytes: int
    golden: Endpoint
    ops: dict[str, int]  #: ops decided in the replay, by name


class ReplayError(RuntimeError):
    """A replay could not be carried out; the message is one line."""


class Findings:
    """Mismatches of one replay."""

    def __init__(self):
        self.count, self.examples = 0, []

    def add(self, text: str, count: int = 1) -> None:
        self.count += count
        if len(self.examples) < EXAMPLES:
            self.examples.append(text)


class Device:
    """A driver that has been programmed, and what its registers said when the replay began."""

    def __init__(self, job: Job, **timing):
        self.job, self.found = job, Findings()
        self.driver = (Driver if job.checked else UncheckedDriver)(
            job.setup.config,
            seed=job.seed,
            waves=job.waves and Waves(job.waves, dumping=False),
            **timing,
            rules=RunRules(in_order=True, record_hot_reads=True),
        )
        for name, value in job.setup.registers():
            self.driver.write64(name, value)
        state = self.driver.read_fields(f"s{SESSION}_state")
        if not state["open"] or state["refused"]:
            raise ReplayError(f"the device refused the session: {state}")
        self._planted = job.plant is None
        self._step_ends: list[int] = []

    def begin(self) -> None:
        """The history is written; what follows is the replay, in the waves too."""
        self.driver.dump(True)
        self._counters, self._latency = self.driver.counters(), self.driver.latency_histograms()
        self._counts, self._time, self._ops = self.driver.counts(), self.driver.time, {}
        self._began = time.perf_counter()

    def count(self, commits: Commits) -> None:
        """Ops of the replay, by kind."""
        for kind, n in enumerate(
            np.bincount(commits.result["op.kind"], minlength=len(Op)).tolist()
        ):
            self._ops[Op(kind).name] = self._ops.get(Op(kind).name, 0) + n

    def clock(self, first: int, end: int, answered: np.ndarray) -> None:
        """When each step's last answer came; `answered` are the cycles of the answers to the
        replay's requests first … end − 1, whole steps."""
        starts = np.flatnonzero(np.diff(self.job.step[first:end], prepend=-1))
        self._step_ends += np.maximum.reduceat(answered, starts).tolist()

    @property
    def step_cycles(self) -> np.ndarray:
        return np.diff(self._step_ends, prepend=self._time)

    def stream(self, commits: Commits, replaying: bool) -> tuple[np.ndarray, np.ndarray]:
        """(types, index) of the records in order, with a planted fault among them where one is
        due."""
        types, index = commits.sequence()
        if replaying and not self._planted:
            done = np.flatnonzero(
                (commits.result["op.kind"] == Op.CLAIM)
                & (commits.result["outcome"] == Outcome.DONE)
            )
            if self.job.plant == "victim" and len(done):
                commits.result["op.page"][done[0]] ^= 1
                self._planted = True
            elif self.job.plant == "commit" and commits.result["changed"].any():
                changed = np.flatnonzero(commits.result["changed"])
                keep = (types != 0) | (index != changed[len(changed) // 2])
                types, index, self._planted = types[keep], index[keep], True
        return types, index

    def data(self, answers: Answers, replaying: bool) -> np.ndarray:
        """uint16 [requests, 32]."""
        if replaying and not self._planted and self.job.plant == "bit":
            reads = np.flatnonzero(answers.response == Response.DATA)
            if len(reads):
                answers.data[reads[len(reads) // 2], 21] ^= 8
                self._planted = True
        return answers.data.view("<u2")

    def registers(self, golden: Endpoint, also: dict[str, int]) -> dict[str, int]:
        """Compares every counter register with the golden model's (and with `also`); the totals."""
        driver, setup = self.driver, self.job.setup
        totals = driver.counters()
        for name, wanted in (golden.counters | also).items():
            if (name in also or name not in _UNCOUNTED) and totals[name] != wanted:
                self.found.add(f"counter {name}: device {totals[name]}, golden {wanted}")
        kept = [
            name for name, _ in QUEUE_COUNTERS if f"s{SESSION}_queue_{name}" in driver.registers
        ]
        for queue in range(setup.queues):
            driver.write64(f"s{SESSION}_queue", driver.pack(f"s{SESSION}_queue", queue=queue))
            for name, value in zip(
                kept,
                driver.read_registers([f"s{SESSION}_queue_{name}" for name in kept]),
                strict=True,
            ):
                if value != golden.queue_counters[name][queue]:
                    self.found.add(
                        f"counter {name} of queue {queue}: device {value}, golden "
                        + f"{golden.queue_counters[name][queue]}"
                    )
        return totals

    def finish(self, golden: Endpoint, also: dict[str, int]) -> Replay:
        """After the last answer and the last comparison."""
        seconds, cycles, counts = (
            time.perf_counter() - self._began,
            self.driver.time - self._time,
            self.driver.counts(),
        )
        latency = self.driver.latency_histograms()
        totals = self.registers(golden, also)
        if not self._planted:
            raise ReplayError(f"plant = {self.job.plant!r}: the replay gave no occasion for it")
        self.driver.close()
        job, found = self.job, self.found
        return Replay(
            mismatches=found.count,
            examples=tuple(found.examples),
            requests=len(job.step) - job.history,
            counters={name: totals[name] - self._counters[name] for name, _ in COUNTERS},
            hit_latency=np.subtract(latency["hit"], self._latency["hit"]),
            miss_latency=np.subtract(latency["miss"], self._latency["miss"]),
            cycles=cycles,
            step_cycles=self.step_cycles,
            evaluated=counts["evaluated"] - self._counts["evaluated"],
            seconds=seconds,
            flash_read_bytes=counts["flash_read_bytes"] - self._counts["flash_read_bytes"],
            flash_write_bytes=counts["flash_write_bytes"] - self._counts["flash_write_bytes"],
            golden=golden,
            ops=self._ops,
        )
