# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Free-running replay: the golden model judges the commit stream while the device goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kelp_golden.audit.stream import Audit, FrameRecord, ScoreRecord
from kelp_golden.endpoint import Endpoint
from kelp_golden.hints import HintAbsorber
from kelp_golden.setup import SESSION
from kelp_spec.metadata import Op, ScoreEvent

from ..program import Response
from ..program import Result as Answers
from ..records import Commits
from .job import EVERY, EXAMPLES, KINDS, Device, Job, Replay, ReplayError
from .rows import (
    ARGUMENTS,
    DECIDED,
    ENTRIES,
    FRAMED,
    OPS,
    SCORED,
    columns,
    device_ops,
    result_record,
)

__all__ = ["free_running", "resident_cycles"]

_MASS = [OPS.index(f"op.{name}") for name in ("squeue", "page", "mass")]
# looks at the commit stream that wait for the golden model before the simulation waits too
_BACKLOG = 16
# what the golden model raises where it is told what cannot be
_CANNOT_BE = (
    KeyError,
    IndexError,
    ValueError,
    RuntimeError,
    StopIteration,
    AttributeError,
    TypeError,
)


class _Judge:
    """The golden model beside a free-running device: takes commit records and answers in order."""

    def __init__(self, session: Device, on_step: Callable[[], None]):
        self.session, self.job, self.found = session, session.job, session.found
        self.golden = self.job.setup.endpoint()
        self.audit = Audit(
            self.job.setup.config,
            self.golden,
            {SESSION: self.job.setup.descriptor},
            self._request,
            keep=EXAMPLES,
            on_step=lambda session: on_step(),
        )
        self._first = self._next = self._end = 0
        self._bytes = self.job.lines.tobytes()
        self._lost = False
        # page masses pushed and not yet committed
        self._absorber, self._masses = HintAbsorber(self.job.setup.config), deque()

    def begin(self, first: int, end: int) -> None:
        """The job's requests first … end − 1 come next."""
        self._first, self._next, self._end = first, first, end
        part = slice(first, end)
        self._wanted = list(
            zip(
                self.job.write[part].tolist(),
                self.job.queue[part].tolist(),
                self.job.page[part].tolist(),
                self.job.kv_line[part].tolist(),
                strict=True,
            )
        )
        self._rows = self.job.row[part].tolist()
        for step in np.unique(self.job.step[part]).tolist():
            for line in self.job.hints_after(step - 1):
                self.golden.counters["hint_lines"] += 1
                masses = self._absorber.absorb(line, 0, self.golden.tracker.sessions)
                self.golden.counters["hint_updates"] += len(masses)
                self._masses.extend((op.squeue, op.page, op.mass) for op in masses)
        self.audit.begin(end - first)

    def _request(self, tag: int):
        # Requests are decided in the order in which they were accepted, which is the program's.
        at = self._next - self._first
        self._next += 1
        if not self._wanted[at][0]:
            return at, None, None
        row = self._rows[at] * 64
        return at, self._bytes[row : row + 64], -1

    def _lose(self, error: Exception) -> None:
        # The golden model met something that cannot be, given what was committed so far: what
        # follows would tell nothing.
        self._lost = True
        self.found.add(
            f"commit stream: the golden model cannot follow: {type(error).__name__}: {error}"
        )

    def take(self, commits: Commits, replaying: bool) -> None:
        """Records of the commit stream."""
        if self._lost:
            return
        types, index = self.session.stream(commits, replaying)
        if replaying:
            self.session.count(commits)
        self._check_order(commits, types, index)
        try:
            self._take(commits, types, index)
        except _CANNOT_BE as error:
            self._lose(error)

    def _check_order(self, commits, types, index) -> None:
        """Each demand op is the request that is due, whatever the device calls it."""
        rows, _ = device_ops(commits, types, index)
        for pushed in rows[rows[:, 0] == Op.MASS][:, _MASS].tolist():
            due = self._masses.popleft() if self._masses else None
            if tuple(pushed) != due:
                self.found.add(
                    f"mass of (squeue, page) {pushed[:2]}: {pushed[2]} was committed, {due} was due"
                )
        rows = rows[np.isin(rows[:, 0], (Op.READ, Op.WRITE))]
        seen = rows[:, [0, OPS.index("op.squeue"), OPS.index("op.page"), OPS.index("op.kv_line")]]
        part = slice(self._next, self._next + len(seen))
        write = self.job.write[part].astype(np.int64)
        due = np.stack(
            [
                np.where(write, Op.WRITE, Op.READ),
                self.job.queue[part],
                self.job.page[part],
                self.job.kv_line[part],
            ],
            axis=1,
        )
        wrong = np.flatnonzero((seen[: len(due)] != due).any(axis=1))
        if len(wrong) or len(due) < len(seen):
            at = int(wrong[0]) if len(wrong) else len(due)
            self.found.add(
                f"request {self._next + at}: op {seen[at].tolist()} was committed, "
                + f"{due[at].tolist() if at < len(due) else None} was due",
                max(1, len(wrong)),
            )

    def _take(self, commits, types, index) -> None:
        results, frames, scores = commits.result, commits.frame, commits.score
        ops, decided = columns(results, ARGUMENTS), columns(results, DECIDED)
        framed, entries = columns(frames, FRAMED), columns(frames, ENTRIES)
        scored = columns(scores, SCORED)
        hot, audit, read = frames.hot.tolist(), self.audit, int(Op.READ)
        order = list(zip(types.tolist(), index.tolist(), strict=True))
        at = 0
        while at < len(order):
            of, i = order[at]
            at += 1
            if of == 0:
                audit.result(result_record(ops[i], decided[i]))
            elif of == 2:
                if scored[i][0] != ScoreEvent.SCAN:
                    audit.score(ScoreRecord(*scored[i]))
            elif not (hot[i] and framed[i][0] == read):
                audit.frame(FrameRecord(hot[i], *framed[i], entries[i]))
            else:
                # Reads of the same page by the hot lane, one after another: most of all traffic, so
                # they are judged together.
                kind, entry, run = framed[i][:8] + framed[i][9:12], entries[i], [i]
                while at < len(order):
                    of, k = order[at]
                    if (
                        of != 1
                        or not hot[k]
                        or framed[k][:8] + framed[k][9:12] != kind
                        or entries[k] != entry
                    ):
                        break
                    run.append(k)
                    at += 1
                if audit.hot_reads(
                    self._next - self._first,
                    framed[i][7],
                    *framed[i][10:12],
                    [framed[k][12] for k in run],
                    framed[i][9],
                    entry,
                ):
                    self._next += len(run)
                else:
                    for k in run:
                        audit.frame(FrameRecord(True, *framed[k], entries[k]))

    def answers(self, answers: Answers, at: np.ndarray, replaying: bool) -> None:
        """The answers to the requests since `begin`; `at`: where among them the line requests
        are."""
        if self._lost:
            return
        if self._next != self._end:
            self.found.add(
                f"commit stream: {self._next - self._first} of {self._end - self._first} "
                + "requests were committed",
                abs(self._end - self._next),
            )
        data = self.session.data(answers, replaying)
        response = answers.response[at]
        try:
            self.audit.answers(KINDS[response], response == Response.POISON, data[at])
        except _CANNOT_BE as error:  # a line that by the commit stream nobody wrote
            self._lose(error)

    def finish(self) -> None:
        """All records and answers have come."""
        if not self._lost:
            self.audit.finish()
        if self._masses:
            self.found.add(
                f"{len(self._masses)} pushed masses were never committed", len(self._masses)
            )
        self.found.count += self.audit.count
        self.found.examples[:0] = map(
            str, self.audit.mismatches[: EXAMPLES - len(self.found.examples)]
        )


