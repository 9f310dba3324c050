# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy `kelp`, the executable specification (docs/policy.md): what a page is worth, in two
opinions, and what the device learns from accesses.

:class:`Scores` is what the score engine keeps: word of each page, profile of each queue, the turn
of each session; :class:`Shadow` what pooled LRU would have read; :class:`KelpPolicy` joins them
with the few numbers that belong to the whole pool. Integers throughout; nothing here owns a page
word.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kelp_spec import policy as p
from kelp_spec.config import Config

from .ops import Session

__all__ = ["FIRST", "SECOND", "KelpPolicy", "Scan", "Scores", "Shadow", "fold_table"]

FIRST, SECOND = 1, 2  #: opinions: with the profile, without it
_STEP = 1 << 24


def fold_table(alpha: int, bits: int) -> tuple[int, ...]:
    """[FOLDED + 1]: what n idle steps leave of 2^bits: 2^bits · (1 − α/256)^n, rounded half up."""
    return tuple(
        int((1 << bits) * Fraction(256 - alpha, 256) ** n + Fraction(1, 2))
        for n in range(p.FOLDED + 1)
    )


_FOLD_FAST, _FOLD_SLOW = (
    fold_table(p.ALPHA_FAST, p.FAST_BITS),
    fold_table(p.ALPHA_SLOW, p.SLOW_BITS),
)
_FAST_TOP, _SLOW_TOP, _COUNT_TOP = (
    (1 << p.FAST_BITS) - 1,
    (1 << p.SLOW_BITS) - 1,
    (1 << p.PROFILE_BITS) - 1,
)
_EPOCHS = (1 << p.EPOCH_BITS) - 1


def _split(word: int) -> tuple[int, int]:
    return word & _FAST_TOP, word >> p.FAST_BITS & _SLOW_TOP


def _folded(word: int, idle: int) -> tuple[int, int]:
    fast, slow = _split(word)
    idle = min(idle, p.FOLDED)
    return fast * _FOLD_FAST[idle] >> p.FAST_BITS, slow * _FOLD_SLOW[idle] >> p.SLOW_BITS


def _touched(fast: int, slow: int) -> int:
    fast += (_FAST_TOP - fast) * p.ALPHA_FAST + 128 >> 8
    slow += (_SLOW_TOP - slow) * p.ALPHA_SLOW + 128 >> 8
    return slow << p.FAST_BITS | fast


@dataclass(frozen=True, slots=True)
class Scan:
    """What a SCAN found of a page: its common value (13 bits), its profile count (7 bits), and
    whether its turn in this step is over."""

    common: int
    count: int
    over: bool

    def value(self, opinion: int) -> int:
        """Before the factor for pages whose turn is over."""
        return self.common + (self.count << p.PROFILE_SHIFT if opinion == FIRST else 0)


class Scores:
    """What the score engine keeps, in the order of the score events of M3.

    ``counts`` and ``epochs`` are flat by squeue · pages + distance, ``newest`` by squeue, ``turn``
    by session: (step mod 256, squeue, page).
    """

    def __init__(self, config: Config):
        self.pages = config.pages
        self.counts, self.epochs = bytearray(config.page_words), bytearray(config.page_words)
        self.newest = [0] * config.squeues
        self.turn: list[tuple[int, int, int]] = [(0, 0, 0)] * config.sessions

    def _count(self, at: int, step: int) -> int:
        return self.counts[at] >> ((step >> p.EPOCH_SHIFT) - self.epochs[at] & _EPOCHS)

    def _at(self, squeue: int, page: int) -> int:
        return squeue * self.pages + max(0, self.newest[squeue] - page)

    def allocate(self, session: int, squeue: int, page: int, step: int) -> int:
        """INIT: the new word. The page is its queue's newest from now on; the farthest distance
        that this makes reachable starts from nothing."""
        self.newest[squeue] = page
        at = squeue * self.pages + page
        self.counts[at], self.epochs[at] = 0, step >> p.EPOCH_SHIFT & _EPOCHS
        self.turn[session] = (step & 255, squeue, page)
        return _touched(0, 0)

    def opened(self, session: int) -> None:
        """The session's queues have counted nothing, and no turn has passed."""
        share = len(self.counts) // len(self.turn)
        own = slice(session * share, (session + 1) * share)
        self.counts[own] = self.epochs[own] = bytes(share)
        self.turn[session] = (0, 0, 0)

    def touch(self, word: int, session: int, squeue: int, page: int, step: int, gap: int) -> int:
        """TOUCH, ``gap`` steps after the last: the new word."""
        at = self._at(squeue, page)
        self.counts[at] = min(_COUNT_TOP, self._count(at, step) + 1)
        self.epochs[at] = step >> p.EPOCH_SHIFT & _EPOCHS
        self.turn[session] = (step & 255, squeue, page)
        return _touched(*_folded(word, max(gap, 1) - 1))

    def scan(self, word: int, session: int, squeue: int, page: int, step: int, gap: int) -> Scan:
        """SCAN, which changes nothing."""
        turn_step, *turn = self.turn[session]
        over = turn_step == step & 255 and (squeue, page) < tuple(turn)
        fast, slow = _folded(word, max(gap, 1) - 1 + over)
        return Scan(p.WEIGHT_FAST * fast + slow, self._count(self._at(squeue, page), step), over)

    def profile(self, squeue: int, page: int, *, allocated: bool) -> int:
        """The raw profile entry, epoch above count, that the page's latest event wrote."""
        at = squeue * self.pages + page if allocated else self._at(squeue, page)
        return self.epochs[at] << p.PROFILE_BITS | self.counts[at]


