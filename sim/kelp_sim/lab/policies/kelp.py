# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`kelp` as the device does it (docs/policy.md): two frequencies and a profile over distance, two opinions, one pool, prefetch out of what LRU would have read.

What a page is worth and what accesses teach is the golden model's own :mod:`kelp_golden.kelp_policy`; who gives way is written here for the lab.
:mod:`..fast_kelp` is the compiled form, with arithmetic of its own, equal in every decision to this one and to golden lock-step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kelp_golden.kelp_policy import FIRST, SECOND, KelpPolicy
from kelp_spec import policy as p

from ..engine import Access, Policy, Pool

__all__ = ["Kelp", "KelpNoPrefetch"]

_MOST = 65535                      #: an offer is this minus the value of the page offered
_ORDINARY, _TOUCHED, _NEWEST = range(3)


@dataclass(frozen=True)
class _Shape:
    """What the golden model asks of a configuration, for one session of these queues."""

    queues: int
    pages: int     #: per queue, a power of two
    sessions: int = 1

    @property
    def squeues(self) -> int:
        return self.queues

    @property
    def page_words(self) -> int:
        return self.queues * self.pages


class Candidate(NamedTuple):
    """Sorts as it is taken."""

    kind: int      #: ordinary, touched in this step, the queue's newest page
    value: int
    key: int


class Kelp(Policy):
    id = "kelp"
    scopes = ("pooled",)
    bits = p.SCORE_WORD_BITS + 24 + p.GIVEN_BITS + p.PROFILE_BITS + p.EPOCH_BITS    # and last_step; the profile has as many entries as there are pages
    prefetches = True
    reserve = 1
    evicts_in_use = writes_history = True

    def __init__(self, pool: Pool):
        super().__init__(pool)
        self.kelp = KelpPolicy(_Shape(pool.all_queues, 1 << (pool.pages - 1).bit_length()))
        keys = pool.all_queues * pool.pages
        self.word, self.last, self.given_by = [0] * keys, [0] * keys, [0] * keys
        self.newest = [-1] * pool.all_queues
        self.offers = [0] * pool.all_queues    # how gladly each queue gave a page when it was asked last; 0: not at all
        self.requester = 0

    # --- accesses ---------------------------------------------------------------------------------------------------------------
    def seen(self, now: Access, missed: bool) -> None:
        key, step, pool = now.key, now.step + 1, self.pool    # the device wrote its history in step 0
        scores, new = self.kelp.scores, not pool.known[key]
        if not pool.resident[key]:
            self.requester = now.queue
        if new:
            self.newest[now.queue] = now.page
            self.word[key] = scores.allocate(0, now.queue, now.page, step)
        else:
            self.word[key] = scores.touch(self.word[key], 0, now.queue, now.page, step, step - self.last[key])
        self.kelp.access(
            0, now.queue, step, last=None if new else self.last[key], missed=missed, given_by=self.given_by[key] if missed else None, frames=pool.frames,
            used_queues=pool.all_queues, kv_heads=pool.kv_heads)
        self.last[key] = step

    # --- who gives way ----------------------------------------------------------------------------------------------------------
    def _scan(self, key: int, now: Access):
        queue, page = divmod(key, self.pool.pages)
        step = now.step + 1
        return self.kelp.scores.scan(self.word[key], 0, queue, page, step, step - self.last[key])

    def _sweep(self, queue: int, now: Access, opinion: int) -> list[Candidate]:
        """The queue's resident pages, best victim first."""
        kelp, pool, found = self.kelp, self.pool, []
        for page in range(self.newest[queue] + 1):
            key = queue * pool.pages + page
            if pool.resident[key]:
                kind = _NEWEST if page == self.newest[queue] else _TOUCHED if self.last[key] == now.step + 1 else _ORDINARY
                found.append(Candidate(kind, kelp.worth(self._scan(key, now), opinion, kelp.near), key))
        return sorted(found)

    def _offer(self, queue: int, found: list[Candidate]) -> None:
        self.offers[queue] = 0 if not found else 1 if found[0].kind else _MOST - found[0].value

    def _asked(self, now: Access, queue: int) -> list[Candidate]:
        found = self._sweep(queue, now, self.kelp.followed)
        self._offer(queue, found)
        return found

    def _best(self) -> int:
        return max(range(len(self.offers)), key=lambda queue: (self.offers[queue], -queue))

    def _queue(self, now: Access) -> tuple[int, list[Candidate]]:
        """The queue that gives and its pages: what a queue offers was true when it was swept last, so a second one may be asked."""
        queue, worthy = self._best(), 0
        if not self.offers[queue]:
            queue = self.requester
        for _ in range(p.SWEEPS_MOST):
            found, swept = self._asked(now, queue), queue
            worthy += bool(found) and found[0].kind == _ORDINARY
            queue = self._best()
            if worthy == p.SWEEPS or queue == swept or self.offers[queue] <= 1:
                break
        if (not found or found[0].kind) and self.requester != swept:
            asks = self._asked(now, self.requester)      # nothing but pages in use: the queue that asks gives
            if asks:
                return self.requester, asks
        return swept, found

    def victim(self, now: Access) -> int | None:
        kelp, queues = self.kelp, self.pool.all_queues
        queue, found = self._queue(now)
        for _ in range(queues):
            if found:
                break
            queue = (queue + 1) % queues
            found = self._sweep(queue, now, kelp.followed)
        else:
            return None
        chosen, left, self.tag = found[0], found[1:], 0
        if chosen.kind == _ORDINARY:
            other = self._sweep(queue, now, FIRST + SECOND - kelp.followed)[0]
            if other.key != chosen.key:
                kelp.disputed = (kelp.disputed + 1) % p.EXPLORE
                self.tag = kelp.followed
                if not kelp.disputed:
                    chosen, left, self.tag = other, found, FIRST + SECOND - self.tag
            kelp.gave(chosen.value)
        self._offer(queue, left)
        return chosen.key

    def evicted(self, key: int, now: Access) -> None:
        self.given_by[key] = self.tag

    # --- after an access --------------------------------------------------------------------------------------------------------
    def ahead(self, now: Access):
        """After the first access of a queue in a step: the queue left behind is valued anew, and the next layer's is looked through."""
        kelp = self.kelp
        if kelp.refresh is not None:
            (_, queue), kelp.refresh = kelp.refresh, None
            found = self._sweep(queue, now, kelp.followed)
            if found:    # in the next step a page in use will be one like any other
                self.offers[queue] = 1 if found[0].kind == _NEWEST else _MOST - found[0].value
        if kelp.ahead is None:
            return
        (_, queue), kelp.ahead = kelp.ahead, None
        if not self.prefetches:
            return
        first, pool, floor = queue * self.pool.pages, self.pool, kelp.marginal << p.MARGIN_SHIFT
        away = (key for key in range(first, first + self.newest[queue] + 1) if not pool.resident[key])
        wanted = [key for key in away if self._scan(key, now).value(kelp.followed) >= floor][: p.WANTED] if kelp.credit > 0 else ()
        for key in wanted:
            if kelp.credit <= 0:
                break
            yield key

    def fetched(self, key: int) -> None:
        self.kelp.read(self.given_by[key])


class KelpNoPrefetch(Kelp):
    """`kelp` without its prefetch."""

    id = "kelp-noprefetch"
    prefetches = False
