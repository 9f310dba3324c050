# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`quest`: by an upper bound of what a page can get. Quest bounds q·k by each page's key range; a policy that sees no queries bounds the next
mass by the page's peak so far, falling by half in 64 steps. Ties: lower queue, lower page."""

from __future__ import annotations

import numpy as np

from .lfu import Scored

__all__ = ["Quest"]


class Quest(Scored):
    id = "quest"
    bits = 16 + 24
    HALF = 64

    def __init__(self, pool):
        super().__init__(pool)
        self.peak, self.since = np.zeros(len(pool.known)), np.full(len(pool.known), -1, np.int64)

    def seen(self, now, missed):
        key = now.key
        bound = self.peak[key] * 0.5 ** ((now.step - self.since[key]) / self.HALF)
        self.peak[key], self.since[key] = max(bound, now.mass), now.step

    def value(self, keys, now):
        return self.peak[keys] * 0.5 ** ((now.step - self.since[keys]) / self.HALF)
