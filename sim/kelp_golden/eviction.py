# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Who is evicted, the executable specification (spec §7; docs/design.md §6).

:class:`QueueState` follows every change of a page word; :class:`Evictor` chooses a victim from it,
sweeping queues as needed. Neither owns a page word: they read ``words``, any object with the flat
sequences ``state``, ``last_step``, ``pinned`` and ``score`` (index = squeue · pages + page).
"""

import heapq
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import PageState
from kelp_spec.policy import SWEEPS, SWEEPS_MOST, Policy

from . import arithmetic
from .kelp_policy import KelpPolicy
from .tables import Tables

__all__ = ["Candidate", "Evictor", "QueueState", "candidate_class", "worth"]

_RESIDENT = int(PageState.RESIDENT)
_NOWHERE = (int(PageState.ABSENT), int(PageState.COLD), int(PageState.LOST))
_VECTOR = 192  # listed pages from which NumPy is quicker than a loop


def candidate_class(
    page: int, last_step: int, step: int, newest: int, finished: bool = False, first: bool = False
) -> int:
    """0 ordinary, 1 touched in the sweep's step, 2 the queue's newest page (whether touched or
    not). Under policy `kelp`, a page that was read is ordinary once its queue's turn in this step
    is over (``finished``). With tables the ``first`` page is as the newest, since every choice
    takes it."""
    kept = page == newest or first and page == 0
    return 2 if kept else int(last_step == step and not finished)


def worth(tables: Tables, squeue: int, page: int) -> int:
    """What tables say that a page is worth at least, less by what would mean something else as an
    offer."""
    return min(tables.worth(squeue, page), 65533)


class QueueState:
    """Listed pages, excess, newest page and requester (docs/design.md §6). A page is listed while
    its word is RESIDENT.

    ``listed[squeue]`` is the set of listed pages, ``newest[squeue]`` a page or -1,
    ``requester[pool]`` a squeue.
    """

    def __init__(self, config: Config):
        self.config = config
        self.listed: list[set[int]] = [set() for _ in range(config.squeues)]
        self.newest = [-1] * config.squeues
        self.pool = [0] * config.squeues
        self.budget = [0] * config.squeues
        self.policy = [0] * config.squeues
        self.tables = [False] * config.squeues  #: policy 2: pages are worth what tables say
        #: lines above the budget, or what was offered (policy `kelp`); None: nothing to give
        self.excess: list[int | None] = [None] * config.squeues
        self.requester = [0] * len(POOLS)
        # an eviction was cancelled: the queue has nothing to give
        self._in_use = [False] * config.squeues
        #: Called with (squeue, page, it was listed or unlisted) after what may change a choice.
        self.on_change: Callable[[int, int, bool], None] | None = None
        self._lines = config.frame_lines
        self._heaps: list[list[tuple[int, int]]] = [[] for _ in POOLS]

    def configure(
        self, squeue: int, pool: int, budget: int, policy: int = 0, tables: bool = False
    ) -> None:
        """The queue's pool, budget (DRAM lines) and policy, from its configuration. Of a budget
        beyond what a DRAM line's address can tell, what that can tell counts."""
        self.tables[squeue] = tables and policy == Policy.KELP
        most = (1 << self.config.dram_line_bits) - 1
        self.pool[squeue], self.policy[squeue] = pool, policy
        self.budget[squeue] = min(budget, most)
        if policy == Policy.EMA:
            self.excess[squeue] = None  # so that the entry is pushed again under its pool
            self._update(squeue)
        if self.on_change is not None:
            self.on_change(squeue, 0, False)

    def observe(
        self, squeue: int, page: int, old: int, new: int, demand: bool = False, write: bool = False
    ) -> None:
        """A page word went from state ``old`` to ``new`` at M3; ``demand`` for READ and WRITE,
        ``write`` for WRITE, and for READ for ownership. Also to be called, with ``old`` =
        RESIDENT, when the old word was uncorrectable."""
        asks = demand and old in _NOWHERE and new not in _NOWHERE
        if asks:
            self.requester[self.pool[squeue]] = squeue
            if write and old != PageState.COLD:
                self.newest[squeue] = page
        pages = self.listed[squeue]
        moved = (new == _RESIDENT) != (page in pages)
        if moved:
            if new == _RESIDENT:
                pages.add(page)
            else:
                pages.remove(page)
            # An eviction was cancelled or failed: others are asked before this queue, until another
            # page of it comes or goes.
            self._in_use[squeue] = old == PageState.WRITING_BACK and new == _RESIDENT
            if self.policy[squeue] == Policy.EMA or self._in_use[squeue] or not pages:
                self._update(squeue)
        if (asks or moved) and self.on_change is not None:
            self.on_change(squeue, page, moved)

    def offer(self, squeue: int, excess: int) -> None:
        """Policy `kelp`: what the queue offered last, 0 for nothing; without a listed page it has
        nothing."""
        self._set(squeue, excess or None if self.listed[squeue] else None)

    def cancelled(self, squeue: int) -> bool:
        """An eviction was cancelled or failed, and no page of the queue came or went since."""
        return self._in_use[squeue]

    def resident_lines(self, squeue: int) -> int:
        return len(self.listed[squeue]) * self._lines[self.pool[squeue]]

    def root(self, pool: int) -> tuple[int | None, int]:
        """(largest excess of the pool's queues, the lowest squeue that has it); (None, 0) when no
        queue has anything to give."""
        heap = self._heaps[pool]
        while heap:
            excess, squeue = heap[0]
            if self.excess[squeue] == -excess and self.pool[squeue] == pool:
                return -excess, squeue
            heapq.heappop(heap)
        return None, 0

    def _update(self, squeue: int) -> None:
        own = self.policy[squeue] == Policy.EMA and not self._in_use[squeue]
        gives = own and self.listed[squeue]
        self._set(squeue, self.resident_lines(squeue) - self.budget[squeue] if gives else None)

    def _set(self, squeue: int, excess: int | None) -> None:
        if excess != self.excess[squeue]:
            self.excess[squeue] = excess
            if excess is not None:
                heapq.heappush(self._heaps[self.pool[squeue]], (-excess, squeue))


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One place of a sweep's list; sorts as it is taken."""

    kind: int  #: class 0, 1, 2
    unwillingness: int  #: minus the priority
    page: int
    last_step: int  #: as scanned; CLAIM is void when the word has another by then

    @property
    def priority(self) -> int:
        return -self.unwillingness


