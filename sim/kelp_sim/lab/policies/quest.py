# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`quest`: by an upper bound of what a page can get. Quest bounds q·k by each page's key range; a
policy that sees no queries bounds the next mass by the page's peak so far, falling by half in 64
steps. Ties: lower queue, lower page."""

from __future__ import annotations

import functools

import numpy as np

from .lfu import Scored

__all__ = ["LONGEST", "Quest", "falls"]

LONGEST = 1 << 16  #: steps of a half-life


@functools.cache
def falls(half: int) -> np.ndarray:
    """What n steps leave of a peak that falls by half in ``half`` steps, 1 … :data:`LONGEST`; n to
    64 halvings, more count as these."""
    return 0.5 ** (np.arange(64 * half + 1) / half)


class Quest(Scored):
    id = "quest"
    bits = 16 + 24

    def __init__(self, pool, half=64):
        super().__init__(pool)
        if not 1 <= half <= LONGEST:
            raise ValueError(f"quest: half = {half} is refused; legal: 1 … {LONGEST} steps")
        self.falls = falls(half)
        self.peak, self.since = np.zeros(len(pool.known)), np.full(len(pool.known), -1, np.int64)

    def seen(self, now, missed):
        key = now.key
        bound = self.peak[key] * self._left(key, now)
        self.peak[key], self.since[key] = max(bound, now.mass), now.step

    def value(self, keys, now):
        return self.peak[keys] * self._left(keys, now)

    def _left(self, keys, now):
        return self.falls[np.minimum(now.step - self.since[keys], len(self.falls) - 1)]
