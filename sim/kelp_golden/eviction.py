# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Who is evicted, the executable specification (spec §7; docs/design.md §6).

:class:`QueueState` follows every change of a page word; :class:`Evictor` chooses a victim from it, sweeping queues as needed; :class:`SweepAudit`
judges the SCANs and CLAIMs of a free-running endpoint in the order in which they were committed. None of them owns a page word: they read
``words``, any object with the flat sequences ``state``, ``last_step``, ``pinned`` and ``score`` (index = squeue · pages + page).
"""

import heapq
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import PageState

from . import arithmetic

__all__ = ["Candidate", "Evictor", "QueueState", "SweepAudit", "candidate_class"]

_RESIDENT = int(PageState.RESIDENT)
_NOWHERE = (int(PageState.ABSENT), int(PageState.COLD), int(PageState.LOST))
_VECTOR = 192   # listed pages from which NumPy is quicker than a loop


def candidate_class(page: int, last_step: int, step: int, newest: int) -> int:
    """0 ordinary, 1 touched in the sweep's step, 2 the queue's newest page (whether touched or not)."""
    return 2 if page == newest else int(last_step == step)


class QueueState:
    """Listed pages, excess, newest page and requester (docs/design.md §6). A page is listed while its word is RESIDENT.

    ``listed[squeue]`` is the set of listed pages, ``newest[squeue]`` a page or -1, ``requester[pool]`` a squeue.
    """

    def __init__(self, config: Config):
        self.config = config
        self.listed: list[set[int]] = [set() for _ in range(config.squeues)]
        self.newest = [-1] * config.squeues
        self.pool = [0] * config.squeues
        self.budget = [0] * config.squeues
        self.excess = [0] * config.squeues
        self.requester = [0] * len(POOLS)
        self._in_use = [False] * config.squeues   # an eviction was cancelled: the excess counts as 0
        self._lines = config.frame_lines
        self._heaps: list[list[tuple[int, int]]] = [[] for _ in POOLS]

    def configure(self, squeue: int, pool: int, budget: int) -> None:
        """The queue's pool and budget (DRAM lines), from its configuration."""
        self.pool[squeue], self.budget[squeue] = pool, budget
        self.excess[squeue] = -1   # so that the entry is pushed again under its pool
        self._update(squeue)

    def observe(self, squeue: int, page: int, old: int, new: int, demand: bool = False, write: bool = False) -> None:
        """A page word went from state ``old`` to ``new`` at M3; ``demand`` for READ and WRITE, ``write`` for WRITE. Also to be called, with
        ``old`` = RESIDENT, when the old word was uncorrectable."""
        if demand and old in _NOWHERE and new not in _NOWHERE:
            self.requester[self.pool[squeue]] = squeue
            if write and old != PageState.COLD:
                self.newest[squeue] = page
        pages = self.listed[squeue]
        if (new == _RESIDENT) != (page in pages):
            if new == _RESIDENT:
                pages.add(page)
            else:
                pages.remove(page)
            # An eviction was cancelled or failed: others are asked before this queue, until another page of it comes or goes.
            self._in_use[squeue] = old == PageState.WRITING_BACK and new == _RESIDENT
            self._update(squeue)

    def resident_lines(self, squeue: int) -> int:
        return len(self.listed[squeue]) * self._lines[self.pool[squeue]]

    def root(self, pool: int) -> tuple[int, int]:
        """(largest excess of the pool's queues, the lowest squeue that has it); (0, 0) when no queue has more than its budget."""
        heap = self._heaps[pool]
        while heap:
            excess, squeue = heap[0]
            if self.excess[squeue] == -excess and self.pool[squeue] == pool:
                return -excess, squeue
            heapq.heappop(heap)
        return 0, 0

    def _update(self, squeue: int) -> None:
        excess = 0 if self._in_use[squeue] else max(0, self.resident_lines(squeue) - self.budget[squeue])
        if excess != self.excess[squeue]:
            self.excess[squeue] = excess
            if excess:
                heapq.heappush(self._heaps[self.pool[squeue]], (-excess, squeue))


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """One place of a sweep's list; sorts as it is taken."""

    kind: int           #: class 0, 1, 2
    unwillingness: int  #: minus the priority
    page: int
    last_step: int      #: as scanned; CLAIM is void when the word has another by then

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
        Told of every sweep: squeue, number modulo 16, listed pages in ascending order (the SCANs it issues).
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
    ):
        self.config, self.queues, self.words = config, queues, words
        self.step, self.recency, self.closing, self.on_sweep = step, recency, closing, on_sweep
        self.squeue = 0                          # whose candidates follow
        self.candidates: list[Candidate] = []    # best first
        self.swept_step = 0
        self.sweeps = 0
        self.next_pool = 0
        self.resting = [False] * len(POOLS)      # nothing could be evicted, and nothing has changed since
        self.reported = [False] * len(POOLS)     # NO_VICTIM logged since the last success

    def pool_in_need(self, free: list[int], used: list[int], under_way: list[int], low_water: int) -> int | None:
        """The pool that is served next, or None."""
        for k in range(len(POOLS)):
            pool = (self.next_pool + k) % len(POOLS)
            if used[pool] and not self.resting[pool] and free[pool] + under_way[pool] < max(1, low_water):
                return pool
        return None

    def attempt(self, pool: int, claim: Callable[[int, int, int], bool], working: set[tuple[int, int]] = frozenset()) -> tuple[int, int] | None:
        """Find a victim in ``pool`` and claim it: (squeue, page), or None when there is none and the pool rests.

        ``claim(squeue, page, last_step)`` is M3's CLAIM: True when the page is WRITING_BACK now. ``working`` names the (squeue, page) on which
        evictions are still under way. A None is to be logged as NO_VICTIM when :attr:`reported` was False before.
        """
        self.next_pool = (pool + 1) % len(POOLS)
        queues, config = self.queues, self.config
        excess, first = queues.root(pool)
        if not excess:
            first = queues.requester[pool]
        squeue = first
        session = squeue // config.queues
        if squeue == self.squeue and self.candidates and not self.closing(session):
            if not self.candidates[0].kind or self.swept_step == self.step(session):
                page = self._take(claim, working)
                if page is not None:
                    return self._found(pool, page)
        while True:
            if queues.pool[squeue] == pool and queues.listed[squeue]:
                self.sweep(squeue)
                page = self._take(claim, working)
                if page is not None:
                    return self._found(pool, page)
            squeue = (squeue + 1) % config.squeues
            if squeue == first:
                self.resting[pool] = True
                return None

    def observe(self, new: int, pinned: int, released: bool = False) -> None:
        """A page word was changed to state ``new``, or a RELEASE was decided: pools that rest may try again."""
        if released or new == _RESIDENT and not pinned:
            self.resting = [False] * len(POOLS)

    def drop(self, session: int) -> None:
        """The session is being closed."""
        if self.squeue // self.config.queues == session:
            self.candidates.clear()

    def _found(self, pool: int, page: int) -> tuple[int, int]:
        self.reported[pool] = False
        return self.squeue, page

    def _take(self, claim, working) -> int | None:
        while self.candidates:
            best = self.candidates.pop(0)
            if (self.squeue, best.page) not in working and claim(self.squeue, best.page, best.last_step):
                return best.page
        return None

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
                found.append((kind, -((65535 - score[at]) * decay[step - last & arithmetic.AGE_MASK] >> 16), page, last))
        found.sort()
        self.candidates = [Candidate(*f) for f in found[:keep]]

    def _best_of_many(self, base, pages, step, newest, recency) -> list[Candidate]:
        words = self.words
        page = np.fromiter(pages, np.int64, len(pages))
        state, last, pinned, score = (
            np.frombuffer(w, f"u{w.itemsize}")[base + page] for w in (words.state, words.last_step, words.pinned, words.score)
        )
        kept = (state == _RESIDENT) & (pinned == 0)
        page, last, score = page[kept], last[kept].astype(np.int64), score[kept]
        p = arithmetic.priority(score, arithmetic.decay(arithmetic.age(step, last), *recency))
        kind = np.where(page == newest, 2, last == step)
        key = (kind << 16 | 65535 - p) << 13 | page   # 13 bits hold any page (kelp_spec.config)
        best = np.argsort(key)[: self.config.candidates]
        return [Candidate(int(kind[b]), -int(p[b]), int(page[b]), int(last[b])) for b in best]


