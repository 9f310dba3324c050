# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`kelp`: two-rate access frequency, a profile over distance, the order of the step, a second opinion, and prefetch out of what LRU would have read.

Integer throughout; the pseudocode for hardware is docs/lab.md, "The policy `kelp`". :mod:`..fast_kelp` is the compiled form, equal in every decision.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from kelp_golden.arithmetic import exponent, halving
from kelp_spec.scores import idle_constants

from ..engine import Access, Policy, Pool

__all__ = ["Constants", "Kelp", "KelpNoPrefetch", "folds"]

TOP = 65535
OCTILES = 8            #: the LRU shadow orders the pages of one step by eighths of the queues
SHADOW_STEPS = 256     #: steps that it remembers
FOLDED = 2048          #: idle steps beyond this count as this many


@dataclass(frozen=True)
class Constants:
    """Everything that was tuned; none of it knows a layer, a head or a trace. α in 1/256, weights in 1/16, near in 1/256."""

    alpha_fast: int = 56
    alpha_slow: int = 8
    alpha_profile: int = 4
    alpha_recent: int = 8
    weight_fast: int = 12
    weight_slow: int = 16
    weight_profile: int = 16   #: first opinion: the profile here and one page on
    weight_next: int = 8
    second_profile: int = 4    #: second opinion: less of the profile, and how recent the last access is
    second_next: int = 2
    second_recent: int = 4
    near_most: int = 216       #: factor of a page whose turn in this step is over, when nothing misses
    near_least: int = 128
    near_shift: int = 7        #: it falls by miss rate >> this
    margin_shift: int = 1      #: a prefetch must be worth the marginal page << this
    credit_most: int = 256
    explore: int = 16          #: of disputed evictions one in so many goes to the opinion that is not followed
    duel_most: int = 1024
    first_regret: int = 3      #: what a miss of a page that the first opinion alone gave away counts
    second_regret: int = 4     #: and the second


@functools.cache
def folds(alpha: int) -> np.ndarray:
    """[FOLDED + 1]: what n idle steps leave of 65536 (docs/arithmetic.md, lazy fold)."""
    table = np.minimum(TOP, halving(exponent(np.arange(FOLDED + 1), *idle_constants(alpha))))
    table[0] = 1 << 16
    return table


