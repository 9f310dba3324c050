# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What policy 2 learns in a device, the executable specification of `TableScores`
(docs/select_tables.md): how likely each page is wanted in its queue's next turn. Integers; no
clock, no frames.

A queue is a squeue, session · queues + queue.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from kelp_spec import policy2 as p
from kelp_spec.metadata import STEP_BITS
from kelp_spec.policy import LOG_MOST

from .arithmetic import log2

__all__ = ["Learning", "Tables", "guessed_value"]

_STEPS = 1 << STEP_BITS
_COHORTS = 256
_CREDIT_LEAST = -(1 << 15)


@dataclass(slots=True)
class _Page:
    fast: int = 0  #: UQ0.12, as of the queue's last turn
    slow: int = 0
    value: int = 0  #: what the last guess says that it is worth; 0: none since its last turn
    post: int = 0  #: how likely it is wanted in the next turn, before a guess
    before: int | None = None  #: its entry of V after its last turn
    guessed: int | None = None  #: its entry of T when its turn began


def _octave(x: int) -> int:
    return x.bit_length() - 1


def _bucket(x: int, top: int, n: int) -> int:
    return min(max(0, n - 1 - (top - _octave(x))), n - 1) if x else 0


def _side(x: int) -> int:
    return min(max(_octave(max(x, 1)) - 16 + p.T_SIDE, 0), p.T_SIDE - 1)


def guessed_value(likely: int) -> int:
    """What a page is worth of which a guess says that it is so ``likely`` wanted (16 bits), as
    policy `kelp` counts: as much as one that is read so often, and was a step ago. 0 where that is
    less than once in 4096 steps."""
    often = likely >> p.GUESS_SHIFT
    return LOG_MOST - log2(4) + log2(often) if often else 0


class Learning:
    """What a queue's turns and guesses teach, and what a guess says that each page is worth."""

    def __init__(self, pages: int):
        self.pages = [_Page() for _ in range(pages)]
        self.counts = [0] * pages  #: by distance from the newest page
        self.v, self.t = p.start_of_v(), p.start_of_t()
        self.step = 0  #: of its last turn

    def turn_over(self, read, newest: int, step: int) -> None:
        """A turn in a step is over; ``read`` are the pages chosen or wanted, none beyond the
        newest."""
        idle = min((step - self.step) % _STEPS, p.FOLDED)
        fades = step // p.PROFILE_STEPS != self.step // p.PROFILE_STEPS
        for number, page in enumerate(self.pages[: newest + 1]):
            was_read, distance = number in read, newest - number
            page.fast = page.fast * p.FAST_FOLD[idle] >> 16
            page.slow = page.slow * p.SLOW_FOLD[idle] >> 16
            count = self.counts[distance] >> fades
            if was_read:
                page.fast += (4095 - page.fast) * p.FAST + 128 >> 8
                page.slow += (4095 - page.slow) * p.SLOW + 128 >> 8
                count = min(127, count + 1)
            self.counts[distance] = count
            entry = 64 * _bucket(page.fast, 8, 4) + 8 * _bucket(page.slow, 11, 8)
            entry += _bucket(count, 6, 8)
            if number < newest:
                self._learn(page, entry, was_read)
            page.before, page.guessed = entry, None
            page.value, page.post = 0, self.v[entry]
        self.step = step

    def _learn(self, page: _Page, entry: int, was_read: bool) -> None:
        v, t = self.v, self.t
        if page.before is not None:
            aim = p.ONE if was_read else v[entry] * p.LATER_READ >> 8
            v[page.before] += aim - v[page.before] >> p.V_SHIFT
        if page.guessed is not None:
            aim = p.ONE if was_read else 0
            t[page.guessed] += aim - t[page.guessed] >> p.T_SHIFT

    def guess(self, masses: dict[int, int], newest: int) -> None:
        """A guessed query; ``masses`` of the pages that were scored, 16 bits each."""
        for number, page in enumerate(self.pages[:newest]):
            page.guessed = p.T_SIDE * _side(page.post) + _side(masses.get(number, 0))
            page.value = guessed_value(self.t[page.guessed])

    def likely(self, page: int) -> int:
        """How likely the last guess says that a page is wanted, 16 bits; 0 where there was none
        since the last turn."""
        place = self.pages[page].guessed
        return 0 if place is None else self.t[place]


class _Queue(Learning):
    def __init__(self, pages: int):
        super().__init__(pages)
        #: of pages in LRU's shadow: the step in which each was last wanted, mod 256
        self.cohorts: list[int | None] = [None] * pages


@dataclass(slots=True)
class _Session:
    """LRU's shadow: how many pages were last wanted in each step from `oldest` on, mod 256."""

    credit: int = 0
    oldest: int = 0
    total: int = 0
    cohorts: list[int] = field(default_factory=lambda: [0] * _COHORTS)