class SweepAudit:
    """Judges the evictor of a free-running endpoint by its SCANs, CLAIMs and RELEASEs in commit order; every method returns None or what is wrong."""

    def __init__(self, config: Config, queues: QueueState, recency: Callable[[int], tuple[int, int]]):
        self.config, self.queues, self.recency = config, queues, recency
        self.squeue = self.number = -1
        self.step = self.newest = 0          # as they stood at the sweep's first SCAN
        self.pages: list[int] = []
        self.found: list[Candidate] = []
        self.passed_over: set[int] = set()   # pages on which an eviction was under way since they were scanned
        self.working: set[tuple[int, int]] = set()

    def scan(self, squeue: int, page: int, number: int, state: int, last_step: int, pinned: int, score: int, step: int) -> str | None:
        """``state`` … ``score`` are the page's own, not what the device read; ``step`` the session's now."""
        if (squeue, number) != (self.squeue, self.number):
            self.squeue, self.number, self.step, self.newest = squeue, number, step, self.queues.newest[squeue]
            self.pages, self.found, self.passed_over = [], [], set()
        if self.pages and page <= self.pages[-1]:
            return f"SCAN of squeue {squeue} page {page} after page {self.pages[-1]} in one sweep"
        self.pages.append(page)
        if (squeue, page) in self.working:
            self.passed_over.add(page)
        if state == _RESIDENT and not pinned:
            p = arithmetic.priority(score, arithmetic.Decay.of(*self.recency(squeue))[arithmetic.age(self.step, last_step)])
            self.found.append(Candidate(candidate_class(page, last_step, self.step, self.newest), -p, page, last_step))
            if len(self.found) > self.config.candidates:
                self.found.remove(max(self.found))
        return None

    def claim(self, squeue: int, page: int, last_step: int, done: bool) -> str | None:
        if squeue != self.squeue:
            return f"CLAIM in squeue {squeue}, swept was {self.squeue}"
        self.found.sort()
        while self.found:
            best = self.found.pop(0)
            if (best.page, best.last_step) == (page, last_step):
                if done:
                    self.working.add((squeue, page))
                return None
            if best.page not in self.passed_over:
                return f"CLAIM of squeue {squeue} page {page}, the best candidate is page {best.page} (class {best.kind}, priority {best.priority})"
        return f"CLAIM of squeue {squeue} page {page}, which is no candidate"

    def release(self, squeue: int, page: int) -> str | None:
        if (squeue, page) not in self.working:
            return f"RELEASE of squeue {squeue} page {page}, which no CLAIM took"
        self.working.discard((squeue, page))
        return None