def free_running(
    job: Job,
    *,
    progress: Callable[[int], None] | None = None,
    on_begin: Callable[[Endpoint], None],
    on_step: Callable[[], None],
) -> Replay:
    """Replay at full speed.

    `progress` hears the line requests answered, history included; `on_begin` gets the golden
    endpoint when the history is over, `on_step` is told whenever a step of the replay has ended.
    The golden model works in a thread of its own while the simulation goes on.
    """
    session = Device(job, flash=job.flash)
    driver = session.driver
    begun = [False]

    def step_ended():
        # The first advance begins step 0; what ended before it is the history.
        if begun[0]:
            on_step()
        begun[0] = True

    judge = _Judge(session, step_ended)
    with ThreadPoolExecutor(1) as pool:
        waiting: deque = deque()

        def judged(task, *arguments):
            waiting.append(pool.submit(task, *arguments))
            while len(waiting) > _BACKLOG:
                waiting.popleft().result()

        def settle():
            driver.settle()
            judged(judge.take, driver.take_commits(), replaying)
            while waiting:
                waiting.popleft().result()

        replaying = False
        for first, end in job.chunks():
            if first == job.history:
                settle()
                on_begin(judge.golden)
                session.begin()
                replaying = True
            program, at = job.program(first, end)
            judged(judge.begin, first, end)

            def look(done, cycle, first=first, end=end, replaying=replaying):
                judged(judge.take, driver.take_commits(), replaying)
                if progress is not None:
                    progress(first + min(done, end - first))

            answers = driver.run(program, progress=look, every=EVERY)
            if replaying:
                session.clock(first, end, answers.response_cycle[at])
            judged(judge.take, driver.take_commits(), replaying)
            judged(judge.answers, answers, at, replaying)
        settle()
        on_step()
        judge.finish()
    return session.finish(
        judge.golden, {name: judge.golden.counters[name] for name in ("hint_lines", "hint_updates")}
    )


def resident_cycles(job: Job, *, progress: Callable[[int], None] | None = None) -> np.ndarray:
    """[steps]: the cycles of each step of a job whose every page has a frame, at full speed, as
    `Replay.step_cycles` has them. Nothing is judged but that nothing was missed: ReplayError
    otherwise."""
    session = Device(job, flash=job.flash)
    driver = session.driver
    for first, end in job.chunks():
        if first == job.history:
            driver.settle()
            session.begin()
        program, at = job.program(first, end)

        def look(done, cycle, first=first, end=end):
            driver.take_commits()
            if progress is not None:
                progress(first + min(done, end - first))

        answers = driver.run(program, progress=look, every=EVERY)
        if first >= job.history:
            session.clock(first, end, answers.response_cycle[at])
    missed = driver.counters()["misses"]
    driver.close()
    if missed:
        raise ReplayError(f"{missed} accesses missed with everything resident")
    return session.step_cycles
