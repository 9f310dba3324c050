# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The golden endpoint: executes ops in the order of stage M3 and keeps everything the device is
(docs/design.md §1).

:class:`Endpoint` joins the tracker, the frame table, queue state, scores, counters and the hosts'
lines. It does not decide *which* op comes next: `lockstep.py` drives it by the rule of spec §9,
`audit.py` by the commit stream of a free-running endpoint.
"""

from __future__ import annotations

from array import array

from kelp_spec.config import Config
from kelp_spec.formats import Format
from kelp_spec.geometry import StoredPage
from kelp_spec.metadata import (
    Answer,
    DataOp,
    MissKind,
    Op,
    Outcome,
    PageState,
    PrefetchSource,
    ScoreEvent,
    ScoreSource,
)
from kelp_spec.policy import Policy
from kelp_spec.registers import COUNTERS, QUEUE_COUNTERS

from . import arithmetic
from .eviction import QueueState
from .frame_table import FrameTable
from .kelp_policy import KelpPolicy
from .lines import POISONED, ZEROS, Lines
from .ops import Op as TrackerOp
from .ops import QueueConfig, Result, Session
from .tables import Tables
from .tracker import Tracker

__all__ = ["Endpoint", "QueuePolicy", "Words"]

READ, WRITE, REPLAY, FILL, FLIP, CLAIM, RELEASE, SCRUB, RECOVER, PREFETCH, LOOK = (
    int(o)
    for o in (
        Op.READ,
        Op.WRITE,
        Op.REPLAY,
        Op.FILL,
        Op.FLIP,
        Op.CLAIM,
        Op.RELEASE,
        Op.SCRUB,
        Op.RECOVER,
        Op.PREFETCH,
        Op.LOOK,
    )
)
HIT, ALLOCATED, MISSED, PARKED, DONE, VOID, ORPHAN, ZERO, REFUSED = (
    int(o)
    for o in (
        Outcome.HIT,
        Outcome.ALLOCATED,
        Outcome.MISSED,
        Outcome.PARKED,
        Outcome.DONE,
        Outcome.VOID,
        Outcome.ORPHAN,
        Outcome.ZERO,
        Outcome.REFUSED,
    )
)
RESIDENT = int(PageState.RESIDENT)
_FETCHED = int(PageState.COLD), int(PageState.FETCHING)
_ACCESSED = (HIT, ALLOCATED, MISSED, PARKED)
_NOWHERE = (int(PageState.ABSENT), int(PageState.LOST))
EVICTED_SOON = 16  #: steps within which a miss counts against the eviction that caused it


class QueuePolicy:
    """A queue's score and recency constants; `tau` and `idle` are (m, sh) with the signed shift.
    Policy 2 is `policy` 1 with `tables`."""

    __slots__ = (
        *("alpha", "mass_shift", "source", "tau", "idle", "window", "policy", "budget"),
        "tables",
    )

    def __init__(
        self,
        alpha=26,
        mass_shift=0,
        source=0,
        tau=(48409, 9),
        idle=(40504, 2),
        window=0,
        policy=0,
        budget=0,
    ):
        self.alpha, self.mass_shift, self.source, self.tau, self.idle = (
            alpha,
            mass_shift,
            source,
            tau,
            idle,
        )
        self.window, self.budget = window, budget
        self.policy, self.tables = min(policy, Policy.KELP), policy > Policy.KELP


class Words:
    """Page words and scores as the evictor reads them: flat arrays by squeue · pages + page, kept
    in step with the tracker's words."""

    __slots__ = ("state", "last_step", "pinned", "score")

    def __init__(self, page_words: int):
        self.state, self.pinned = array("B", bytes(page_words)), array("B", bytes(page_words))
        self.last_step, self.score = (
            array("I", bytes(4 * page_words)),
            array("I", bytes(4 * page_words)),
        )


