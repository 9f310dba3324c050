# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy `kelp`, the executable specification (docs/policy.md): what a page is worth, and what the
device learns from accesses.

:class:`Scores` is what the score engine keeps: word of each page, profile of each queue, the turn
of each session; :class:`KelpPolicy` adds which queue is to be valued anew. Integers throughout;
nothing here owns a page word.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from kelp_spec import policy as p
from kelp_spec.config import Config

from .arithmetic import log2
from .tables import Tables

__all__ = ["KelpPolicy", "Scan", "Scores", "fold_table", "value"]

_TOP, _COUNT_TOP, _EPOCHS = (
    (1 << bits) - 1 for bits in (p.FREQUENCY_BITS, p.PROFILE_BITS, p.EPOCH_BITS)
)


def fold_table(alpha: int, bits: int) -> tuple[int, ...]:
    """[FOLDED + 1]: what n idle steps leave of 2^bits: 2^bits · (1 − α/256)^n, rounded half up."""
    return tuple(
        int((1 << bits) * Fraction(256 - alpha, 256) ** n + Fraction(1, 2))
        for n in range(p.FOLDED + 1)
    )


_FOLD = fold_table(p.ALPHA, p.FREQUENCY_BITS)


def _folded(x: int, idle: int) -> int:
    return x * _FOLD[min(idle, p.FOLDED)] >> p.FREQUENCY_BITS


def value(frequency: int, count: int, idle: int, over: bool) -> int:
    """What a page is worth, 768 … 9468 (14 bits), from its frequency as stored, the profile's
    count at its distance, its idle steps (24 bits) and whether its turn in this step is over."""
    often = _folded(frequency + (count << p.PROFILE_SHIFT), idle << p.FADE_SHIFT)
    return p.LOG_MOST + log2(p.ONCE + often) - log2(4 * (idle + 1) + (p.LATE if over else 0))


@dataclass(frozen=True, slots=True)
class Scan:
    """What a SCAN found of a page: its value (14 bits), and whether the turn of its queue in this
    step is over and it has been read since it was written."""

    value: int
    finished: bool


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
        """INIT: the new word, 0. The page is its queue's newest from now on; the farthest distance
        that this makes reachable starts from nothing."""
        self.newest[squeue] = page
        at = squeue * self.pages + page
        self.counts[at], self.epochs[at] = 0, step >> p.EPOCH_SHIFT & _EPOCHS
        self.turn[session] = (step & 255, squeue, page)
        return 0

    def opened(self, session: int) -> None:
        """The session's queues have counted nothing, and no turn has passed."""
        share = len(self.counts) // len(self.turn)
        own = slice(session * share, (session + 1) * share)
        self.counts[own] = self.epochs[own] = bytes(share)
        self.turn[session] = (0, 0, 0)

    def scrubbed(self, session: int, squeue: int, page: int) -> None:
        """The session closes: its queue's entry at this distance has counted nothing, and no turn
        has passed. Pages that are not scrubbed yet may still be chosen."""
        at = squeue * self.pages + page
        self.counts[at] = self.epochs[at] = 0
        self.turn[session] = (0, 0, 0)

    def touch(self, word: int, session: int, squeue: int, page: int, step: int, gap: int) -> int:
        """TOUCH, ``gap`` steps after the last: the new word."""
        at = self._at(squeue, page)
        self.counts[at] = min(_COUNT_TOP, self._count(at, step) + 1)
        self.epochs[at] = step >> p.EPOCH_SHIFT & _EPOCHS
        self.turn[session] = (step & 255, squeue, page)
        frequency = _folded(word & _TOP, max(gap, 1) - 1)
        return frequency + ((_TOP - frequency) * p.ALPHA + 128 >> 8)

    def scan(self, word: int, session: int, squeue: int, page: int, step: int, gap: int) -> Scan:
        """SCAN, ``gap`` steps after the page's last access; it changes nothing."""
        turn_step, turn_squeue, turn_page = self.turn[session]
        now = turn_step == step & 255
        over = now and (squeue, page) < (turn_squeue, turn_page)
        idle = gap - 1 + over if gap else 0
        frequency, count = word & _TOP, self._count(self._at(squeue, page), step)
        finished = now and squeue < turn_squeue and frequency > 0
        return Scan(value(frequency, count, idle, over), finished)

    def profile(self, squeue: int, page: int, *, allocated: bool) -> int:
        """The raw profile entry, epoch above count, that the page's latest event wrote."""
        at = squeue * self.pages + page if allocated else self._at(squeue, page)
        return self.epochs[at] << p.PROFILE_BITS | self.counts[at]


class KelpPolicy:
    """State of the policy in one device.

    Attributes
    ----------
    scores : Scores
    refresh : int or None
        The squeue that the latest change of queue left behind: its pages are to be valued anew.
    tables : Tables or None
        Policy 2: what pages of its queues are worth, where these know of the queue.
    """

    def __init__(self, config: Config):
        self.scores = Scores(config)
        # (squeue, step) of the latest access
        self._turns: list[tuple[int, int] | None] = [None] * config.sessions
        self.refresh: int | None = None
        self.tables: Tables | None = None

    def opened(self, session: int) -> None:
        self._turns[session] = None
        self.scores.opened(session)

    def access(self, session: int, squeue: int, step: int) -> None:
        """The first demand of a page in a step."""
        before, self._turns[session] = self._turns[session], (squeue, step)
        if before is not None and before != (squeue, step):
            self.refresh = before[0]