class Kelp(Policy):
    """State per page: fast and slow frequency, step of the last access, who gave it away. Per queue and distance: the profile. Per pool: a ring."""

    id = "kelp"
    scopes = ("pooled",)
    bits = 16 + 16 + 24 + 2 + 16 + 12    # fast, slow, last_step, given_by; the profile has as many entries as there are pages
    prefetches = True

    def __init__(self, pool: Pool, constants: Constants = Constants()):
        super().__init__(pool)
        c = self.constants = constants
        self.fold_fast, self.fold_slow = folds(c.alpha_fast), folds(c.alpha_slow)
        self.fold_profile, self.fold_recent = folds(c.alpha_profile), folds(c.alpha_recent)
        keys = pool.all_queues * pool.pages
        self.fast, self.slow = np.zeros(keys, np.int64), np.zeros(keys, np.int64)
        self.last = np.full(keys, -1, np.int64)
        self.profile = np.zeros((pool.all_queues, pool.pages + 1), np.int64)
        self.profile_step = np.zeros((pool.all_queues, pool.pages + 1), np.int64)
        self.marginal = self.miss_rate = self.credit = 0
        self.missed = False
        self.given_by = np.zeros(keys, np.int8)    # 1, 2: the opinion that alone gave this page away
        self.duel = self.disputed = 0              # above 0: the second opinion is followed
        # The LRU shadow: pages by (step, octile) of their last access; those at `boundary` and after fill the pool.
        self.ring: dict[int, int] = {}
        self.boundary = self.inside = 0
        for key in pool.history:
            self._touch(key, -1, allocation=True)
            self._enter(key, -1)

    # --- scores -----------------------------------------------------------------------------------------------------------------

    def _touch(self, key: int, step: int, *, newest: int = 0, allocation: bool = False) -> None:
        c = self.constants
        if allocation:
            self.fast[key] = self.slow[key] = 0
        else:
            idle = min(step - int(self.last[key]) - 1, FOLDED)
            if idle > 0:
                self.fast[key] = int(self.fast[key]) * int(self.fold_fast[idle]) >> 16
                self.slow[key] = int(self.slow[key]) * int(self.fold_slow[idle]) >> 16
            queue, page = divmod(key, self.pool.pages)
            distance = newest - page
            kept = self.fold_profile[min(step - int(self.profile_step[queue, distance]), FOLDED)]
            now = (int(self.profile[queue, distance]) * int(kept) >> 16) + c.alpha_profile * 256
            self.profile[queue, distance] = min(TOP, now)
            self.profile_step[queue, distance] = step
        self.fast[key] += (TOP - int(self.fast[key])) * c.alpha_fast + 128 >> 8
        self.slow[key] += (TOP - int(self.slow[key])) * c.alpha_slow + 128 >> 8
        self.last[key] = step

    def values(self, keys: np.ndarray, now: Access, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What ``keys`` are worth at their next turn, in both opinions; ``over``: their turn in this step has passed, so that it counts as idle."""
        c, pages = self.constants, self.pool.pages
        idle = np.minimum(now.step - self.last[keys] - 1 + over, FOLDED)
        queue, distance = keys // pages, now.newest - keys % pages

        def profile(at):
            kept = self.fold_profile[np.minimum(now.step - self.profile_step[queue, at], FOLDED)]
            return self.profile[queue, at] * kept >> 16

        common = c.weight_fast * (self.fast[keys] * self.fold_fast[idle] >> 16) + c.weight_slow * (self.slow[keys] * self.fold_slow[idle] >> 16)
        here, ahead = profile(distance), profile(distance + 1)
        first = common + c.weight_profile * here + c.weight_next * ahead
        second = common + c.second_profile * here + c.second_next * ahead + c.second_recent * self.fold_recent[idle]
        return first >> 4, second >> 4

    @property
    def near(self) -> int:
        c = self.constants
        return max(c.near_least, c.near_most - (self.miss_rate >> c.near_shift))

    def victim(self, now: Access) -> int | None:
        keys = self.pool.open(now)
        if not len(keys):
            return None
        over = keys < now.key
        values = [np.where(over, value * self.near >> 8, value) for value in self.values(keys, now, over)]
        choices = [int(np.argmin(value)) for value in values]
        follow, self.tag = int(self.duel > 0), 0
        if choices[0] != choices[1]:
            self.disputed += 1
            if self.disputed % self.constants.explore == 0:
                follow = 1 - follow
            self.tag = follow + 1
        self.lowest = int(values[follow][choices[follow]])
        return int(keys[choices[follow]])

    # --- accesses ---------------------------------------------------------------------------------------------------------------

    def seen(self, now: Access, missed: bool) -> None:
        self._shadow(now)
        key, pool = now.key, self.pool
        known = bool(pool.known[key])
        if missed and not pool.in_flight[key]:
            self.credit = max(-self.constants.credit_most, self.credit - 1)
            self._regret(int(self.given_by[key]))
        self.allocation, self.missed = not known, missed

    def _regret(self, given_by: int) -> None:
        """A page that one opinion alone gave away is missed: as much against it as it had turns, so the one that is not followed counts for more."""
        c, seldom = self.constants, self.constants.explore - 1
        if given_by == 1:
            self.duel = min(c.duel_most, self.duel + c.first_regret * (1 if self.duel <= 0 else seldom))
        elif given_by == 2:
            self.duel = max(-c.duel_most, self.duel - c.second_regret * (1 if self.duel > 0 else seldom))

    def hit(self, key: int, now: Access) -> None:
        self._done(now)

    def admitted(self, key: int, now: Access | None) -> None:
        if now is not None and key == now.key and not self.pool.in_flight[key]:
            self._done(now)

    def _done(self, now: Access) -> None:
        self.miss_rate += ((TOP if self.missed else 0) - self.miss_rate) >> 10
        self._touch(now.key, now.step, newest=now.newest, allocation=self.allocation)

    def evicted(self, key: int, now: Access) -> None:
        self.given_by[key] = self.tag
        if not self.prefetching:
            self.marginal += self.lowest - self.marginal >> 3

    prefetching = False

    # --- prefetch ---------------------------------------------------------------------------------------------------------------

    def prefetch(self, now: Access):
        c, pool = self.constants, self.pool
        layer = now.layer + 1
        wraps = layer == pool.layers
        queue = 0 if wraps else layer * pool.kv_heads
        keys = np.arange(queue * pool.pages, (queue + pool.kv_heads) * pool.pages)
        keys = keys[pool.known[keys] & ~pool.resident[keys]]
        worth = self.values(keys, now, np.full(len(keys), int(wraps)))[int(self.duel > 0)]
        floor = self.marginal << c.margin_shift
        self.prefetching = True
        for key in keys[worth >= floor].tolist():
            if self.credit <= 0:
                break
            yield key
        self.prefetching = False

    def fetched(self, key: int) -> None:
        self.credit -= 1
        self._regret(int(self.given_by[key]))

    # --- what pooled LRU would have read ----------------------------------------------------------------------------------------

    def _bucket(self, key: int, step: int) -> int:
        return (step + 1) * OCTILES + key // self.pool.pages * OCTILES // self.pool.all_queues

    def _enter(self, key: int, step: int) -> None:
        at = self._bucket(key, step)
        self.ring[at] = self.ring.get(at, 0) + 1
        self.inside += 1
        while self.inside > self.pool.frames:
            self.inside -= self.ring.get(self.boundary, 0)
            self.boundary += 1

    def _shadow(self, now: Access) -> None:
        """Count an LRU miss as credit, then move the page to now."""
        key = now.key
        if self.pool.known[key]:
            last = int(self.last[key])
            at = self._bucket(key, last)
            if now.step - last < SHADOW_STEPS:
                if at < self.boundary - 1:
                    self.credit = min(self.constants.credit_most, self.credit + 1)
                self.ring[at] -= 1
                if at >= self.boundary:
                    self.inside -= 1
            elif at >= self.boundary:
                self.ring[at] -= 1
                self.inside -= 1
        self._enter(key, now.step)


class KelpNoPrefetch(Kelp):
    """`kelp` without its prefetch."""

    id = "kelp-noprefetch"
    prefetches = False