class Endpoint:
    """State of one device.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    tracker, frames, queues, scores, lines
        The parts; `scores` is a flat array by squeue · pages + page.
    counters : dict[str, int]
        Totals by the names of `kelp_spec.registers.COUNTERS`.
    queue_counters : dict[str, list[int]]
        By squeue, all names of `QUEUE_COUNTERS`.
    """

    def __init__(self, config: Config):
        self.config = config
        self.pages = config.pages
        self.tracker = Tracker(config)
        self.frames = FrameTable(config)
        self.queues = QueueState(config)
        self.kelp = KelpPolicy(config)
        #: what choices have taught; None without `config.select_tables`
        self.tables = self.kelp.tables = Tables(config) if config.select_tables else None
        self.words = Words(config.page_words)
        self.scores = self.words.score
        self.lines = Lines()
        self.policies = [QueuePolicy() for _ in range(config.squeues)]
        self.counters = {name: 0 for name, _ in COUNTERS}
        self.queue_counters = {name: [0] * config.squeues for name, _ in QUEUE_COUNTERS}
        self.misses: list = [None] * config.misses  # (kind, squeue, page, source) of each entry
        self.cold: dict[int, tuple[int, int]] = {}  # page → (valid, poison) as flash has them
        #: page → (lines of a token, codes), where they hold for the page's keys (docs/select.md);
        #: empty without `config.select`
        self.summaries: dict = {}
        self._claims: dict = {}  # page → what its latest CLAIM took
        #: Called with (ScoreEvent, squeue, page, new word, profile entry) for every score written;
        #: the profile entry is 0 under policy 0.
        self.on_score = None
        #: Called with (PrefetchSource, useful) when a prefetch is settled, and with the source when
        #: a demand met it while fetching.
        self.on_usage = self.on_late = None
        #: Of the last op: how its line was met (frame_table.LineAccess) or None, the version that a
        #: READ or REPLAY returns, and what a CLAIM took.
        self.access = self.version = self.claim = None
        self._sources = [s.name.lower() for s in PrefetchSource]

    def configure(self, squeue: int, config: QueueConfig, policy: QueuePolicy) -> None:
        """One queue's configuration, as the OPEN walk and APPLY write it."""
        self.tracker.configure(squeue, config)
        self.policies[squeue] = policy
        self.queues.configure(squeue, config.pool, policy.budget, policy.policy, policy.tables)

    def memory_error(self, frame: int, offset: int) -> None:
        """Memory lost DRAM line `offset` of a frame: host lines that have payload or scale in it
        are poisoned."""
        f, half = self.frames[frame], self.config.half_lines
        word = self.tracker.word(f.squeue, f.page)
        session = self.tracker.sessions[f.squeue // self.config.queues]
        stored = StoredPage(
            Format(word.format_k), Format(word.format_v), session.used_lines, bool(session.k_only)
        )
        lines = 0
        for kv in range(1 if session.k_only else 2):
            scaled = Format(word.format_v if kv else word.format_k).scale_bytes
            for line in range(session.used_lines):
                place = stored.place(kv, line)
                if place.offset == offset or scaled and place.scale_offset == offset:
                    lines |= 1 << kv * half + line
        self.frames.lose(frame, lines)

    # - one op -------------------------------------------------------------------------------------
    def apply(self, op: TrackerOp, *, fault: int = 0, descriptor: Session | None = None) -> Result:
        """Execute one op everywhere. `access`, `version` and `claim` tell what the frame stage made
        of it."""
        self.access = self.version = self.claim = None
        kind = op.kind
        if op.partial and kind == WRITE and op.origin is not None:
            # A write of no byte changes nothing.
            op.no_memory |= not op.origin[1] and not op.poison
        result = self.tracker.step(op, fault=fault, descriptor=descriptor)
        old, word = result.old, result.word
        if result.changed:
            at, words = op.squeue * self.pages + op.page, self.words
            words.state[at], words.last_step[at], words.pinned[at] = word[0], word[4], word[5]
            if old[0] != word[0] or result.uncorrected:
                asks = kind == WRITE or op.partial
                self.queues.observe(op.squeue, op.page, old[0], word[0], kind <= 2, asks)
                if self.tables is not None and (old[0], word[0]) == _FETCHED:
                    self.tables.spend(op.session)
        if result.score and kind != Op.SCAN:
            self._score(op, result)
        if kind <= 2:
            self._demand(op, result)
        elif kind == Op.OPEN:
            self._open(op, result)
        else:
            self._other(op, result)
        return result

    def _open(self, op, result):
        """A session begins with queue counters of 0: its owner may not read what another's did."""
        if result.outcome == DONE:
            first = op.session * self.config.queues
            for counts in self.queue_counters.values():
                counts[first : first + self.config.queues] = [0] * self.config.queues
            self.kelp.opened(op.session)
            if self.tables is not None:
                self.tables.opened(op.session)

    def read_again(self, squeue: int, page: int, lines: int, count: int) -> bool:
        """`count` more READs of a page that this step has touched, of the lines in the bit set
        `lines`: sound hits, which change nothing but their counter.

        False, and nothing done, where one of them would be anything else. It is :meth:`apply` of
        each, at once.
        """
        word = self.tracker.words.get(squeue * self.pages + page)
        session = self.tracker.sessions[squeue // self.config.queues]
        if (
            word is None
            or word[0] != RESIDENT
            or word[4] != session.step
            or not session.open
            or session.closing
        ):
            return False
        frame = self.frames.frames[word[1]]
        if frame.valid & lines != lines or frame.poison & lines or frame.source and not frame.used:
            return False
        self.counters["reads"] += count
        return True

    def _score(self, op, result):
        at = op.squeue * self.pages + op.page
        policy = self.policies[op.squeue]
        event, profile = result.score, 0
        if event == ScoreEvent.SCRUB:
            self.kelp.scores.scrubbed(op.session, op.squeue, op.page)
            return
        if policy.policy == Policy.KELP:
            step, scores = self.tracker.sessions[op.session].step, self.kelp.scores
            if event == ScoreEvent.INIT:
                score = scores.allocate(op.session, op.squeue, op.page, step)
            elif event == ScoreEvent.TOUCH:
                score = scores.touch(
                    self.scores[at], op.session, op.squeue, op.page, step, result.gap
                )
            else:
                return
            profile = scores.profile(op.squeue, op.page, allocated=event == ScoreEvent.INIT)
        elif event == ScoreEvent.INIT:
            # Distances of policy `kelp`, which the queue may have later, are from it.
            self.kelp.scores.newest[op.squeue] = op.page
            score = arithmetic.initial(policy.alpha)
        elif event == ScoreEvent.TOUCH:
            if policy.source != ScoreSource.OBSERVED:
                return
            score = arithmetic.touch(self.scores[at], result.gap, policy.alpha, *policy.idle)
        elif policy.source == ScoreSource.PUSHED:
            score = arithmetic.mass(self.scores[at], op.mass, policy.mass_shift, policy.alpha)
        else:
            return
        self.scores[at] = score
        if self.on_score is not None:
            self.on_score(event, op.squeue, op.page, score, profile)

    def _demand(self, op, result):
        counters, per_queue = self.counters, self.queue_counters
        outcome = result.outcome
        if outcome == REFUSED:
            counters["refused"] += 1
            return
        if op.no_memory:
            return
        counters["writes" if op.write else "reads"] += 1
        if result.first:
            if self.policies[op.squeue].policy == Policy.KELP and outcome in _ACCESSED:
                step = self.tracker.sessions[op.session].step
                self.kelp.access(op.session, op.squeue, step)
            counters["accesses"] += 1
            if result.old[0] in _NOWHERE:
                counters["allocations"] += 1
                per_queue["allocations"][op.squeue] += 1
            elif outcome == HIT:
                counters["hits"] += 1
                per_queue["hits"][op.squeue] += 1
            else:
                counters["misses"] += 1
                per_queue["misses"][op.squeue] += 1
        if outcome == HIT:
            self._line(op, result, False)
        elif outcome == ALLOCATED:
            self.frames.start(result.frame, op.squeue, op.page, ruined=bool(result.lost))
            if not result.lost:
                self.lines.forget(self._page_keys(op))
            self._line(op, result, False)
        elif outcome == PARKED:
            self._late(result)
        elif outcome == MISSED:
            kind = MissKind.DEMAND if result.old[0] == PageState.COLD else MissKind.ALLOCATE
            self.misses[result.miss] = (kind, op.squeue, op.page, 0)
            if kind == MissKind.DEMAND and result.first:
                span = (1 << self.config.place_bits) - 1
                if (result.word.last_step - result.old.place) & span < EVICTED_SOON:
                    counters["evicted_missed"] += 1
                    per_queue["evicted_missed"][op.squeue] += 1

    def _late(self, result):
        entry = self.misses[result.miss]
        if entry is not None and entry[3]:
            self.counters["prefetch_late_" + self._sources[entry[3]]] += 1
            if self.on_late is not None:
                self.on_late(entry[3])
            self.misses[result.miss] = (entry[0], entry[1], entry[2], 0)

    def _line(self, op, result, late):
        """A request meets its frame: what is answered, and which version of the line it reads or
        makes."""
        key = (op.squeue * self.pages + op.page) * self.config.page_lines + op.kv_line
        half = op.kv_line >= self.config.half_lines
        if op.write:
            if self.summaries and not half:
                self.summaries.pop(op.squeue * self.pages + op.page, None)
            access = self.frames.write(
                result.frame,
                op.kv_line,
                partial=bool(op.partial),
                poison=bool(op.poison),
                late=late,
            )
            if access.kind == DataOp.WRITE and op.origin is not None:
                fmt = result.format_v if half else result.format_k
                host_type = self.tracker.sessions[op.squeue // self.config.queues].host_type
                data, enable = op.origin
                if op.partial:
                    self.lines.merge(key, data, enable, fmt, host_type, fresh=access.fresh)
                else:
                    self.lines.write(key, data, fmt, host_type)
        else:
            access = self.frames.read(result.frame, op.kv_line, late=late)
            if op.partial and (result.init or late):
                self.frames.own(result.frame)
            self.version = self._version(key, access.answer)
        self.access = access
        if access.useful:
            self._useful(result.frame)

    def _version(self, key, answer):
        if answer == Answer.DATA:
            return self.lines.current(key)
        return ZEROS if answer == Answer.ZEROS else POISONED

    def _useful(self, frame):
        entry = self.frames[frame]
        self.counters["prefetch_useful_" + self._sources[entry.source]] += 1
        self.queue_counters["prefetch_useful"][entry.squeue] += 1
        if self.on_usage is not None:
            self.on_usage(entry.source, True)

    def _other(self, op, result):
        kind, outcome, counters, per_queue = (
            op.kind,
            result.outcome,
            self.counters,
            self.queue_counters,
        )
        if kind == REPLAY:
            if result.answer:
                self.version = POISONED
            else:
                self._line(op, result, True)
        elif kind == FILL:
            valid, poison = (
                (0, 0)
                if op.miss_kind == MissKind.ALLOCATE or op.failed
                else self.cold[op.squeue * self.pages + op.page]
            )
            self.frames.start(
                op.frame,
                op.squeue,
                op.page,
                source=op.source,
                valid=valid,
                poison=poison,
                ruined=bool(op.lost or op.failed),
            )
            if op.miss_kind != MissKind.ALLOCATE:
                counters["fetches"] += not op.failed
            elif not op.lost:
                self.lines.forget(self._page_keys(op))
        elif kind == PREFETCH:
            source = self._sources[op.source]
            if outcome == MISSED:
                self.misses[result.miss] = (MissKind.PREFETCH, op.squeue, op.page, op.source)
                counters["prefetch_issued_" + source] += 1
                per_queue["prefetch_issued"][op.squeue] += 1
            else:
                counters["prefetch_dropped_" + source] += 1
        elif kind == CLAIM:
            if outcome == DONE:
                self.claim = self._claims[op.squeue * self.pages + op.page] = self.frames.claim(
                    result.frame
                )
        elif kind == RELEASE:
            if op.written and not op.failed:
                counters["write_backs"] += 1
                per_queue["write_backs"][op.squeue] += 1
                claim = self._claims[op.squeue * self.pages + op.page]
                self.cold[op.squeue * self.pages + op.page] = (claim.valid, claim.poison)
            if outcome == VOID:
                if not op.failed:
                    self.frames.cancel(op.frame, op.squeue, op.page)
            elif not op.failed:
                counters["evictions"] += 1
                per_queue["evictions"][op.squeue] += 1
                self._end(op.frame)
        elif kind == SCRUB:
            if result.use:
                self._end(result.frame)
            if outcome == DONE:
                self.lines.forget(self._page_keys(op))
                self.summaries.pop(op.squeue * self.pages + op.page, None)
        elif kind == LOOK:
            if outcome == DONE:
                key = (op.squeue * self.pages + op.page) * self.config.page_lines + op.kv_line
                self.version = self._version(key, self.frames.look(result.frame, op.kv_line))
        elif outcome == ORPHAN and (kind == FLIP or kind == RECOVER):
            self._end(result.frame)

    def _page_keys(self, op):
        first = (op.squeue * self.pages + op.page) * self.config.page_lines
        return range(first, first + self.config.page_lines)

    def _end(self, frame):
        usage = self.frames.end(frame)
        if usage is not None:
            self.counters["prefetch_useless_" + self._sources[usage.source]] += 1
            if self.on_usage is not None:
                self.on_usage(usage.source, False)
