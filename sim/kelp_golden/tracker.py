# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The tracker's decisions, one op after another: what stage M3 does to page words, sessions, pools
and miss entries (docs/design.md §3).

Plain Python integers and tuples, written from the op table and not from the RTL.

::

    tracker = Tracker(config)
    tracker.configure(1, QueueConfig(format_k=Format.INT8, format_v=Format.INT8, pool=2))
    tracker.step(Op(OpKind.OPEN, session=0), descriptor=Session(used_queues=4, used_lines=16,
    used_pages=8)) result = tracker.step(Op(OpKind.WRITE, session=0, squeue=1, page=3, kv_line=5,
    write=1))

What the golden model cannot know is given to it: which page word had a flipped bit (`fault`), and
when the miss buffer has let go of a miss entry (`return_miss`).
"""

from __future__ import annotations

from collections import deque

from kelp_spec.coherence import least_limit
from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import STEP_BITS, Answer, Event, Outcome, PageState, ScoreEvent
from kelp_spec.metadata import Op as OpKind

from .engine_ops import EngineOps
from .ops import ABSENT_WORD, LOST_WORD, Op, Pool, QueueConfig, Result, Session, Word

__all__ = ["Tracker"]

_STEP_MASK = (1 << STEP_BITS) - 1

# An IntEnum member costs an attribute look-up each time, and this runs for every line of every
# trace.
ABSENT, RESIDENT, WRITING_BACK, COLD, FETCHING, LOST = (int(s) for s in PageState)
HIT, ALLOCATED, ZERO, POISON, REFUSED, MISSED, PARKED = (
    int(o)
    for o in (
        Outcome.HIT,
        Outcome.ALLOCATED,
        Outcome.ZERO,
        Outcome.POISON,
        Outcome.REFUSED,
        Outcome.MISSED,
        Outcome.PARKED,
    )
)


class Tracker(EngineOps):
    """Page words, sessions, pools and miss entries of one endpoint.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    words : dict[int, Word]
        Page words that are not ABSENT with zeros, by squeue · pages + page.
    sessions : list[Session]
    pools : list[_Pool]
        `limit`, `used`, `free`, `waiting`, `pins` of each.
    low_water, reserve : int
        Registers: frames that prefetch leaves free, and frames that pins leave free.
    pending : list[int]
        Requests parked per miss entry.
    free_misses : deque[int]
        Miss entries in the order in which they are taken; `return_miss` appends.
    """

    def __init__(self, config: Config):
        self.config = config
        self.pages = config.pages
        self.half_lines = config.half_lines
        self.queues = config.queues
        self._place_mask = (1 << config.place_bits) - 1
        self.words = {}
        self.sessions = [Session() for _ in range(config.sessions)]
        self.queue_configs = [QueueConfig() for _ in range(config.squeues)]
        self.pools = [
            Pool(first, limit)
            for first, limit in zip(config.pool_first_frame, config.frames, strict=True)
        ]
        self.low_water = 0
        self.reserve = 0
        self.pending = [0] * config.misses
        self.free_misses = deque(range(config.misses))
        table = {
            OpKind.NOP: self._nothing,
            OpKind.READ: self._demand,
            OpKind.WRITE: self._demand,
            OpKind.GRANT: self._grant,
            OpKind.FILL: self._fill,
            OpKind.REPLAY: self._replay,
            OpKind.FLIP: self._flip,
            OpKind.SCAN: self._scan,
            OpKind.CLAIM: self._claim,
            OpKind.RELEASE: self._release,
            OpKind.FREE: self._free,
            OpKind.PREFETCH: self._prefetch,
            OpKind.MASS: self._mass,
            OpKind.PIN: self._pin,
            OpKind.UNPIN: self._unpin,
            OpKind.STEP: self._step,
            OpKind.OPEN: self._open,
            OpKind.CLOSE: self._close,
            OpKind.SCRUB: self._scrub,
            OpKind.PEEK: self._nothing,
            OpKind.RECOVER: self._recover,
            OpKind.CLOSED: self._closed,
            OpKind.ERROR: self._nothing,
            OpKind.LOOK: self._look,
            OpKind.HOLD: self._hold,
            OpKind.UNHOLD: self._unhold,
        }
        self._table = [table[kind] for kind in OpKind]
        self._reads = [
            kind
            not in (
                OpKind.NOP,
                OpKind.GRANT,
                OpKind.FREE,
                OpKind.STEP,
                OpKind.OPEN,
                OpKind.CLOSE,
                OpKind.CLOSED,
            )
            for kind in OpKind
        ]
        self._descriptor = None

    # - from outside -------------------------------------------------------------------------------
    def configure(self, squeue: int, config: QueueConfig) -> None:
        """Write one queue's configuration, as the OPEN walk does."""
        self.queue_configs[squeue] = config

    def set_limits(self, limits) -> None:
        """Frames that each pool may use, as registers `pool_limit_…` give them: `least_limit` at
        least, so 1 where 0 is asked for. Only while the pool is unused."""
        for name, pool, limit, most in zip(
            POOLS, self.pools, limits, self.config.frames, strict=True
        ):
            if pool.used or not 0 <= limit <= most:
                raise ValueError(
                    f"limit {limit} of pool {name} is refused; legal: 0 … {most} while the "
                    + "pool is unused"
                )
            pool.limit = max(limit, least_limit(self.config))

    def return_miss(self, miss: int) -> None:
        """The miss buffer has let go of an entry."""
        self.free_misses.append(miss)

    def word(self, squeue: int, page: int) -> Word:
        return self.words.get(squeue * self.pages + page, ABSENT_WORD)

    def step(self, op: Op, *, fault: int = 0, descriptor: Session | None = None) -> Result:
        """Decide one op. `fault`: 1 when the page word it read had a single flipped bit, 2 when it
        could not be corrected."""
        kind = op.kind
        if self._reads[kind] if kind > 2 else self._goes_to_memory(op):
            key = op.squeue * self.pages + op.page
            old = self.words.get(key, ABSENT_WORD)
            if fault:
                return self._faulty(op, key, old, fault)
            result = Result(op, old)
            result.reads = 1
            self._table[kind](op, result, old, key)
            if result.changed:
                self._store(key, result.word)
            return result
        self._descriptor = descriptor
        result = Result(op, ABSENT_WORD)
        self._table[kind](op, result, ABSENT_WORD, -1)
        return result

    # - common parts -------------------------------------------------------------------------------
    def _store(self, key, word):
        if word is ABSENT_WORD:
            self.words.pop(key, None)
        else:
            self.words[key] = word

    def _faulty(self, op, key, old, fault):
        if fault == 2:
            # The pin went with the word; its pool is known from the queue.
            if old.pinned:
                self.pools[self.queue_configs[op.squeue].pool].pins -= 1
            old = LOST_WORD
        result = Result(op, old)
        result.reads = 1
        result.corrected = int(fault == 1)
        result.uncorrected = int(fault == 2)
        self._table[op.kind](op, result, old, key)
        result.changed |= result.uncorrected
        if result.changed:
            self._store(key, result.word)
        return result

    def _usable(self, op):
        session = self.sessions[op.session]
        return session.open and not session.closing

    def _nothing(self, op, result, word, key):
        pass

    def _goes_to_memory(self, op):
        """Whether a request looks at a page word: its own fields say so, whatever becomes of it."""
        if op.refused or op.no_memory:
            return False
        session = self.sessions[op.session]
        line = op.kv_line
        if line >= self.half_lines:
            if session.k_only:
                return False
            line -= self.half_lines
        return line < session.used_lines and op.ld_id == session.ld_id

    # - demand -------------------------------------------------------------------------------------
    def _refusal(self, op, session):
        if op.refused:
            return op.refused
        if not session.open or session.closing:
            return Event.CLOSED_SESSION
        if op.ld_id != session.ld_id:
            return Event.FOREIGN_LD
        line = op.kv_line
        half = self.half_lines
        if line >= half:
            if session.k_only:
                return Event.OUT_OF_MAP
            line -= half
        if (
            line >= session.used_lines
            or op.page >= session.used_pages
            or op.squeue - op.session * self.queues >= session.used_queues
        ):
            return Event.OUT_OF_MAP
        return 0

    def _demand(self, op, result, word, key):
        session = self.sessions[op.session]
        write = op.write
        event = self._refusal(op, session)
        if event:
            result.outcome = REFUSED
            result.event = event
            result.answer = (
                Answer.CMP if write or op.no_memory or event == Event.UNKNOWN_OPCODE else Answer.NXM
            )
            return
        if op.no_memory:
            result.answer = Answer.CMP
            return
        state, place, format_k, format_v, last_step, pinned = word
        queue = self.queue_configs[op.squeue]
        result.pool = queue.pool
        step = session.step
        if state == RESIDENT or state == WRITING_BACK:
            result.outcome = HIT
            result.frame = place
            result.use = 1
            result.format_k = format_k
            result.format_v = format_v
            if last_step != step:
                self._access(result, step, last_step)
            if state == WRITING_BACK or last_step != step:
                result.word = Word(RESIDENT, place, format_k, format_v, step, pinned)
                result.changed = 1
        elif state == FETCHING:
            result.outcome = PARKED
            result.miss = place
            self.pending[place] += 1
            if last_step != step:
                self._access(result, step, last_step)
                result.word = Word(FETCHING, place, format_k, format_v, step, pinned)
                result.changed = 1
        elif state == COLD:
            result.outcome = MISSED
            result.miss = miss = self._take_miss()
            self.pools[queue.pool].waiting += 1
            if last_step != step:
                self._access(result, step, last_step)
            result.word = Word(FETCHING, miss, format_k, format_v, step, pinned)
            result.changed = 1
        elif write or op.partial:  # a READ with `partial` is for ownership (HDM-DB)
            self._allocate(op, result, queue, step, state == LOST)
        elif state == LOST:
            result.outcome = POISON
            result.answer = Answer.POISON
        else:
            result.outcome = ZERO
            result.answer = Answer.ZEROS

    def _access(self, result, step, last_step):
        result.first = 1
        result.score = ScoreEvent.TOUCH
        result.gap = (step - last_step) & _STEP_MASK

    def _take_miss(self):
        if not self.free_misses:
            raise RuntimeError(
                "no miss entry is free: the endpoint would not have admitted the request"
            )
        miss = self.free_misses.popleft()
        self.pending[miss] = 1
        return miss

    def _allocate(self, op, result, queue, step, lost):
        pool = self.pools[queue.pool]
        result.first = 1
        result.changed = 1
        result.score = ScoreEvent.INIT
        if pool.free > pool.waiting:
            result.outcome = ALLOCATED
            result.frame = frame = pool.pop()
            result.use = result.init = 1
            result.lost = int(lost)
            result.format_k = queue.format_k
            result.format_v = queue.format_v
            result.word = Word(RESIDENT, frame, queue.format_k, queue.format_v, step, 0)
        else:
            result.outcome = MISSED
            result.miss = miss = self._take_miss()
            pool.waiting += 1
            result.word = Word(FETCHING, miss, queue.format_k, queue.format_v, step, 0)
