# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which queue a free-running evictor may sweep next, or take its victim from, in a pool with queues
of policy `kelp` (docs/policy.md, docs/design.md §6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kelp_spec.config import POOLS, Config
from kelp_spec.policy import LEFT, SWEEPS, SWEEPS_MOST, Policy

from ..eviction import Candidate, QueueState
from .leaves import NOTHING, Leaves

__all__ = ["OfferAudit"]


class _At(NamedTuple):
    """What the evictor may be at with a queue.

    ``kind`` is "refresh"; "offered", at one that the tree names, after so many sweeps, so many of
    them worthy; "asked", at the one that asks, after the one that the tree named last, which is
    ``first`` where it has a page; "back", at that one again; "plain", at one of policy 0 that the
    tree or the requester names; "root", at the pool's root, after the first queue gave nothing;
    "search", at one queue after another until ``first``; "old" and "old root", at the list of a
    queue of policy 0 that was swept for an earlier choice.
    """

    kind: str
    sweeps: int = 0
    worthy: int = 0
    first: int = -1


_REFRESH, _BACK, _PLAIN, _ROOT = map(_At, ("refresh", "back", "plain", "root"))
#: With a list of an earlier sweep, and without it.
_OLD = {_At("old"): _PLAIN, _At("old root"): _ROOT}
_BEGIN = _At("offered")
_UNKNOWN = 1 << 40
_NONE: frozenset[int] = frozenset()


class _Next:
    """What may follow on a sweep, or a choice's beginning, in a pool: a CLAIM from the list
    (``take``) or from the list of an earlier sweep (``lists``), the sweep of another queue, or
    nothing, since all queues were tried (``ended``)."""

    def __init__(self, pool: int):
        self.pool = pool
        self.take = self.ended = False
        self.lists: set[tuple[int, _At]] = set()
        self.sweeps: dict[int, set[_At]] = {}

    def add(self, squeue: int, at: _At) -> None:
        self.sweeps.setdefault(squeue, set()).add(at)


class OfferAudit:
    """Follows what each queue has offered, or has beyond its budget, and judges each sweep and
    CLAIM in pools with a queue of policy `kelp`, whatever the other queues' policies.

    A queue's offer is a function of its latest sweep and CLAIM, which the commit stream shows. What
    is not known for certain is kept as a range, or as all that may be:

    - A queue offers nothing once it has no listed page or an eviction of it was cancelled, and an
      excess of policy 0 follows its pages: at a distance (`Leaves`).
    - The requester, and the queues that are to be valued anew, are read at some moment between two
      ops of the evictor.
    - A sweep may be a choice's or that of a queue left behind, where both are lawful; the next op
      tells.

    After a choice in a pool that is not judged here, and that found nothing, the next one is free.

    Parameters
    ----------
    config : Config
    queues : QueueState
    """

    def __init__(self, config: Config, queues: QueueState):
        self.config, self.queues, self.leaves = config, queues, Leaves(config)
        self._pool, self._policy = queues.pool[:], queues.policy[:]
        self.leaves.pool = self._pool
        # queues that got their first page or lost their last one, since the latest sweep began and
        # since the one before
        self._turned: tuple[set[int], set[int]] = set(), set()
        self._asks = [{queues.requester[p]} for p in range(len(POOLS))]
        # to be valued anew, in the order in which they were left; of those that surely wait the
        # number too, which counts all that were ever left
        self._left: list[int] = []
        self._due: list[tuple[int, int]] = []
        self._times = 0
        self._kelp = [0] * len(POOLS)  # queues of policy `kelp` in each
        for pool, policy in zip(queues.pool, queues.policy, strict=True):
            self._kelp[pool] += policy == Policy.KELP
        # What the evictor may be at; empty: at nothing; None: at anything.
        self._at: frozenset[_At] | None = frozenset()
        self._squeue = -1  # swept last
        self._good = False  # its list is good for another choice
        self._taking = False  # a page of its list was CLAIMed in vain

    def judges(self, squeue: int) -> bool:
        """The queue's pool is judged here."""
        return self._kelp[self.queues.pool[squeue]] > 0

    # - what M3 decided ----------------------------------------------------------------------------
    def changed(self, squeue: int, page: int, moved: bool) -> None:
        """As :attr:`QueueState.on_change`."""
        queues = self.queues
        pool, pages, kelp = (
            queues.pool[squeue],
            queues.listed[squeue],
            queues.policy[squeue] == Policy.KELP,
        )
        if (pool, queues.policy[squeue]) != (self._pool[squeue], self._policy[squeue]):
            self._configured(squeue)
        if not kelp:
            self.leaves.follow(squeue, queues.excess[squeue])
        self._asks[pool].add(queues.requester[pool])
        if not moved:
            return
        if len(pages) == (page in pages):  # it has none now, or this is its first
            self._turned[0].add(squeue)
            self._due = [(time, due) for time, due in self._due if due != squeue]
        if kelp and pages and queues.cancelled(squeue) and squeue == self._squeue and not self._at:
            self.leaves.doubt(squeue)
        elif kelp and (not pages or queues.cancelled(squeue)):
            self.leaves.empty(squeue)

    def _configured(self, squeue):
        queues, was_kelp = self.queues, self._policy[squeue] == Policy.KELP
        self._kelp[self._pool[squeue]] -= was_kelp
        self._pool[squeue], self._policy[squeue] = queues.pool[squeue], queues.policy[squeue]
        kelp = self._policy[squeue] == Policy.KELP
        self._kelp[self._pool[squeue]] += kelp
        if kelp:
            # What a queue of policy 0 had beyond its budget stands until its first offer.
            known = was_kelp or queues.excess[squeue] is None
            self.leaves.set(squeue, NOTHING, NOTHING if known else _UNKNOWN)
        elif was_kelp:
            self.leaves.becomes_plain(squeue)

    def left(self, squeue: int) -> None:
        """A session's access went on to another queue or step: this one is to be valued anew."""
        self._left.append(squeue)
        self._times += 1
        self._due = [each for each in self._due if each[0] > self._times - LEFT]
        if self.queues.listed[squeue]:
            self._due.append((self._times, squeue))

    # - what the evictor did -----------------------------------------------------------------------
    def scanned(self) -> None:
        """Another SCAN of the sweep under way."""
        if len(self._left) > LEFT:
            del self._left[:-LEFT]
        for pool, asks in enumerate(self._asks):
            if len(asks) > 1:
                self._asks[pool] = {self.queues.requester[pool]}

    def swept(
        self, squeue: int, found: Sequence[Candidate], passed_over: set[int], good: bool
    ) -> str | None:
        """The sweep of this queue begins; `found`: list of the queue swept last, sorted, without
        what was CLAIMed of it; `passed_over`: pages of it that need not be tried; `good`: the list
        is one of policy 0 with which a choice of that queue would have begun."""
        pool, lawful, named, wrong = self.queues.pool[squeue], set(), set(), None
        self._good = good
        if self._at is not None:
            for following in self._all_after(found, passed_over, pool):
                named |= following.sweeps.keys()
                lawful |= following.sweeps.get(squeue, set())
            if not lawful:
                wrong = f"squeue {squeue} swept, by the offers it may be {sorted(named)}"
        self.keep(found, passed_over)
        if not lawful:
            lawful = self._anything(squeue)
        if _REFRESH in lawful and squeue in self._left:
            if len(lawful) == 1:
                del self._left[: self._left.index(squeue) + 1]
            dues = [each for each in self._due if each[1] == squeue]
            if dues:
                self._due.remove(dues[0])
        self._at, self._squeue, self._taking = frozenset(lawful), squeue, False
        self._turned = set(), self._turned[0]
        self.leaves.age()
        self.scanned()
        return wrong

    def _anything(self, squeue):
        """What the evictor may be at with a queue of which nothing is known."""
        queues = range(self.config.squeues)
        search = {_ROOT} | {_At("search", first=q) for q in queues}
        if self._policy[squeue] == Policy.KELP:
            asked = {_At("asked", first=q) for q in (-1, *queues)}
            return {_REFRESH, _BACK, _BEGIN} | asked | search
        return {_PLAIN} | search

    def begun(self, squeue: int, found: Sequence[Candidate], passed_over: set[int]) -> str | None:
        """A choice begins with a CLAIM from the list of a queue of policy 0 that was swept for an
        earlier one."""
        wrong, lawful, pool = None, set(), self.queues.pool[squeue]
        if self._at is not None:
            for following in self._all_after(found, passed_over, pool):
                lawful |= {at for listed, at in following.lists if listed == squeue}
            if not lawful:
                wrong = f"CLAIM of squeue {squeue} from its list, by the offers it is not asked"
        self._at, self._squeue, self._taking = frozenset(lawful or _OLD), squeue, True
        self.scanned()
        return wrong

    def claimed(self, squeue: int, found: Sequence[Candidate], passed_over: set[int]) -> str | None:
        """A page of the swept queue's list is CLAIMed; `found`: the list before."""
        wrong = None
        if not self._taking and self._at is not None:
            if not any(self._after(at, found, passed_over)[0].take for at in self._at):
                wrong = f"CLAIM of squeue {squeue}, by the offers another queue is due"
        self._taking = True
        self.scanned()
        return wrong

    def given(self, found: Sequence[Candidate]) -> None:
        """The CLAIM took its page; `found`: what is left of the list."""
        if self._squeue >= 0 and self._policy[self._squeue] == Policy.KELP:
            self.leaves.write(self._squeue, {_offer(found)})
        self._at, self._taking = frozenset(), False
        self.leaves.settle()

    def other(self, squeue: int, done: bool) -> None:
        """The evictor is in a pool that is not judged here, and this queue's list stands, with
        which a choice may begin when the pool is judged; `done`: it has its victim."""
        self._at, self._taking, self._squeue = (frozenset() if done else None), False, squeue
        self._good = False
        if done:
            self.leaves.settle()

    def keep(self, found: Sequence[Candidate], passed_over: set[int]) -> None:
        """Another queue is swept: the one swept last has made its offer."""
        squeue = self._squeue
        if not self._at or squeue < 0 or self._policy[squeue] != Policy.KELP:
            return
        if self._taking:  # all of the list was CLAIMed in vain
            offers = {0}
        else:
            offers = {_offer(found)}
            if self._at != {_REFRESH} and all(c.page in passed_over for c in found):
                offers.add(0)
        self.leaves.write(squeue, offers)

    def rest(self) -> str | None:
        """The evictor has nothing to do."""
        for _, squeue in self._due:
            if self._policy[squeue] == Policy.KELP:
                return f"squeue {squeue} was left, and its offers are not known anew"
        return None

    def may_have_dropped(self, pool: int) -> bool:
        """A choice of which the stream shows nothing, in another pool, may have dropped the list of
        a queue of `pool`: it named a queue of policy `kelp` that had no page."""
        return any(
            self._policy[squeue] == Policy.KELP and self._may_not_list(other, squeue)
            for other, kelp in enumerate(self._kelp)
            if kelp and other != pool
            for squeue in self._firsts(other)
        )

    # - rules --------------------------------------------------------------------------------------
    def _all_after(self, found, passed_over, pool):
        """What may follow on what the evictor may be at, a new choice in `pool` among it."""
        for at in self._at or {None}:
            yield from self._after(at, found, passed_over, pool)

    def _after(self, at, found, passed_over, pool=None) -> list[_Next]:
        """What may follow on the sweep under way, or on nothing (None); where it may have ended,
        also a new job, in `pool`."""
        if at is None:
            return [self._begin(pool)]
        squeue, following, leaves = self._squeue, _Next(self._pool[self._squeue]), self.leaves
        kelp = self._policy[squeue] == Policy.KELP
        used_up = all(c.page in passed_over for c in found)
        kept = leaves.least[squeue], leaves.most[squeue]
        if kelp:
            offer = (0 if self._taking else _offer(found)) or NOTHING
            emptied = used_up and at != _REFRESH or leaves.may_be_emptied(squeue)
            leaves.set(squeue, NOTHING if emptied else offer, offer)
        if not self._taking and at.kind == "offered":
            best = found[0].kind if found else None
            after = at._replace(sweeps=at.sweeps + 1, worthy=at.worthy + (best == 0))
            self._go_on(following, squeue, after, best, _NONE)
        elif not self._taking and at.first >= 0 and at.kind == "asked" and _kept(found):
            self._go_back(following, at.first, _NONE)
        else:
            following.take = at != _REFRESH
        if following.take and used_up:
            self._used_up(following, squeue, at, {squeue} if kelp else _NONE)
        ended = pool is not None and (at == _REFRESH or following.ended)
        both = [following, self._begin(pool)] if ended else [following]
        leaves.set(squeue, *kept)
        return both

    def _used_up(self, following, squeue, at, without):
        """The list of a queue has no page left."""
        if at in _OLD:
            at = _OLD[at]
            if self._may_list(following.pool, squeue):
                following.add(squeue, at)
            if not self._may_not_list(following.pool, squeue):
                return
        if at.kind == "search":
            self._in_order(following, squeue, at.first)
        elif at == _ROOT:
            self._in_order(following, squeue, squeue)
        else:
            self._search(following, squeue, without)

    def _search(self, following, first, without, old=False):
        """The first queue gave nothing: the pool's root is tried, then one after another.
        `without`: queues that offer nothing; `old`: no list was made in this choice."""
        roots, least, _ = self.leaves.roots(following.pool, without)
        for root in roots if least != NOTHING else {*roots, first}:
            if old and root != first and self._from_list(following, root, "old root"):
                continue
            if root != first and self._may_list(following.pool, root):
                following.add(root, _ROOT)
            if root == first or self._may_not_list(following.pool, root):
                self._in_order(following, root, root)

    def _in_order(self, following, squeue, first):
        """After `squeue` the next queue with a page is tried, until it would be `first`."""
        while (squeue := (squeue + 1) % self.config.squeues) != first:
            if self._may_list(following.pool, squeue):
                following.add(squeue, _At("search", first=first))
            if not self._may_not_list(following.pool, squeue):
                return
        following.ended = True

    def _go_on(self, following, squeue, at, best, without):
        """The offer of a queue that the tree named has been written; `best`: class of its best
        page, or None. `without`: queues that were found to have no page, which may be the
        latest."""
        pool = following.pool
        roots, least, most = self.leaves.roots(pool, without)
        stop = at.worthy == SWEEPS or at.sweeps == SWEEPS_MOST
        if not stop:
            stop = squeue in roots or least <= 1
            for root in roots:
                if root != squeue and most[root] > 1:
                    self._name(following, root, at, without)
        for asks in self._asks[pool] if stop else ():
            mine = best == 0 or asks == squeue
            kelp = self._policy[asks] == Policy.KELP
            if not mine and kelp and self._may_list(pool, asks):
                following.add(asks, _At("asked", first=-1 if best is None else squeue))
                if self._may_not_list(pool, asks):  # its last page has gone before it is swept
                    if best is None:
                        self._search(following, asks, without | {asks})
                    else:
                        self._go_back(following, squeue, without | {asks})
            if mine or not kelp or self._may_not_list(pool, asks):
                if squeue in without:
                    self._search(following, squeue, without)
                else:
                    following.take = True

    def _go_back(self, following, squeue, without):
        """The queue that asks has no page to give: the one before it is swept again."""
        if self._may_list(following.pool, squeue):
            following.add(squeue, _BACK)
        if self._may_not_list(following.pool, squeue):  # its last page has gone meanwhile
            self._search(following, squeue, without | {squeue})

    def _name(self, following, squeue, at, without=_NONE):
        """The tree, or the requester, names a queue: it is swept, or found to have no page."""
        pool, kelp = following.pool, self._policy[squeue] == Policy.KELP
        begins = not kelp and at == _BEGIN
        if begins and self._from_list(following, squeue, "old"):
            return
        if self._may_list(pool, squeue):
            following.add(squeue, at if kelp else _PLAIN)
        if self._may_not_list(pool, squeue):
            if kelp:
                after = at._replace(sweeps=min(at.sweeps + 1, SWEEPS_MOST))
                self._go_on(following, squeue, after, None, without | {squeue})
            else:
                self._search(following, squeue, without, begins)

    def _from_list(self, following, squeue, kind):
        """A queue that is tried may have a list of an earlier sweep; returns whether it surely has
        a good one."""
        listed = squeue == self._squeue and self._policy[squeue] == Policy.EMA
        if listed:
            following.lists.add((squeue, _At(kind)))
        return listed and self._good

    def _begin(self, pool) -> _Next:
        """A new job: a choice in this pool, or a queue that is to be valued anew."""
        following = _Next(pool)
        for squeue in self._firsts(pool):
            self._name(following, squeue, _BEGIN)
        for squeue in self._left:
            if self._policy[squeue] == Policy.KELP:
                following.add(squeue, _REFRESH)
        return following

    def _firsts(self, pool):
        """Queues with which a choice in this pool may begin."""
        roots, least, most = self.leaves.roots(pool, _NONE)
        firsts = {root for root in roots if most[root] > 0}
        return firsts if least > 0 else firsts | self._asks[pool]

    def _may_list(self, pool, squeue):
        listed = self.queues.listed[squeue] or self._has_turned(squeue)
        return self._pool[squeue] == pool and bool(listed)

    def _may_not_list(self, pool, squeue):
        listed = self.queues.listed[squeue] and not self._has_turned(squeue)
        return self._pool[squeue] != pool or not listed

    def _has_turned(self, squeue):
        return squeue in self._turned[0] or squeue in self._turned[1]


def _kept(found: Sequence[Candidate]) -> bool:
    """The queue that asks keeps its pages: it has none, or none beside its newest."""
    return not found or found[0].kind == 2


def _offer(found: Sequence[Candidate]) -> int:
    """What a queue with these candidates offers when it is asked for a page, or is valued anew."""
    if not found:
        return 0
    return 1 if found[0].kind else found[0].priority
