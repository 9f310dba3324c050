# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What policy 2 learns in a device, the executable specification of `TableScores` (docs/select.md,
"Policy 2"): how likely each page is wanted in its queue's next turn. Integers; no clock, no frames.

A queue is a squeue, session · queues + queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kelp_spec import policy2 as p
from kelp_spec.metadata import STEP_BITS

__all__ = ["CREDIT_LEAST", "Tables"]

_STEPS = 1 << STEP_BITS
_COHORTS = 256
CREDIT_LEAST = -(1 << 15)


@dataclass(slots=True)
class _Page:
    fast: int = 0  #: UQ0.12, as of the queue's last turn
    slow: int = 0
    post: int = 0  #: its value after its last turn
    before: int | None = None  #: its entry of V after its last turn
    guessed: int | None = None  #: its entry of T when its turn began
    cohort: int | None = None  #: in LRU's shadow: the step in which it was last wanted, mod 256


class _Queue:
    def __init__(self, pages: int):
        self.pages = [_Page() for _ in range(pages)]
        self.counts = [0] * pages  #: by distance from the newest page
        self.v, self.t = p.start_of_v(), p.start_of_t()
        self.step = 0  #: of its last turn


@dataclass(slots=True)
class _Session:
    """LRU's shadow: how many pages were last wanted in each step from `oldest` on, mod 256."""

    credit: int = 0
    oldest: int = 0
    total: int = 0
    cohorts: list[int] = field(default_factory=lambda: [0] * _COHORTS)


def _octave(x: int) -> int:
    return x.bit_length() - 1


def _bucket(x: int, top: int, n: int) -> int:
    return min(max(0, n - 1 - (top - _octave(x))), n - 1) if x else 0


def _side(x: int) -> int:
    return min(max(_octave(max(x, 1)) - 16 + p.T_SIDE, 0), p.T_SIDE - 1)


