# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`lfu`: the page accessed least often since it was written; counts are kept when it is evicted.
Ties: lower queue, lower page."""

from __future__ import annotations

import numpy as np

from ..engine import Policy

__all__ = ["Lfu", "Scored"]


class Scored(Policy):
    """A policy with a value per page, the lowest of which gives way: :meth:`value` of the open
    pages' keys."""

    def value(self, keys, now):
        raise NotImplementedError

    def victim(self, now):
        keys = self.pool.open(now)
        return int(keys[np.argmin(self.value(keys, now))]) if len(keys) else None


class Lfu(Scored):
    id = "lfu"
    bits = 16

    def __init__(self, pool):
        super().__init__(pool)
        self.count = np.zeros(len(pool.known), np.int64)

    def seen(self, now, missed):
        self.count[now.key] += 1

    def value(self, keys, now):
        return self.count[keys]
