# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Replays the commit stream of a free-running endpoint and finds every decision that differs (spec
§9).

The commit stream gives the golden endpoint one thing only: the order of ops and their arguments.
Outcomes, words, frames, victims, scores and lines are computed here and compared. A flipped bit is
the one fact that the endpoint reports and the golden model takes (`corrected`, `uncorrected`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from kelp_spec.config import Config
from kelp_spec.metadata import Answer, Op, Outcome, PageState, ScoreEvent

from ..endpoint import Endpoint
from ..lines import POISONED, ZEROS
from ..ops import ABSENT_WORD, Word
from ..ops import Op as TrackerOp
from .sweeps import SweepAudit

__all__ = ["Audit", "Expected", "FrameRecord", "Mismatch", "ResultRecord", "ScoreRecord"]


#: The data path tells frames apart by so many low bits where memory erred (docs/design.md §4).
_ERROR_FRAMES = 1 << 6


@dataclass(slots=True)
class ResultRecord:
    """commit_result: the op's arguments, and what the endpoint decided."""

    op: TrackerOp
    tag: int
    outcome: int
    old: Word
    word: Word
    changed: int
    first: int
    frame: int
    pool: int
    miss: int
    corrected: int
    uncorrected: int


@dataclass(slots=True)
class FrameRecord:
    """commit_frame: the frame op, and the entry after it. `hot`: it came by the hot lane and has no
    ResultRecord."""

    hot: bool
    kind: int
    outcome: int
    use: int
    write: int
    partial: int
    poison: int
    answer: int
    ld_id: int
    tag: int
    frame: int
    squeue: int
    page: int
    kv_line: int
    entry: tuple  #: (in_use, dirty, redirty, used, source, squeue, page, valid, poison)


@dataclass(slots=True)
class ScoreRecord:
    """commit_score."""

    kind: int
    squeue: int
    page: int
    score: int
    profile: int  #: policy `kelp`: the profile entry at the page's distance


@dataclass(slots=True)
class Mismatch:
    """One difference: where (index in its stream), what, and both values."""

    where: str
    what: str
    device: object
    golden: object

    def __str__(self):
        return f"{self.where}: {self.what}: device {self.device}, golden {self.golden}"


@dataclass(slots=True)
class Expected:
    """Answer that a request must get: `kind` is an Answer; `version` names a line of
    `Endpoint.lines`."""

    kind: int
    version: int = ZEROS
    poison: bool = False


class Audit:
    """Feeds commit records to a golden endpoint.

    Parameters
    ----------
    config : Config
    endpoint : Endpoint
        Configured as the device was (`configure`, limits, low water).
    descriptors : dict
        session → ops.Session that an OPEN of it takes.
    requests : callable
        tag → (request index, data bytes, byte enable) of the request in flight under it, called
        once at its M3 op.
    on_step : callable, optional
        Called with the session before its step advances.

    Attributes
    ----------
    mismatches : list[Mismatch]
        The first `keep`; `count` counts all.
    spared : int
        Reads that were answered with poison although their lines were sound: memory erred in their
        frames meanwhile (docs/design.md §4).
    """

    def __init__(
        self,
        config: Config,
        endpoint: Endpoint,
        descriptors: dict,
        requests,
        *,
        keep: int = 100,
        on_step: Callable[[int], None] | None = None,
    ):
        self.config, self.endpoint, self.descriptors, self.requests, self.keep = (
            config,
            endpoint,
            descriptors,
            requests,
            keep,
        )
        self.on_step = on_step
        self.mismatches: list[Mismatch] = []
        self.count = self.spared = 0
        self.victims = 0
        # expected answers, and the frames of reads (else -1), by request index
        self._kinds, self._versions, self._frames = bytearray(), array("q"), array("i")
        # low bits of the frames in which memory erred, as the data path compares them
        self._erred: set[int] = set()
        self._in_flight: dict[int, tuple] = {}  # tag → (index, data, byte enable)
        self._scores: deque = deque()
        self._sweeps = SweepAudit(
            config,
            endpoint.queues,
            endpoint.tracker.sessions,
            lambda squeue: endpoint.policies[squeue].tau,
            endpoint.kelp,
        )
        self._seen = 0
        endpoint.on_score = lambda *score: self._scores.append(score)

    def begin(self, requests: int, *, beside: Iterable[int] = ()) -> None:
        """So many requests come next; their indices count from 0 again. Those of before must have
        been answered and compared. Those of `beside` are for no line, and get a Cmp."""
        self._kinds, self._versions = bytearray(requests), array("q", bytes(8 * requests))
        for index in beside:
            self._kinds[index] = Answer.CMP
        self._frames = array("i", (-1,)) * requests
        self._erred.clear()

    def _wrong(self, what, device, golden):
        self.count += 1
        if len(self.mismatches) < self.keep:
            self.mismatches.append(Mismatch(f"commit {self._seen}", what, device, golden))

    # - records ------------------------------------------------------------------------------------
    def result(self, record: ResultRecord) -> None:
        """One op that M3 decided."""
        self._seen += 1
        op, endpoint = record.op, self.endpoint
        kind = op.kind
        demand = kind in (Op.READ, Op.WRITE)
        request = None
        if demand or kind == Op.REPLAY:
            request = self.requests(record.tag) if demand else self._in_flight[record.tag]
            self._in_flight[record.tag] = request
            op.origin = (request[1], request[2])
        fault = 2 if record.uncorrected else 1 if record.corrected else 0
        if kind == Op.SCAN:
            self._scan(op, fault)
        elif kind == Op.STEP and self.on_step is not None:
            self.on_step(op.session)
        golden = endpoint.apply(
            op,
            fault=fault,
            descriptor=self.descriptors.get(op.session) if kind == Op.OPEN else None,
        )
        if kind == Op.CLOSE and endpoint.tracker.sessions[op.session].closing:
            self._sweeps.closing(op.session)
        if endpoint.kelp.refresh is not None:
            self._sweeps.left(endpoint.kelp.refresh)
            endpoint.kelp.refresh = None
        if record.outcome != golden.outcome:
            self._wrong(
                f"outcome of {op}", Outcome(record.outcome).name, Outcome(golden.outcome).name
            )
        if golden.reads and record.word != golden.word:
            self._wrong(f"page word after {op}", record.word, golden.word)
        if golden.reads and not record.uncorrected and record.old != golden.old:
            self._wrong(f"page word before {op}", record.old, golden.old)
        if record.first != golden.first:
            self._wrong(f"first touch of {op}", record.first, golden.first)
        takes_frame = (
            golden.use
            or kind in (Op.GRANT, Op.PREFETCH)
            and golden.outcome not in (Outcome.RETRY, Outcome.DROPPED)
        )
        if takes_frame and record.frame != golden.frame:
            self._wrong(f"frame of {op}", record.frame, golden.frame)
        if golden.outcome in (Outcome.MISSED, Outcome.PARKED) and record.miss != golden.miss:
            self._wrong(f"miss entry of {op}", record.miss, golden.miss)
        if kind == Op.CLAIM:
            self._tell(
                self._sweeps.claim(op.squeue, op.page, op.delta, golden.outcome == Outcome.DONE)
            )
            self.victims += golden.outcome == Outcome.DONE
        elif kind == Op.RELEASE:
            self._tell(self._sweeps.release(op.squeue, op.page))
        elif kind == Op.FLIP and golden.outcome != Outcome.RETRY:
            endpoint.tracker.return_miss(op.miss)
        if request is not None:
            self._expect(op, golden, request[0])

    def hot_reads(
        self,
        first: int,
        ld_id: int,
        squeue: int,
        page: int,
        kv_lines: list[int],
        frame: int,
        entry: tuple,
    ) -> bool:
        """READs of one page that came by the hot lane with nothing between them: :meth:`frame` of
        each in short. `first` is the first one's request.

        True when all are as they should be: hits that change nothing. Otherwise nothing is done;
        feed them to :meth:`frame` one by one.
        """
        endpoint, count = self.endpoint, len(kv_lines)
        session = endpoint.tracker.sessions[squeue // self.config.queues]
        f = endpoint.frames.frames[frame]
        lines = 0
        for line in kv_lines:
            lines |= 1 << line
        held = (f.in_use, f.dirty, f.redirty, f.used, f.source, f.squeue, f.page, f.valid, f.poison)
        usable = (
            page < session.used_pages
            and squeue % self.config.queues < session.used_queues
            and not session.k_only
            and ld_id == session.ld_id
        )
        usable = (
            usable and max(line % self.config.half_lines for line in kv_lines) < session.used_lines
        )
        if (
            held != entry
            or not usable
            or first + count > len(self._kinds)
            or endpoint.tracker.word(squeue, page).place != frame
        ):
            return False
        if not endpoint.read_again(squeue, page, lines, count):
            return False
        self._seen += count
        base, current = (
            (squeue * endpoint.pages + page) * self.config.page_lines,
            endpoint.lines.current,
        )
        self._kinds[first : first + count] = bytes((Answer.DATA,)) * count
        self._versions[first : first + count] = array(
            "q", [current(base + line) for line in kv_lines]
        )
        self._frames[first : first + count] = array("i", (frame,)) * count
        return True

    def frame(self, record: FrameRecord) -> None:
        """What the frame stage made of an op: the hot lane's own ops, or the one whose `result` was
        fed before."""
        if record.hot:
            self._seen += 1
            request = self.requests(record.tag)
            session = record.squeue // self.config.queues
            op = TrackerOp(
                record.kind,
                session=session,
                squeue=record.squeue,
                page=record.page,
                kv_line=record.kv_line,
                write=record.write,
                partial=record.partial,
                poison=record.poison,
                ld_id=record.ld_id,
                origin=(request[1], request[2]),
            )
            golden = self.endpoint.apply(op)
            if (golden.outcome, golden.changed, golden.frame) != (Outcome.HIT, 0, record.frame):
                self._wrong(
                    f"hot lane {op}",
                    (Outcome.HIT.name, 0, record.frame),
                    (Outcome(golden.outcome).name, golden.changed, golden.frame),
                )
            self._expect(op, golden, request[0])
        if record.kind == Op.ERROR:
            self._seen += 1
            self._erred.add(record.frame % _ERROR_FRAMES)
            if record.poison:
                self.endpoint.memory_error(record.frame, record.kv_line)
        if record.use:
            f = self.endpoint.frames[record.frame]
            held = (
                int(f.in_use),
                int(f.dirty),
                int(f.redirty),
                int(f.used),
                f.source,
                f.squeue,
                f.page,
                f.valid,
                f.poison,
            )
            if f.in_use and record.entry != held or record.entry[0] != held[0]:
                self._wrong(
                    f"frame {record.frame} after {Op(record.kind).name} "
                    + f"{Outcome(record.outcome).name}",
                    record.entry,
                    held,
                )

    def score(self, record: ScoreRecord) -> None:
        """A score as it was written (SCAN records are the sweep's reads and are judged with their
        CLAIM)."""
        if record.kind == ScoreEvent.SCAN:
            return
        if not self._scores:
            self._wrong("score without an op", record, None)
            return
        golden = self._scores.popleft()
        if golden != (record.kind, record.squeue, record.page, record.score, record.profile):
            self._wrong("score", record, golden)

    def finish(self) -> None:
        """After the last record: everything that the golden model did must have been committed."""
        self._tell(self._sweeps.rest())
        if self._scores:
            self._wrong("scores never written", 0, len(self._scores))

    # - answers ------------------------------------------------------------------------------------
    def answers(self, kind: np.ndarray, poison: np.ndarray, data: np.ndarray) -> int:
        """Compare the host's answers to the requests since `begin`: kind (Answer.DATA, NXM or CMP),
        poison flag, uint16[n, 32] data (of reads). Every ERROR of their frames must have been fed.

        Returns the number of unequal answers.
        """
        wanted_kind = np.frombuffer(self._kinds, np.uint8)
        versions = np.frombuffer(self._versions, np.int64)
        wanted_poison = versions == POISONED
        read = wanted_kind == Answer.DATA
        golden = self.endpoint.lines.resolve(np.where(read & ~wanted_poison, versions, ZEROS))
        bad = (
            (wanted_kind != kind)
            | (wanted_poison != poison)
            | (read & (golden != data).any(axis=1))
        )
        if self._erred:
            frames = np.frombuffer(self._frames, np.int32)
            spared = np.isin(frames % _ERROR_FRAMES, list(self._erred)) & (frames >= 0)
            spared &= (wanted_kind == kind) & poison & ~wanted_poison & read
            self.spared += int(spared.sum())
            bad &= ~spared
        for i in np.flatnonzero(bad)[: self.keep].tolist():
            self._wrong(
                f"answer to request {i}",
                (Answer(int(kind[i])).name, bool(poison[i]), data[i].tobytes().hex()),
                (
                    Answer(int(wanted_kind[i])).name,
                    bool(wanted_poison[i]),
                    golden[i].tobytes().hex(),
                ),
            )
        self.count += max(0, int(bad.sum()) - self.keep)
        return int(bad.sum())

    def _expect(self, op, golden, index):
        if golden.answer:
            self._kinds[index] = (
                Answer.CMP
                if golden.answer == Answer.CMP
                else Answer.NXM
                if golden.answer == Answer.NXM
                else Answer.DATA
            )
            self._versions[index] = POISONED if golden.answer == Answer.POISON else ZEROS
        elif golden.outcome not in (Outcome.MISSED, Outcome.PARKED):
            self._kinds[index] = Answer.CMP if op.write else Answer.DATA
            self._versions[index] = ZEROS if op.write else self.endpoint.version
            if not op.write:
                self._frames[index] = golden.frame

    def _scan(self, op, fault):
        word = self.endpoint.tracker.words.get(op.squeue * self.config.pages + op.page, ABSENT_WORD)
        if fault == 2:
            word = word._replace(state=int(PageState.LOST), pinned=0)
        self._tell(
            self._sweeps.scan(
                op.squeue,
                op.page,
                op.slot,
                word.state,
                word.last_step,
                word.pinned,
                self.endpoint.scores[op.squeue * self.config.pages + op.page],
            )
        )

    def _tell(self, wrong):
        if wrong:
            self._wrong("eviction", wrong, "")
