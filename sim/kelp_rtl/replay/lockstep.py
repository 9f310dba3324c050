# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Lock-step replay: device and golden model each on its own, one request at a time, equal in
everything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kelp_golden.endpoint import Endpoint
from kelp_golden.lines import POISONED, ZEROS
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.setup import SESSION
from kelp_spec.metadata import Answer, Op, ScoreEvent
from kelp_spec.policy import Policy

from ..device import FlashTiming, MemoryTiming
from ..program import Response
from .job import CHUNK, EVERY, EXAMPLES, KINDS, Device, Findings, Job, Replay
from .rows import (
    ENTRY,
    OPS,
    SCORES,
    describe,
    device_entries,
    device_ops,
    device_scores,
    golden_op,
    mask_ops,
)

__all__ = ["lockstep"]

# What is waited for in lock-step is time alone; the shorter, the sooner the next request.
_MEMORY = MemoryTiming(latency=4, write_latency=2)
_FLASH = FlashTiming(latency=100, write_latency=100)


class _Twin:
    """The golden model in lock-step, on its own: carries out the job's requests and writes down
    what it did."""

    def __init__(self, job: Job):
        setup = job.setup
        self.job, self.golden = job, setup.endpoint()
        self.lockstep = LockStep(
            self.golden,
            evict_target=max(1, setup.low_water, setup.high_water),
            enable=setup.prefetch,
            log=self._log,
        )
        self.golden.on_score = lambda *score: self.scores.append(score)
        self._bytes = job.lines.tobytes()
        self._step = -1
        self._clear()
        self.lockstep.open(SESSION, setup.descriptor)

    def _clear(self) -> None:
        self.ops, self.entries, self.scores = [], [], []

    def _log(self, result) -> None:
        self.ops.append(golden_op(result))
        op = result.op
        if result.use:
            f = self.golden.frames[result.frame]
            self.entries.append(
                (
                    op.kind,
                    result.frame,
                    f.in_use,
                    f.dirty,
                    f.redirty,
                    f.used,
                    f.source,
                    f.squeue,
                    f.page,
                    f.valid,
                    f.poison,
                )
            )
        if op.kind == Op.SCAN:
            golden = self.golden
            kelp = golden.policies[op.squeue].policy == Policy.KELP
            profile = golden.kelp.scores.profile(op.squeue, op.page, allocated=False) if kelp else 0
            self.scores.append(
                (
                    ScoreEvent.SCAN,
                    op.squeue,
                    op.page,
                    golden.scores[op.squeue * golden.pages + op.page],
                    profile,
                )
            )

    def run(
        self, first: int, end: int, on_step: Callable[[], None]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Requests first … end − 1: of each answer its kind (Answer), whether it is poison, and the
        data, uint16 [n, 32]."""
        job, part = self.job, slice(first, end)
        kinds, versions = [], []
        columns = (job.write, job.queue, job.page, job.kv_line, job.row, job.step)
        for write, queue, page, kv_line, row, step in zip(
            *(c[part].tolist() for c in columns), strict=True
        ):
            if step != self._step:
                if self._step >= 0:
                    for line in job.hints_after(self._step):
                        self.lockstep.hint(line)
                    on_step()
                self._step = step
                self.lockstep.step(SESSION)
            origin = (self._bytes[64 * row : 64 * row + 64], -1) if write else None
            answer = self.lockstep.request(
                TrackerOp(
                    Op.WRITE if write else Op.READ,
                    SESSION,
                    queue,
                    page,
                    kv_line,
                    int(write),
                    origin=origin,
                )
            )
            kinds.append(answer.kind)
            versions.append(POISONED if answer.poison else answer.version)
        versions = np.array(versions)
        poison = versions == POISONED
        return np.array(kinds), poison, self.golden.lines.resolve(np.where(poison, ZEROS, versions))

    def rows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ops, entries and scores since the last call."""
        found = tuple(
            np.array(
                rows, object if names is ENTRY and self.golden.config.page_lines > 62 else np.int64
            ).reshape(len(rows), len(names))
            for rows, names in ((self.ops, OPS), (self.entries, ENTRY), (self.scores, SCORES))
        )
        self._clear()
        return found


def _compare(found: Findings, what: str, names, device: np.ndarray, golden: np.ndarray) -> None:
    """Counts the rows that differ; rows that only one side has are differences too."""
    both = min(len(device), len(golden))
    wrong = np.flatnonzero((device[:both] != golden[:both]).any(axis=1))
    for at in wrong[:EXAMPLES].tolist():
        where = f"{Op(int(golden[at, 0])).name} " if names is not SCORES else ""
        found.add(
            f"{what} {at}: {where}{describe(names, device[at].tolist(), golden[at].tolist())}", 0
        )
    if len(device) != len(golden):
        found.add(f"{what}s: device {len(device)}, golden {len(golden)}", 0)
    found.count += len(wrong) + abs(len(device) - len(golden))


def lockstep(
    job: Job,
    *,
    progress: Callable[[int], None] | None = None,
    on_begin: Callable[[Endpoint], None],
    on_step: Callable[[], None],
) -> Replay:
    """Replay one request at a time, each when the device is quiescent; the arguments are those of
    :func:`free_running`."""
    session = Device(job, memory=_MEMORY, flash=_FLASH)
    driver, found = session.driver, session.found
    twin = _Twin(job)
    for first, end in job.chunks(CHUNK // 4):
        replaying = first >= job.history
        if first == job.history:
            on_begin(twin.golden)
            session.begin()
        program, at = job.program(first, end)
        parts = []

        def look(done, cycle, first=first, end=end, parts=parts):
            parts.append(driver.take_commits())
            if progress is not None:
                progress(first + min(done, end - first))

        answers = driver.run(program, lockstep=True, progress=look, every=EVERY)
        parts.append(driver.take_commits())
        kinds, poison, data = twin.run(first, end, on_step)
        streams = []
        for commits in parts:
            types, index = session.stream(commits, replaying)
            if replaying:
                session.count(commits)
            streams.append(
                (
                    *device_ops(commits, types, index),
                    device_entries(commits, types, index),
                    device_scores(commits, types, index),
                )
            )
        ops, hot, entries, scores = (
            np.concatenate([stream[k] for stream in streams]) for k in range(4)
        )
        golden_ops, golden_entries, golden_scores = twin.rows()
        if not first and (opened := np.flatnonzero(ops[:, 0] == Op.OPEN)).size:
            # What the set-up did by registers comes before the golden model's first op, its own
            # OPEN.
            ops, hot = ops[opened[0] :], hot[opened[0] :]
        length = min(len(ops), len(golden_ops))
        lane = np.zeros(len(golden_ops), bool)
        lane[:length] = hot[:length]
        _compare(found, "op", OPS, mask_ops(ops, hot), mask_ops(golden_ops, lane))
        _compare(found, "frame entry", ENTRY, entries, golden_entries)
        _compare(found, "score", SCORES, scores, golden_scores)
        got = session.data(answers, replaying)[at]
        response = answers.response[at]
        bad = (
            (KINDS[response] != kinds)
            | ((response == Response.POISON) != poison)
            | ((kinds == Answer.DATA) & (got != data).any(axis=1))
        )
        for i in np.flatnonzero(bad)[:EXAMPLES].tolist():
            device, golden = (
                f"{Response(int(response[i])).name} {got[i].tobytes().hex()}",
                f"{Answer(int(kinds[i])).name} {data[i].tobytes().hex()}",
            )
            found.add(f"answer to request {first + i}: device {device}, golden {golden}", 0)
        found.count += int(bad.sum())
    on_step()
    return session.finish(
        twin.golden,
        {
            "sweeps": twin.lockstep.evictor.sweeps,
            **{name: twin.golden.counters[name] for name in ("hint_lines", "hint_updates")},
        },
    )
