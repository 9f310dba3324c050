# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the engines' ops do at stage M3: miss buffer, evictor and closer, prefetcher, hints,
sessions (docs/design.md §3). Demands are the tracker's own."""

from __future__ import annotations

from kelp_spec.coherence import least_reserve
from kelp_spec.metadata import STEP_BITS, Answer, Event, MissKind, Outcome, PageState, ScoreEvent

from .ops import ABSENT_WORD, LOST_WORD, Session

__all__ = ["EngineOps"]

_STEP_MASK = (1 << STEP_BITS) - 1

# An IntEnum member costs an attribute look-up each time, and this runs for every line of every
# trace.
ABSENT, RESIDENT, WRITING_BACK, COLD, FETCHING, LOST = (int(s) for s in PageState)
REFUSED, MISSED, RETRY, VOID, DROPPED, ORPHAN = (
    int(o)
    for o in (
        Outcome.REFUSED,
        Outcome.MISSED,
        Outcome.RETRY,
        Outcome.VOID,
        Outcome.DROPPED,
        Outcome.ORPHAN,
    )
)


class EngineOps:
    """One method for each kind of op that an engine sends: (op, result, word, key) → what changes,
    in `result` and in the tracker whose part this is."""

    # - miss buffer --------------------------------------------------------------------------------
    def _grant(self, op, result, word, key):
        pool = self.pools[op.pool]
        result.pool = op.pool
        result.miss = op.miss
        if op.failed:
            pool.waiting -= 1
        elif pool.free > 0:
            pool.waiting -= 1
            result.frame = pool.pop()
        else:
            result.outcome = RETRY

    def _fill(self, op, result, word, key):
        result.pool = self.queue_configs[op.squeue].pool
        result.miss = op.miss
        result.frame = op.frame
        result.use = result.init = 1
        result.lost = op.lost

    def _replay(self, op, result, word, key):
        self.pending[op.miss] -= 1
        queue = self.queue_configs[op.squeue]
        result.pool = queue.pool
        result.miss = op.miss
        if op.failed:
            result.answer = Answer.CMP if op.write else Answer.POISON
            return
        result.frame = op.frame
        result.use = 1
        # A page whose word was lost meanwhile no longer knows its formats; they are still the
        # queue's.
        kept = word.state not in (ABSENT, LOST)
        result.format_k = word.format_k if kept else queue.format_k
        result.format_v = word.format_v if kept else queue.format_v

    def _flip(self, op, result, word, key):
        miss = op.miss
        result.pool = self.queue_configs[op.squeue].pool
        result.miss = miss
        if self.pending[miss]:
            result.outcome = RETRY
            return
        under = word.state == FETCHING and word.place == miss
        if op.failed:
            if not under:
                result.outcome = VOID
                return
            result.changed = 1
            if op.lost or op.miss_kind == MissKind.ALLOCATE:
                self.pools[result.pool].pins -= bool(word.pinned)
                result.word = LOST_WORD
            else:
                result.word = word._replace(state=COLD, place=0)
            return
        result.frame = op.frame
        if under:
            result.changed = 1
            result.word = word._replace(state=RESIDENT, place=op.frame)
        else:
            result.outcome = ORPHAN
            result.use = 1

    # - evictor and closer -------------------------------------------------------------------------
    def _scan(self, op, result, word, key):
        result.score = ScoreEvent.SCAN

    def _claim(self, op, result, word, key):
        result.pool = self.queue_configs[op.squeue].pool
        if word.state == RESIDENT and not word.pinned and word.last_step == op.delta:
            result.frame = word.place
            result.use = 1
            result.word = word._replace(state=WRITING_BACK)
            result.changed = 1
        else:
            result.outcome = VOID

    def _release(self, op, result, word, key):
        result.pool = pool = self.queue_configs[op.squeue].pool
        result.frame = op.frame
        result.use = 1
        if word.state != WRITING_BACK:
            result.outcome = VOID
        elif op.failed:
            result.word = word._replace(state=RESIDENT)
            result.changed = 1
        else:
            result.word = word._replace(
                state=COLD,
                place=self.sessions[op.session].step & self._place_mask,
            )
            result.changed = 1
            self.pools[pool].push(op.frame)

    def _free(self, op, result, word, key):
        self.pools[op.pool].push(op.frame)
        result.pool = op.pool
        result.frame = op.frame
        result.use = 1

    def _scrub(self, op, result, word, key):
        state = word.state
        result.pool = pool = self.queue_configs[op.squeue].pool
        result.score = ScoreEvent.SCRUB
        if state == FETCHING or state == WRITING_BACK:
            result.outcome = RETRY
        elif state != ABSENT:
            self.pools[pool].pins -= bool(word.pinned)
            result.word = ABSENT_WORD
            result.changed = 1
            if state == RESIDENT:
                result.frame = word.place
                result.use = 1

    def _recover(self, op, result, word, key):
        state = word.state
        result.pool = self.queue_configs[op.squeue].pool
        result.frame = op.frame
        if state == FETCHING:
            result.outcome = RETRY
        elif (state == RESIDENT or state == WRITING_BACK) and word.place == op.frame:
            result.outcome = VOID
        else:
            result.outcome = ORPHAN
            result.use = 1

    # - prefetcher and hints -----------------------------------------------------------------------
    def _prefetch(self, op, result, word, key):
        result.pool = index = self.queue_configs[op.squeue].pool
        pool = self.pools[index]
        if (
            not self._usable(op)
            or word.state != COLD
            or pool.free <= self.low_water + pool.waiting
            or not self.free_misses
        ):
            result.outcome = DROPPED
            return
        result.outcome = MISSED
        result.miss = miss = self.free_misses.popleft()
        self.pending[miss] = 0
        result.frame = pool.pop()
        result.word = word._replace(state=FETCHING, place=miss)
        result.changed = 1

    def _mass(self, op, result, word, key):
        if self._usable(op) and word.state not in (ABSENT, LOST):
            result.score = ScoreEvent.MASS
            result.mass = op.mass
        else:
            result.outcome = VOID

    def _pin(self, op, result, word, key):
        result.pool = index = self.queue_configs[op.squeue].pool
        pool = self.pools[index]
        if not self._usable(op) or word.state in (ABSENT, LOST):
            result.outcome = VOID
        elif not word.pinned & 1:
            if not self._protect(pool, word):
                result.outcome = REFUSED
                result.event = Event.PIN_REFUSED
            else:
                result.word = word._replace(pinned=word.pinned | 1)
                result.changed = 1

    def _unpin(self, op, result, word, key):
        result.pool = index = self.queue_configs[op.squeue].pool
        if not self._usable(op) or word.state in (ABSENT, LOST):
            result.outcome = VOID
        elif word.pinned & 1:
            self.pools[index].pins -= word.pinned == 1
            result.word = word._replace(pinned=word.pinned & 2)
            result.changed = 1

    def _protect(self, pool, word):
        """Counts one more protected page, unless it is one already; whether there was room."""
        if not word.pinned:
            reserve = max(self.reserve, least_reserve(self.config))
            if pool.pins + reserve >= pool.limit:
                return False
            pool.pins += 1
        return True

    # - choices of pages (docs/select.md) ----------------------------------------------------------
    def _look(self, op, result, word, key):
        result.pool = self.queue_configs[op.squeue].pool
        if self._usable(op) and word.state == RESIDENT:
            result.use = 1
            result.frame = word.place
            result.format_k, result.format_v = word.format_k, word.format_v
        else:
            result.outcome = VOID

    def _hold(self, op, result, word, key):
        result.pool = index = self.queue_configs[op.squeue].pool
        if not self._usable(op) or word.state != RESIDENT:
            result.outcome = VOID
        elif not self._protect(self.pools[index], word):
            result.outcome = REFUSED
        elif not word.pinned & 2:
            result.word = word._replace(pinned=word.pinned | 2)
            result.changed = 1

    def _unhold(self, op, result, word, key):
        result.pool = index = self.queue_configs[op.squeue].pool
        if not self._usable(op) or word.state in (ABSENT, LOST) or not word.pinned & 2:
            result.outcome = VOID
            return
        self.pools[index].pins -= word.pinned == 2
        result.word = word._replace(pinned=word.pinned & 1)
        result.changed = 1

    # - sessions -----------------------------------------------------------------------------------
    def _step(self, op, result, word, key):
        session = self.sessions[op.session]
        if session.open:
            session.step = (session.step + op.delta) & _STEP_MASK
        else:
            result.outcome = VOID

    def _open(self, op, result, word, key):
        session = self.sessions[op.session]
        if session.open:
            result.outcome = REFUSED
            result.event = Event.OPEN_REFUSED
            return
        for name in Session.__slots__[2:]:
            setattr(session, name, getattr(self._descriptor, name))
        session.open = 1
        session.closing = 0

    def _close(self, op, result, word, key):
        session = self.sessions[op.session]
        if session.open:
            session.closing = 1
        else:
            result.outcome = VOID

    def _closed(self, op, result, word, key):
        session = self.sessions[op.session]
        session.open = session.closing = 0