class Shadow:
    """Which accesses of one session LRU over the whole pool would have missed: pages by (step,
    octile of queues) of their last access.

    Pages of the buckets from ``boundary`` on fill the pool. A bucket is step · 8 + octile; ``ring``
    holds the last 256 steps' counts.
    """

    def __init__(self):
        self.ring = [0] * (p.SHADOW_STEPS << p.OCTILE_BITS)
        self.boundary = self.inside = self.now = 0

    def access(self, step: int, last: int | None, octile: int, frames: int) -> bool:
        """The page's last access was in step ``last`` (None: it is new); True when LRU would miss
        it."""
        self._advance(step)
        missed = False
        if last is not None and (step - last) % _STEP < p.SHADOW_STEPS:
            at = last << p.OCTILE_BITS | octile
            slot = at % len(self.ring)
            missed = at + 1 < self.boundary
            if self.ring[slot]:
                self.ring[slot] -= 1
                self.inside -= at >= self.boundary
        at = step << p.OCTILE_BITS | octile
        self.ring[at % len(self.ring)] += 1
        self.inside += at >= self.boundary
        while self.inside > frames:
            self.inside -= self.ring[self.boundary % len(self.ring)]
            self.boundary += 1
        return missed

    def _advance(self, step: int) -> None:
        steps = (step - self.now) % _STEP
        if steps >= p.SHADOW_STEPS:
            self.__init__()
            self.boundary, self.now = step << p.OCTILE_BITS, step
            return
        for _ in range(steps):
            self.now += 1
            for octile in range(1 << p.OCTILE_BITS):
                old = self.now - p.SHADOW_STEPS << p.OCTILE_BITS | octile
                slot = old % len(self.ring)
                if self.boundary <= old:
                    self.inside -= self.ring[slot]
                    self.boundary = old + 1
                self.ring[slot] = 0


class KelpPolicy:
    """State of the policy in one device.

    Attributes
    ----------
    scores : Scores
    miss_rate, marginal, credit, duel, disputed : int
    refresh, ahead : (session, squeue) or None
        What the latest change of queue asks for: to value the queue left behind anew, and to look
        for pages to prefetch in the next layer's.
    """

    def __init__(self, config: Config):
        self.config = config
        self.scores = Scores(config)
        self.shadows = [Shadow() for _ in range(config.sessions)]
        self.miss_rate = self.marginal = self.credit = self.duel = self.disputed = 0
        # (squeue, step) of the latest access
        self.turns: list[tuple[int, int] | None] = [None] * config.sessions
        self.refresh = self.ahead = None

    # - what a page is worth -----------------------------------------------------------------------
    @property
    def near(self) -> int:
        return max(p.NEAR_LEAST, p.NEAR_MOST - (self.miss_rate >> p.NEAR_SHIFT))

    @property
    def followed(self) -> int:
        return SECOND if self.duel > 0 else FIRST

    @staticmethod
    def worth(scan: Scan, opinion: int, near: int) -> int:
        value = scan.value(opinion)
        return value * near >> 8 if scan.over else value

    # - what accesses teach ------------------------------------------------------------------------
    def opened(self, session: int) -> None:
        self.shadows[session] = Shadow()
        self.turns[session] = None
        self.scores.opened(session)

    def access(
        self,
        session: int,
        squeue: int,
        registers: Session,
        *,
        last: int | None,
        missed: bool,
        given_by: int | None,
        frames: int,
    ) -> None:
        """The first demand of a page in a step of the session whose ``registers`` these are.
        ``last``: step of the access before, None for an allocation; ``given_by``: of a page read
        from flash for it."""
        step, used_queues = registers.step, registers.used_queues
        first = session * self.config.queues
        octile = squeue - first >> max(0, (used_queues - 1).bit_length() - p.OCTILE_BITS)
        if self.shadows[session].access(step, last, octile, frames):
            self.credit = min(p.CREDIT_MOST, self.credit + 1)
        if given_by is not None:
            self.read(given_by)
        self.miss_rate += ((65535 if missed else 0) - self.miss_rate) >> p.MISS_RATE_SHIFT
        if self.turns[session] != (squeue, step):
            if self.turns[session] is not None:
                self.refresh = session, self.turns[session][0]
            following = squeue + registers.kv_heads
            if following >= first + used_queues:
                following -= used_queues
            if following != squeue:
                self.ahead = session, following
            self.turns[session] = squeue, step

    def read(self, given_by: int) -> None:
        """A page is read from flash, which ``given_by`` alone gave away (0: both)."""
        self.credit = max(-p.CREDIT_MOST, self.credit - 1)
        turns = p.EXPLORE - 1
        if given_by == FIRST:
            self.duel = min(
                p.DUEL_MOST, self.duel + p.FIRST_REGRET * (1 if self.duel <= 0 else turns)
            )
        elif given_by == SECOND:
            self.duel = max(
                -p.DUEL_MOST, self.duel - p.SECOND_REGRET * (1 if self.duel > 0 else turns)
            )

    def gave(self, value: int) -> None:
        """A page of this value was given away."""
        self.marginal += value - self.marginal >> p.MARGINAL_SHIFT
