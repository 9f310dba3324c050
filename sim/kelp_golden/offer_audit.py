# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which queue a free-running evictor may sweep next, or take its victim from, under policy `kelp`
(docs/policy.md, docs/design.md §6)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from kelp_spec.config import POOLS, Config
from kelp_spec.policy import SWEEPS, SWEEPS_MOST, Policy

from .eviction import Candidate, QueueState

__all__ = ["OfferAudit"]


class _At(NamedTuple):
    """What the evictor may be at while it sweeps a queue: ``kind`` is "refresh"; "offered", at a
    queue that the tree names, after so many sweeps, so many of them worthy; "asked", at the queue
    that asks; "search", at one queue after another."""

    kind: str
    sweeps: int = 0
    worthy: int = 0


_REFRESH, _ASKED, _SEARCH = _At("refresh"), _At("asked"), _At("search")
_BEGIN = _At("offered")
_EVERYTHING = frozenset({_REFRESH, _ASKED, _SEARCH, _BEGIN})
_UNKNOWN = 1 << 40


class _Next:
    """What may follow on a sweep, or a choice's beginning, in a pool: a CLAIM from the list
    (``take``), a search from one queue to the next (``search``), or the sweep of another queue."""

    def __init__(self, pool: int):
        self.pool = pool
        self.take = self.search = False
        self.sweeps: dict[int, set[_At]] = {}

    def add(self, squeue: int, at: _At) -> None:
        self.sweeps.setdefault(squeue, set()).add(at)