class Evictor:
    """Chooses victims.

    Parameters
    ----------
    config, queues, words
        ``words`` gives the page words and scores. Arrays from :mod:`array` make large sweeps quick.
    step : callable
        session → its step counter.
    recency : callable
        squeue → (m, sh) of its recency constant.
    closing : callable
        session → whether it is being closed; such a session's list is not used again.
    on_sweep : callable or None
        Told of every sweep: squeue, number modulo 16, listed pages in ascending order (the SCANs it
        issues).
    kelp : KelpPolicy
        Of the queues whose policy is `kelp`, or 2.
    """

    def __init__(
        self,
        config: Config,
        queues: QueueState,
        words,
        *,
        step: Callable[[int], int],
        recency: Callable[[int], tuple[int, int]],
        closing: Callable[[int], bool] = lambda session: False,
        on_sweep: Callable[[int, int, list[int]], None] | None = None,
        kelp: KelpPolicy | None = None,
    ):
        self.config, self.queues, self.words = config, queues, words
        self.step, self.recency, self.closing, self.on_sweep = step, recency, closing, on_sweep
        self.squeue = 0  # whose candidates follow
        self.candidates: list[Candidate] = []  # best first
        self.swept_step = 0
        self.sweeps = 0
        self.kelp = kelp
        self.next_pool = 0
        # nothing could be evicted, and nothing has changed since
        self.resting = [False] * len(POOLS)
        self.reported = [False] * len(POOLS)  # NO_VICTIM logged since the last success

    def pool_in_need(
        self, spare: list[int], used: list[int], under_way: list[int], low_water: int
    ) -> int | None:
        """The pool that is served next, or None. ``spare``: free frames less the miss entries that
        wait for one."""
        for k in range(len(POOLS)):
            pool = (self.next_pool + k) % len(POOLS)
            if (
                used[pool]
                and not self.resting[pool]
                and spare[pool] + under_way[pool] < max(1, low_water)
            ):
                return pool
        return None

    def attempt(
        self,
        pool: int,
        claim: Callable[[int, int, int], bool],
        working: set[tuple[int, int]] = frozenset(),
    ) -> tuple[int, int] | None:
        """Find a victim in ``pool`` and claim it: (squeue, page), or None when there is none and
        the pool rests.

        ``claim(squeue, page, last_step)`` is M3's CLAIM: True when the page is
        WRITING_BACK now. ``working`` names the (squeue, page) on which evictions are still under
        way. A None is to be logged as NO_VICTIM when :attr:`reported` was False before.
        """
        self.next_pool = (pool + 1) % len(POOLS)
        queues, config = self.queues, self.config
        excess, first = queues.root(pool)
        if excess is None or excess <= 0:
            first = queues.requester[pool]
        squeue, swept = first, False
        if queues.policy[first] == Policy.KELP:
            first = squeue = self._offered(pool, first)
            swept = queues.policy[first] == Policy.KELP
        page = self._try(pool, squeue, claim, working, swept=swept, listed=not swept)
        if page is None:
            # The pool's root comes before the others, as it is after all that was tried.
            excess, root = queues.root(pool)
            if excess is not None and root != first:
                squeue = first = root
                page = self._try(pool, squeue, claim, working, listed=True)
        while page is None:
            squeue = (squeue + 1) % config.squeues
            if squeue == first:
                self.resting[pool] = True
                return None
            page = self._try(pool, squeue, claim, working)
        self.reported[pool] = False
        return self.squeue, page

    def observe(self, new: int, pinned: int, released: bool = False) -> None:
        """A page word was changed to state ``new``, or a RELEASE was decided: pools that rest may
        try again."""
        if released or new == _RESIDENT and not pinned:
            self.resting = [False] * len(POOLS)

    def drop(self, session: int) -> None:
        """The session is being closed."""
        if self.squeue // self.config.queues == session:
            self.candidates.clear()

    def _try(
        self, pool: int, squeue: int, claim, working, *, swept: bool = False, listed: bool = False
    ) -> int | None:
        """The page that this queue gives, from its list where that may be used (``listed``) and is
        still good, else swept anew unless it is already (``swept``)."""
        session, queues = squeue // self.config.queues, self.queues
        ours = listed and squeue == self.squeue and queues.policy[squeue] == Policy.EMA
        if ours and self.candidates and not self.closing(session):
            if not self.candidates[0].kind or self.swept_step == self.step(session):
                page = self._take(claim, working)
                if page is not None:
                    return page
        if not swept and (queues.pool[squeue] != pool or not queues.listed[squeue]):
            return None
        if not swept:
            self.sweep(squeue)
        return self._give(squeue, claim, working)

    def _take(self, claim, working) -> int | None:
        while self.candidates:
            best = self.candidates.pop(0)
            if (self.squeue, best.page) not in working and claim(
                self.squeue, best.page, best.last_step
            ):
                return best.page
        return None

    # - policy `kelp` ------------------------------------------------------------------------------
    def refresh(self, squeue: int) -> None:
        """Value the queue's pages anew, where its policy is `kelp` and it has any."""
        if self.queues.policy[squeue] == Policy.KELP and self.queues.listed[squeue]:
            self.sweep(squeue)
            self._offer(squeue, self.candidates)

    def _offered(self, pool: int, squeue: int) -> int:
        """The queue that gives. What the tree says was true when a queue was swept last, so that
        the one asked may turn out to have less to offer."""
        queues, worthy = self.queues, 0
        for swept in range(1, SWEEPS_MOST + 1):
            if queues.pool[squeue] == pool and queues.listed[squeue]:
                self.sweep(squeue)
            else:
                self.squeue, self.candidates = squeue, []
            self._offer(squeue, self.candidates)
            worthy += bool(self.candidates) and not self.candidates[0].kind
            excess, best = queues.root(pool)
            if swept == SWEEPS_MOST or worthy == SWEEPS or best == squeue:
                break
            if excess is None or excess <= 1:
                break
            squeue = best
            if queues.policy[best] == Policy.EMA:
                return best
        if self.candidates and not self.candidates[0].kind:
            return squeue
        # Nothing but pages in use: then the queue that asks gives.
        asks = queues.requester[pool]
        if (
            asks != squeue
            and queues.policy[asks] == Policy.KELP
            and queues.pool[asks] == pool
            and queues.listed[asks]
        ):
            other = bool(self.candidates)
            self.sweep(asks)
            self._offer(asks, self.candidates)
            if not other or self.candidates and self.candidates[0].kind < 2:
                return asks
            # But not the page that it is about to write.
            self.sweep(squeue)
        return squeue

    def _give(self, squeue: int, claim, working) -> int | None:
        """Claim the swept queue's best page. Under `kelp` its list serves once: the rest of it says
        what the queue offers from now on."""
        page = self._take(claim, working)
        if self.queues.policy[squeue] == Policy.KELP:
            self._offer(squeue, self.candidates)
            self.candidates = []
        return page

    def _offer(self, squeue: int, candidates: list[Candidate]) -> None:
        """What a queue with these candidates offers; 1 where there is nothing but pages in use."""
        if not candidates:
            self.queues.offer(squeue, 0)
        else:
            self.queues.offer(squeue, 1 if candidates[0].kind else candidates[0].priority)

    def _value(self, squeue: int, pages, step: int, newest: int) -> None:
        """The list of a queue whose policy is `kelp`."""
        words, base, found = self.words, squeue * self.config.pages, []
        session = squeue // self.config.queues
        for page in pages:
            at = base + page
            if words.state[at] == _RESIDENT and not words.pinned[at]:
                last = words.last_step[at]
                scan = self.kelp.scores.scan(
                    words.score[at], session, squeue, page, step, step - last & arithmetic.AGE_MASK
                )
                first = self.queues.tables[squeue]
                kind = candidate_class(page, last, step, newest, scan.finished, first)
                value = scan.value
                if first:
                    value = max(value, worth(self.kelp.tables, squeue, page))
                found.append(Candidate(kind, value - 65535, page, last))
        self.candidates = sorted(found)[: self.config.candidates]

    def sweep(self, squeue: int) -> None:
        """Make the list of ``squeue``'s best candidates from its page words as they are."""
        config, words = self.config, self.words
        pages = self.queues.listed[squeue]
        self.squeue = squeue
        self.swept_step = step = self.step(squeue // config.queues)
        if self.on_sweep:
            self.on_sweep(squeue, self.sweeps & 15, sorted(pages))
        self.sweeps += 1
        newest, base, keep = self.queues.newest[squeue], squeue * config.pages, config.candidates
        if self.queues.policy[squeue] == Policy.KELP:
            self._value(squeue, pages, step, newest)
            return
        if len(pages) >= _VECTOR and isinstance(words.state, array):
            self.candidates = self._best_of_many(base, pages, step, newest, self.recency(squeue))
            return
        state, last_steps, pinned, score = words.state, words.last_step, words.pinned, words.score
        decay = arithmetic.Decay.of(*self.recency(squeue))
        found = []
        for page in pages:
            at = base + page
            if state[at] == _RESIDENT and not pinned[at]:
                last = last_steps[at]
                kind = 2 if page == newest else int(last == step)
                found.append(
                    (
                        kind,
                        -((65535 - score[at]) * decay[step - last & arithmetic.AGE_MASK] >> 16),
                        page,
                        last,
                    )
                )
        found.sort()
        self.candidates = [Candidate(*f) for f in found[:keep]]

    def _best_of_many(self, base, pages, step, newest, recency) -> list[Candidate]:
        words = self.words
        page = np.fromiter(pages, np.int64, len(pages))
        state, last, pinned, score = (
            np.frombuffer(w, f"u{w.itemsize}")[base + page]
            for w in (words.state, words.last_step, words.pinned, words.score)
        )
        kept = (state == _RESIDENT) & (pinned == 0)
        page, last, score = page[kept], last[kept].astype(np.int64), score[kept]
        p = arithmetic.priority(score, arithmetic.decay(arithmetic.age(step, last), *recency))
        kind = np.where(page == newest, 2, last == step)
        key = (kind << 16 | 65535 - p) << 13 | page  # 13 bits hold any page (kelp_spec.config)
        best = np.argsort(key)[: self.config.candidates]
        return [Candidate(int(kind[b]), -int(p[b]), int(page[b]), int(last[b])) for b in best]