class Tables:
    """What is learnt of each queue, LRU's shadow and the credit of each session. Of ``config``
    count sessions, queues and pages. ``frames`` is the owner's to set: of LRU's pool.

    ``value[squeue, page]``, 16 bits, is how likely the page is wanted in its queue's next turn.
    """

    def __init__(self, config, *, frames: int = 0):
        self.config, self.frames = config, frames
        self.value = np.zeros((config.sessions * config.queues, config.pages), np.int64)
        self._queues: dict[int, _Queue] = {}
        self._sessions = [_Session() for _ in range(config.sessions)]

    def opened(self, session: int) -> None:
        """All that was of the session is as new."""
        first = session * self.config.queues
        for squeue in range(first, first + self.config.queues):
            self._queues.pop(squeue, None)
            self.value[squeue] = 0
        self._sessions[session] = _Session()

    def credit(self, session: int) -> int:
        """Of a session: what reads of flash it may cause before anybody waits for their pages."""
        return self._sessions[session].credit

    def spend(self, session: int) -> None:
        """A page was read from flash."""
        one = self._sessions[session]
        one.credit = max(one.credit - p.COST, CREDIT_LEAST)

    def turn_over(self, squeue: int, read, newest: int, step: int) -> None:
        """A queue's turn in a step is over; ``read`` are the pages chosen or wanted, none beyond
        the newest."""
        queue, session = self._queue(squeue), self._sessions[squeue // self.config.queues]
        passed = (step - queue.step) % _STEPS
        idle = min(passed, p.FOLDED)
        fades = step // p.PROFILE_STEPS != queue.step // p.PROFILE_STEPS
        self._shrink(session, step)
        for number, page in enumerate(queue.pages[: newest + 1]):
            was_read, distance = number in read, newest - number
            self._shadow(session, page, was_read, queue.step, passed, step)
            page.fast = page.fast * p.FAST_FOLD[idle] >> 16
            page.slow = page.slow * p.SLOW_FOLD[idle] >> 16
            count = queue.counts[distance] >> fades
            if was_read:
                page.fast += (4095 - page.fast) * p.FAST + 128 >> 8
                page.slow += (4095 - page.slow) * p.SLOW + 128 >> 8
                count = min(127, count + 1)
            queue.counts[distance] = count
            entry = 64 * _bucket(page.fast, 8, 4) + 8 * _bucket(page.slow, 11, 8)
            entry += _bucket(count, 6, 8)
            if number < newest:
                self._learn(queue, page, entry, was_read)
            page.before, page.guessed, page.post = entry, None, queue.v[entry]
            self.value[squeue, number] = page.post
        self._shrink(session, step)
        queue.step = step

    @staticmethod
    def _learn(queue: _Queue, page: _Page, entry: int, was_read: bool) -> None:
        v, t = queue.v, queue.t
        if page.before is not None:
            aim = p.ONE if was_read else v[entry] * p.LATER_READ >> 8
            v[page.before] += aim - v[page.before] >> p.V_SHIFT
        if page.guessed is not None:
            aim = p.ONE if was_read else 0
            t[page.guessed] += aim - t[page.guessed] >> p.T_SHIFT

    @staticmethod
    def _shadow(session, page, was_read, last_turn, passed, step) -> None:
        """A page leaves its cohort for that of this step, where it was read. One that LRU would
        have had to read earns credit; in its first turn none does, since it was just written."""
        age = None
        if page.cohort is not None:
            age = (last_turn - page.cohort) % _COHORTS + passed
        held = age is not None and age <= (step - session.oldest) % _STEPS
        if not was_read:
            page.cohort = page.cohort if held else None
            return
        if held and age and session.cohorts[page.cohort]:
            session.cohorts[page.cohort] -= 1
            session.total -= 1
        if not held or age:
            session.cohorts[step % _COHORTS] += 1
            session.total += 1
        if not held and page.before is not None:
            session.credit = min(session.credit + p.EARNED, p.CREDIT_MOST)
        page.cohort = step % _COHORTS

    def _shrink(self, session: _Session, step: int) -> None:
        """The oldest cohorts leave LRU's shadow, each as a whole, beyond the frames or where a
        later step has their place."""
        while True:
            if not session.total:
                session.oldest = step
            held = (step - session.oldest) % _STEPS
            if not held or (session.total <= self.frames and held < _COHORTS - 1):
                return
            session.total -= session.cohorts[session.oldest % _COHORTS]
            session.cohorts[session.oldest % _COHORTS] = 0
            session.oldest = (session.oldest + 1) % _STEPS

    def guessed(self, squeue: int, masses: dict[int, int], newest: int) -> None:
        """A guessed query of a queue; ``masses`` of the pages that were scored, 16 bits each."""
        queue = self._queue(squeue)
        for number, page in enumerate(queue.pages[:newest]):
            page.guessed = p.T_SIDE * _side(page.post) + _side(masses.get(number, 0))
            likely = queue.t[page.guessed]
            rest = (p.ONE - likely) * page.post >> 16
            self.value[squeue, number] = likely + (rest * p.UNGUESSED >> 8)

    def likely(self, squeue: int, page: int) -> int:
        """How likely the last guess says that a page is wanted, 16 bits; 0 where there was none
        since its queue's last turn."""
        queue = self._queue(squeue)
        place = queue.pages[page].guessed
        return 0 if place is None else queue.t[place]

    def early(self, squeue: int, absent, newest: int) -> list[tuple[int, int, int]]:
        """After a guess: of the ``absent`` pages that it scored, (page, likely, value) of those
        that the session's credit says are to be fetched, by page."""
        credit = max(0, self.credit(squeue // self.config.queues))
        least = p.THRESHOLD - (credit * p.THRESHOLD_CREDIT // p.COST)
        found = ((page, self.likely(squeue, page)) for page in sorted(absent) if page < newest)
        return [
            (page, likely, int(self.value[squeue, page]))
            for page, likely in found
            if likely > least
        ]

    def _queue(self, squeue: int) -> _Queue:
        if squeue not in self._queues:
            self._queues[squeue] = _Queue(self.config.pages)
        return self._queues[squeue]
