# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`tworate`: how often a page was accessed lately and for long: two counts that fall by half in
``fast`` and in ``slow`` steps, each over its half-life, added. The lowest goes first; ties: lower
queue, lower page."""

from __future__ import annotations

import numpy as np

from .lfu import Scored
from .quest import LONGEST, falls

__all__ = ["TwoRate"]


class TwoRate(Scored):
    id = "tworate"
    bits = 9 + 12 + 24

    def __init__(self, pool, fast=4, slow=128):
        super().__init__(pool)
        if not (1 <= fast <= LONGEST and 1 <= slow <= LONGEST):
            raise ValueError(
                f"tworate: fast = {fast}, slow = {slow} is refused; legal: 1 … {LONGEST} steps"
            )
        # An access adds 1 / half-life to its frequency; times fast · slow, so that it is whole.
        self.gain = slow, fast
        self.falls = falls(fast), falls(slow)
        self.counts = np.zeros(len(pool.known)), np.zeros(len(pool.known))
        self.since = np.full(len(pool.known), -1, np.int64)

    def seen(self, now, missed):
        for count, left, gain in zip(self.counts, self._left(now.key, now), self.gain, strict=True):
            count[now.key] = count[now.key] * left + gain
        self.since[now.key] = now.step

    def value(self, keys, now):
        fast, slow = self._left(keys, now)
        return self.counts[0][keys] * fast + self.counts[1][keys] * slow

    def _left(self, keys, now):
        age = now.step - self.since[keys]
        return [curve[np.minimum(age, len(curve) - 1)] for curve in self.falls]