class Tables:
    """What is learnt of each queue, LRU's shadow and the credit of each session. Of ``config``
    count sessions, queues and pages. ``frames`` is the owner's to set: of LRU's pool.

    ``value[squeue, page]``, 14 bits, is what the last guess since its queue's last turn says that
    the page is worth, as policy `kelp` counts; 0 where there was none.
    ``marked[squeue]``: pages that choices took or wanted since the queue's last turn.
    """

    def __init__(self, config, *, frames: int = 0):
        self.config, self.frames = config, frames
        self.value = np.zeros((config.sessions * config.queues, config.pages), np.int64)
        self.marked: defaultdict[int, set[int]] = defaultdict(set)
        self._queues: dict[int, _Queue] = {}
        self._sessions = [_Session() for _ in range(config.sessions)]

    def opened(self, session: int) -> None:
        """All that was of the session is as new."""
        first = session * self.config.queues
        for squeue in range(first, first + self.config.queues):
            self._queues.pop(squeue, None)
            self.marked.pop(squeue, None)
            self.value[squeue] = 0
        self._sessions[session] = _Session()

    def credit(self, session: int) -> int:
        """Of a session: what reads of flash it may cause before anybody waits for their pages."""
        return self._sessions[session].credit

    def spend(self, session: int) -> None:
        """A page was read from flash."""
        one = self._sessions[session]
        one.credit = max(one.credit - p.COST, _CREDIT_LEAST)

    def mark(self, squeue: int, pages) -> None:
        """A choice takes or wants these pages of a queue whose turn is not over yet."""
        self.marked[squeue].update(pages)

    def worth(self, squeue: int, page: int) -> int:
        """What the page is worth at least, 16 bits: what is marked is wanted in this turn."""
        return p.ONE if page in self.marked[squeue] else int(self.value[squeue, page])

    def turn_over(self, squeue: int, read, newest: int, step: int) -> None:
        """A queue's turn in a step is over; ``read`` are the pages chosen or wanted, none beyond
        the newest. They are marked no more."""
        self.marked[squeue] -= set(read)
        queue, session = self._queue(squeue), self._sessions[squeue // self.config.queues]
        self._shrink(session, step)
        for number in range(newest + 1):
            self._shadow(session, queue, number, number in read, step)
        self._shrink(session, step)
        queue.turn_over(read, newest, step)
        self.value[squeue] = [page.value for page in queue.pages]

    @staticmethod
    def _shadow(session: _Session, queue: _Queue, number: int, was_read: bool, step: int) -> None:
        """A page leaves its cohort for that of this step, where it was read. One that LRU would
        have had to read earns credit; in its first turn none does, since it was just written."""
        cohort, held, age = queue.cohorts[number], False, 0
        if cohort is not None:
            age = (queue.step - cohort) % _COHORTS + (step - queue.step) % _STEPS
            held = age <= (step - session.oldest) % _STEPS
        if not was_read:
            queue.cohorts[number] = cohort if held else None
            return
        if held and age and session.cohorts[cohort]:
            session.cohorts[cohort] -= 1
            session.total -= 1
        if not held or age:
            session.cohorts[step % _COHORTS] += 1
            session.total += 1
        if not held and queue.pages[number].before is not None:
            session.credit = min(session.credit + p.EARNED, p.CREDIT_MOST)
        queue.cohorts[number] = step % _COHORTS

    def _shrink(self, session: _Session, step: int) -> None:
        """The oldest cohorts leave LRU's shadow, each as a whole, where a later step has their
        place, or beyond the frames: where more than half of a cohort is, so that on average as
        many pages are left as there are frames."""
        while True:
            if not session.total:
                session.oldest = step
            held, count = (step - session.oldest) % _STEPS, session.cohorts[session.oldest % 256]
            beyond = 2 * (session.total - self.frames) > count
            if not held or not (beyond or held >= _COHORTS - 1):
                return
            session.total -= count
            session.cohorts[session.oldest % _COHORTS] = 0
            session.oldest = (session.oldest + 1) % _STEPS

    def guessed(self, squeue: int, masses: dict[int, int], newest: int) -> None:
        """A guessed query of a queue; ``masses`` of the pages that were scored, 16 bits each."""
        queue = self._queue(squeue)
        queue.guess(masses, newest)
        self.value[squeue, :newest] = [page.value for page in queue.pages[:newest]]

    def likely(self, squeue: int, page: int) -> int:
        """How likely the last guess says that a page is wanted, 16 bits; 0 where there was none
        since its queue's last turn."""
        return self._queue(squeue).likely(page)

    def early(self, squeue: int, absent, newest: int) -> list[tuple[int, int]]:
        """After a guess: of the ``absent`` pages that it scored, (page, likely) of those that the
        session's credit says are to be fetched, by page."""
        credit = max(0, self.credit(squeue // self.config.queues))
        least = p.THRESHOLD - (credit * p.THRESHOLD_CREDIT // p.COST)
        found = ((page, self.likely(squeue, page)) for page in sorted(absent) if page < newest)
        return [(page, likely) for page, likely in found if likely > least]

    def _queue(self, squeue: int) -> _Queue:
        if squeue not in self._queues:
            self._queues[squeue] = _Queue(self.config.pages)
        return self._queues[squeue]