class OfferAudit:
    """Follows what each queue has offered, and judges each sweep and CLAIM under policy `kelp`.

    A queue's offer is a function of its latest sweep and CLAIM, which the commit stream shows. What
    is not known for certain is kept as a range, or as all that may be:

    - A queue offers nothing once it has no listed page or an eviction of it was cancelled. That is
      absorbed at the latest when the evictor begins the sweep after the one under way; until then
      its offer is what it was or 0.
    - The requester, and the queue that is to be valued anew, are read at some moment between two
      ops of the evictor.
    - A sweep may be a choice's or that of a queue left behind, where both are lawful; the next op
      tells.

    A pool in which queues of both policies have pages is not judged, nor is the order of a search
    after a queue that gave nothing.

    Parameters
    ----------
    config : Config
    queues : QueueState
    """

    def __init__(self, config: Config, queues: QueueState):
        self.config, self.queues = config, queues
        # by squeue: least and largest excess that its leaf may have, pool and policy
        self._least, self._most = [0] * config.squeues, [0] * config.squeues
        self._pool, self._policy = queues.pool[:], queues.policy[:]
        self._heaps: list[list[tuple[int, int]]] = [[] for _ in POOLS]
        # queues that offer nothing from now on, since the latest sweep began and since the one
        # before; likewise queues that got their first page or lost their last one
        self._emptied: tuple[set[int], set[int]] = set(), set()
        self._turned: tuple[set[int], set[int]] = set(), set()
        self._asks = [{queues.requester[p]} for p in range(len(POOLS))]
        # to be valued anew, in the order in which they were left; the latest, if it surely waits
        self._left: list[int] = []
        self._due: int | None = None
        self._plain = [0] * len(POOLS)  # pages listed in queues of policy 0
        # What the evictor may be at; empty: at nothing; None: at anything.
        self._at: frozenset[_At] | None = frozenset()
        self._squeue = -1  # swept last
        self._taking = False  # a page of its list was CLAIMed in vain

    # - what M3 decided ----------------------------------------------------------------------------
    def changed(self, squeue: int, page: int, moved: bool) -> None:
        """As :attr:`QueueState.on_change`."""
        queues = self.queues
        if (queues.pool[squeue], queues.policy[squeue]) != (
            self._pool[squeue],
            self._policy[squeue],
        ):
            self._configured(squeue)
        pool, pages = queues.pool[squeue], queues.listed[squeue]
        self._asks[pool].add(queues.requester[pool])
        if not moved:
            return
        listed = page in pages
        if len(pages) == listed:  # it has none now, or this is its first
            self._turned[0].add(squeue)
            if squeue == self._due:
                self._due = None
        if queues.policy[squeue] != Policy.KELP:
            self._plain[pool] += 1 if listed else -1
        elif not pages or queues.cancelled(squeue):
            self._least[squeue] = 0
            self._emptied[0].add(squeue)

    def _configured(self, squeue):
        queues, count = self.queues, len(self.queues.listed[squeue])
        if self._policy[squeue] != Policy.KELP:
            self._plain[self._pool[squeue]] -= count
        self._pool[squeue], self._policy[squeue] = queues.pool[squeue], queues.policy[squeue]
        if queues.policy[squeue] != Policy.KELP:
            self._plain[self._pool[squeue]] += count
        # What a queue of policy 0 had beyond its budget stands until its first offer.
        known = queues.policy[squeue] != Policy.KELP or queues.excess[squeue] is None
        self._set(squeue, 0, 0 if known else _UNKNOWN)

    def left(self, squeue: int) -> None:
        """A session's access went on to another queue or step: this one is to be valued anew."""
        self._left.append(squeue)
        self._due = squeue if self.queues.listed[squeue] else None

    # - what the evictor did -----------------------------------------------------------------------
    def scanned(self) -> None:
        """Another SCAN of the sweep under way."""
        if len(self._left) > 1:
            del self._left[:-1]
        for pool, asks in enumerate(self._asks):
            if len(asks) > 1:
                self._asks[pool] = {self.queues.requester[pool]}

    def swept(self, squeue: int, found: Sequence[Candidate], passed_over: set[int]) -> str | None:
        """The sweep of this queue begins; `found`: list of the queue swept last, sorted, without
        what was CLAIMed of it; `passed_over`: pages of it that need not be tried."""
        pool, lawful, named, wrong = self.queues.pool[squeue], set(), set(), None
        if self._at is None or self._plain[pool]:
            lawful = _EVERYTHING
        else:
            for at in self._at or {None}:
                for following in self._after(at, found, passed_over, pool):
                    named |= following.sweeps.keys()
                    lawful |= following.sweeps.get(squeue, set())
                    if following.search and following.pool == pool:
                        lawful.add(_SEARCH)
        self.keep(found, passed_over)
        if not lawful:
            lawful = _EVERYTHING
            wrong = f"squeue {squeue} swept, by the offers it may be {sorted(named)}"
        if _REFRESH in lawful and squeue in self._left:
            del self._left[: self._left.index(squeue) + (len(lawful) == 1)]
            if squeue == self._due:
                self._due = None
        self._at, self._squeue, self._taking = frozenset(lawful), squeue, False
        self._age()
        return wrong

    def claimed(self, squeue: int, found: Sequence[Candidate], passed_over: set[int]) -> str | None:
        """A page of the swept queue's list is CLAIMed; `found`: the list before."""
        wrong = None
        if not self._taking and self._at is not None and not self._plain[self._pool[squeue]]:
            if not any(self._after(at, found, passed_over)[0].take for at in self._at):
                wrong = f"CLAIM of squeue {squeue}, by the offers another queue is due"
        self._taking = True
        self.scanned()
        return wrong

    def given(self, found: Sequence[Candidate]) -> None:
        """The CLAIM took its page; `found`: what is left of the list."""
        if self._squeue >= 0:
            self._write(self._squeue, {_offer(found)})
        self._at, self._taking = frozenset(), False

    def other(self, done: bool) -> None:
        """The evictor is at a queue of policy 0; `done`: it has its victim."""
        self._at, self._taking, self._squeue = (frozenset() if done else None), False, -1

    def keep(self, found: Sequence[Candidate], passed_over: set[int]) -> None:
        """Another queue is swept: the one swept last has made its offer."""
        if not self._at or self._squeue < 0:
            return
        if self._taking:  # all of the list was CLAIMed in vain
            offers = {0}
        else:
            offers = {_offer(found, evict=at != _REFRESH) for at in self._at}
            if self._at != {_REFRESH} and all(c.page in passed_over for c in found):
                offers.add(0)
        self._write(self._squeue, offers)

    def rest(self) -> str | None:
        """The evictor has nothing to do."""
        if self._due is None or self._policy[self._due] != Policy.KELP:
            return None
        return f"squeue {self._due} was left, and its offers are not known anew"

    # - rules --------------------------------------------------------------------------------------
    def _after(self, at, found, passed_over, pool=None) -> list[_Next]:
        """What may follow on the sweep under way, or on nothing (None); where it may have ended,
        also a new job, in `pool`."""
        if at is None:
            return [self._begin(pool)]
        squeue, following = self._squeue, _Next(self._pool[self._squeue])
        used_up = all(c.page in passed_over for c in found)
        kept = self._least[squeue], self._most[squeue]
        offer = 0 if self._taking else _offer(found, evict=at != _REFRESH)
        least = 0 if used_up and at != _REFRESH or self._may_be_emptied(squeue) else offer
        self._set(squeue, least, offer)
        if not self._taking and at.kind == "offered":
            has_page = bool(found) and not found[0].kind
            after = at._replace(sweeps=at.sweeps + 1, worthy=at.worthy + has_page)
            self._go_on(following, squeue, after, has_page, frozenset())
        else:
            following.take = at != _REFRESH
        following.search |= following.take and used_up
        ended = pool is not None and (at == _REFRESH or following.search)
        both = [following, self._begin(pool)] if ended else [following]
        self._set(squeue, *kept)
        return both

    def _go_on(self, following, squeue, at, has_page, without):
        """The offer of a queue that the tree named has been written. `without`: queues that were
        found to have no page, which may be the latest."""
        roots, least, most = self._roots(following.pool, without)
        stop = at.worthy == SWEEPS or at.sweeps == SWEEPS_MOST
        if not stop:
            stop = squeue in roots or least <= 1
            for root in roots:
                if root != squeue and most[root] > 1:
                    self._name(following, root, at, without)
        for asks in self._asks[following.pool] if stop else ():
            mine = has_page or asks == squeue
            if not mine and self._may_sweep(following.pool, asks):
                following.add(asks, _ASKED)
            if mine or self._may_not_sweep(following.pool, asks):
                following.take |= squeue not in without
                following.search |= squeue in without

    def _name(self, following, squeue, at, without=frozenset()):
        """The tree, or the requester, names a queue: it is swept, or found to have no page."""
        if self._may_sweep(following.pool, squeue):
            following.add(squeue, at)
        if self._may_not_sweep(following.pool, squeue):
            after = at._replace(sweeps=min(at.sweeps + 1, SWEEPS_MOST))
            self._go_on(following, squeue, after, False, without | {squeue})

    def _begin(self, pool) -> _Next:
        """A new job: queues with which a choice in this pool may begin, and those to be valued
        anew."""
        following = _Next(pool)
        roots, least, most = self._roots(pool, frozenset())
        firsts = {root for root in roots if most[root]}
        for squeue in firsts if least else firsts | self._asks[pool]:
            self._name(following, squeue, _BEGIN)
        for squeue in self._left:
            following.add(squeue, _REFRESH)
        return following

    def _roots(self, pool, without):
        """The queues that the pool's root may name; the least excess that it may have; the most
        that each may."""
        heap, kept, seen, best = self._heaps[pool], [], {}, (0, 0)
        while heap and (-heap[0][0], -heap[0][1]) >= best:
            most, squeue = -heap[0][0], heap[0][1]
            entry = heapq.heappop(heap)
            if self._most[squeue] != most or self._pool[squeue] != pool or squeue in seen:
                continue
            kept.append(entry)
            seen[squeue] = most
            if squeue not in without:
                best = max(best, (self._least[squeue], -squeue))
        for entry in kept:
            heapq.heappush(heap, entry)
        roots = [q for q, most in seen.items() if q not in without and (most, -q) >= best]
        return roots, best[0], seen

    def _may_sweep(self, pool, squeue):
        if self._pool[squeue] != pool or self._policy[squeue] != Policy.KELP:
            return False
        return bool(self.queues.listed[squeue]) or self._has_turned(squeue)

    def _may_not_sweep(self, pool, squeue):
        return (
            not self._may_sweep(pool, squeue)
            or not self.queues.listed[squeue]
            or self._has_turned(squeue)
        )

    def _has_turned(self, squeue):
        return squeue in self._turned[0] or squeue in self._turned[1]

    # - offers -------------------------------------------------------------------------------------
    def _set(self, squeue, least, most):
        if most != self._most[squeue] and most:
            heapq.heappush(self._heaps[self._pool[squeue]], (-most, squeue))
        self._least[squeue], self._most[squeue] = least, most

    def _may_be_emptied(self, squeue):
        """What empties the queue may be absorbed after an offer of now."""
        return squeue in self._emptied[0] or squeue in self._emptied[1]

    def _write(self, squeue, offers):
        emptied = self._may_be_emptied(squeue)
        self._set(squeue, 0 if emptied else min(offers), max(offers))
        for queues in self._emptied:
            queues.discard(squeue)

    def _age(self):
        """A sweep begins: what was decided before the one before it is absorbed."""
        new, old = self._emptied
        for squeue in old:
            self._set(squeue, 0, 0)
        self._emptied = set(), new
        self._turned = set(), self._turned[0]
        self.scanned()


def _offer(found: Sequence[Candidate], *, evict: bool = True) -> int:
    """What a queue with these candidates offers when it is asked for a page, or is valued anew."""
    if not found:
        return 0
    worth = found[0].kind == 0 or not evict and found[0].kind == 1
    return found[0].priority if worth else 1
