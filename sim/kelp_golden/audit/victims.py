# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which queue a free-running evictor may take its next victim from (spec §7, docs/design.md §6)."""

from __future__ import annotations

from kelp_spec.config import POOLS, Config
from kelp_spec.policy import Policy

from ..eviction import QueueState

__all__ = ["ChoiceAudit"]


class ChoiceAudit:
    """Queues that the rule of policy 0 names at some moment of a choice.

    Choices are made one at a time, and each is a function of the decisions up to its trigger or
    later. So what a choice reads (root of the pool's tree, requester, who has a listed page) stands
    so after some commit between the CLAIM that ended the choice before and the op that is judged.
    The rule is exact where nothing changed meanwhile; else each of these states is lawful.

    A pool with a queue of policy `kelp` is not judged here: its choices follow offers
    (`OfferAudit`).
    """

    def __init__(self, config: Config, queues: QueueState):
        self.config, self.queues = config, queues
        # by pool: queues with which a search may begin; roots, with which it may go on when the
        # first gave nothing (None: there was none); no queue had more than its budget
        self._firsts: list[set[int]] = [set() for _ in POOLS]
        self._seconds: list[set[int | None]] = [set() for _ in POOLS]
        self._in_order = False  # the search may have gone on to a second queue
        self._none = [False] * len(POOLS)
        self._emptied: set[int] = set()  # queues that had no listed page at some moment
        self.begin()

    def begin(self) -> None:
        """A choice has ended: the next one sees nothing older."""
        self._emptied.clear()
        self._in_order = False
        for pool, firsts in enumerate(self._firsts):
            firsts.clear()
            self._seconds[pool].clear()
            self._none[pool] = False
            self._note(pool)

    def changed(self, squeue: int, page: int, moved: bool) -> None:
        """As :attr:`QueueState.on_change`."""
        pages = self.queues.listed[squeue]
        if moved and len(pages) == (page in pages):  # it has none now, or this is its first
            self._emptied.add(squeue)
        self._note(self.queues.pool[squeue])

    def first(self, squeue: int, *, listed: bool = False) -> str | None:
        """The search begins with this queue, or with queues that have no page before it; `listed`:
        with this very one."""
        pool = self.queues.pool[squeue]
        firsts = self._firsts[pool]
        if any(self.queues.policy[first] == Policy.KELP for first in firsts):
            return None
        follows = any(self._follows(first, squeue, listed) for first in firsts)
        self._in_order |= follows
        if follows or squeue in firsts:
            return None
        return f"squeue {squeue} is asked, the rule names {sorted(firsts)}"

    def surely_first(self, squeue: int) -> bool:
        """No search can have begun with another queue."""
        return self._firsts[self.queues.pool[squeue]] == {squeue}

    def following(self, tried: int, squeue: int) -> str | None:
        """The search goes on with this queue after `tried` gave nothing; or that search is over,
        and this is another one's first."""
        pool = self.queues.pool[tried]
        if pool == self.queues.pool[squeue] and self._goes_on(tried, squeue):
            self._in_order = True
            return None
        return self.first(squeue)

    def _follows(self, first, squeue, listed):
        """A search that begins with `first` has nothing to sweep before `squeue`, or before it
        takes a page from that queue's list."""
        pool = self.queues.pool[squeue]
        empty = not self.queues.listed[first] or first in self._emptied
        if not empty and self.queues.pool[first] == pool:
            return False
        return squeue in self._seconds[pool] or not listed and self._goes_on(first, squeue)

    def _goes_on(self, tried, squeue):
        """After `tried` the search may come to `squeue`: it is the root; or the next queue with a
        page in cyclic order after a root, or after `tried` where that is in this order itself or
        there was no root."""
        seconds = self._seconds[self.queues.pool[squeue]]
        ordered = self._in_order or tried in seconds or None in seconds
        starts = [s for s in seconds if s in self._emptied] + ([tried] if ordered else [])
        count = self.config.squeues
        return squeue in seconds or any(self._reaches((s + 1) % count, squeue) for s in starts)

    def _note(self, pool):
        excess, squeue = self.queues.root(pool)
        over = excess is not None and excess > 0
        if over:
            self._firsts[pool].add(squeue)
        self._seconds[pool].add(None if excess is None else squeue)
        self._none[pool] |= not over
        if self._none[pool]:
            self._firsts[pool].add(self.queues.requester[pool])

    def _reaches(self, first, squeue):
        pool, listed, emptied = self.queues.pool, self.queues.listed, self._emptied
        for k in range((squeue - first) % self.config.squeues):
            passed = (first + k) % self.config.squeues
            if pool[passed] == pool[squeue] and listed[passed] and passed not in emptied:
                return False
        return True
