# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a free-running evictor may find in its trees: of each queue the least and the most that its
leaf may say (docs/design.md §6)."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from kelp_spec.config import POOLS, Config

__all__ = ["NOTHING", "Leaves"]

#: Of a queue that has nothing to give; below every excess.
NOTHING = -1 << 40


class Leaves:
    """Ranges of the leaves of all pools' trees.

    A leaf follows a queue's decisions at a distance. What was decided before the sweep before the
    one that begins is absorbed, and so is all that was decided before a CLAIM that ended a choice.

    Parameters
    ----------
    config : Config

    Attributes
    ----------
    least, most : list[int]
        By squeue; NOTHING where it may have, or has, nothing.
    pool : list[int]
        Of each queue; to be set when it is configured.
    """

    def __init__(self, config: Config):
        self.least, self.most = [NOTHING] * config.squeues, [NOTHING] * config.squeues
        self.pool = [0] * config.squeues
        self._heaps: list[list[tuple[int, int]]] = [[] for _ in POOLS]
        # Policy `kelp`: queues that offer nothing from now on, since the latest sweep began and
        # since the one before. Policy 0: excess as it is, and least and most in either time.
        self._emptied: tuple[set[int], set[int]] = set(), set()
        self._excess: list[int | None] = [NOTHING] * config.squeues
        self._held: tuple[dict[int, tuple[int, int]], ...] = {}, {}

    def set(self, squeue: int, least: int, most: int) -> None:
        if most != self.most[squeue] and most != NOTHING:
            heapq.heappush(self._heaps[self.pool[squeue]], (-most, squeue))
        self.least[squeue], self.most[squeue] = least, most

    def roots(self, pool: int, without: Collection[int]) -> tuple[list[int], int, dict[int, int]]:
        """The queues that the pool's root may name, beside some; the least excess that it may have;
        the most that each may."""
        heap, kept, seen, best = self._heaps[pool], [], {}, (NOTHING, 0)
        while heap and (-heap[0][0], -heap[0][1]) >= best:
            entry = heapq.heappop(heap)
            most, squeue = -entry[0], entry[1]
            if self.most[squeue] != most or self.pool[squeue] != pool or squeue in seen:
                continue
            kept.append(entry)
            seen[squeue] = most
            if squeue not in without:
                best = max(best, (self.least[squeue], -squeue))
        for entry in kept:
            heapq.heappush(heap, entry)
        roots = [q for q, most in seen.items() if q not in without and (most, -q) >= best]
        return roots, best[0], seen

    # - policy `kelp` ------------------------------------------------------------------------------
    def empty(self, squeue: int) -> None:
        """Nothing is left, or an eviction was cancelled: it offers nothing, sooner or later."""
        self.least[squeue] = NOTHING
        self._emptied[0].add(squeue)

    def doubt(self, squeue: int) -> None:
        """An eviction was cancelled, and the offer that a CLAIM before it ends with may be written
        later: it offers nothing, or that."""
        self.least[squeue] = NOTHING

    def may_be_emptied(self, squeue: int) -> bool:
        """What empties the queue may be absorbed after an offer of now."""
        return squeue in self._emptied[0] or squeue in self._emptied[1]

    def write(self, squeue: int, offers: Iterable[int]) -> None:
        """One of these was written."""
        offers = [offer or NOTHING for offer in offers]
        emptied = self.may_be_emptied(squeue)
        self.set(squeue, NOTHING if emptied else min(offers), max(offers))
        for queues in self._emptied:
            queues.discard(squeue)

    # - policy 0 -----------------------------------------------------------------------------------
    def becomes_plain(self, squeue: int) -> None:
        """The queue is one of policy 0 from now on: its excess is known when it is followed next,
        and until that is absorbed its leaf may say what the other policy left there. What emptied
        the queue before is absorbed earlier."""
        for queues in self._emptied:
            queues.discard(squeue)
        self._excess[squeue] = None
        self._held[0][squeue] = self.least[squeue], self.most[squeue]

    def follow(self, squeue: int, excess: int | None) -> None:
        """The queue's excess, from now on."""
        excess = NOTHING if excess is None else excess
        before, self._excess[squeue] = self._excess[squeue], excess
        if excess != before:
            least, most = self._held[0].get(squeue, (before, before))
            self._held[0][squeue] = min(least, excess), max(most, excess)
            self._range(squeue)

    def _range(self, squeue):
        now = self._excess[squeue]
        held = [held[squeue] for held in self._held if squeue in held]
        self.set(squeue, min([now, *(h[0] for h in held)]), max([now, *(h[1] for h in held)]))

    def settle(self) -> None:
        """A CLAIM ended a choice."""
        changed = self._held[0].keys() | self._held[1].keys()
        self._held = {}, {}
        for squeue in changed:
            self._range(squeue)

    def age(self) -> None:
        """A sweep begins."""
        new, old = self._emptied
        for squeue in old:
            self.set(squeue, NOTHING, NOTHING)
        self._emptied = set(), new
        recent, before = self._held
        self._held = {}, recent
        for squeue in before:
            self._range(squeue)
