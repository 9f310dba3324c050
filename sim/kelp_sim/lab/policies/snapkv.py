# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`snapkv`: a vote of the last observation window. A page's votes are its mass in the last 16
steps, smoothed over its neighbours."""

from __future__ import annotations

import numpy as np

from .lfu import Scored

__all__ = ["SnapKv"]

_LONGEST = 1024  #: steps, each with a vote for every page


class SnapKv(Scored):
    id = "snapkv"
    bits = 16 * 8

    def __init__(self, pool, window=16):
        """Steps that vote."""
        super().__init__(pool)
        if not 1 <= window <= _LONGEST:
            raise ValueError(f"snapkv: window = {window} is refused; legal: 1 … {_LONGEST} steps")
        self.window = window
        self.votes = np.zeros((self.window, len(pool.known)), np.int64)
        self.sum = np.zeros(len(pool.known), np.int64)
        self.step = -1

    def seen(self, now, missed):
        if now.step != self.step:
            self.step = now.step
            row = self.votes[now.step % self.window]
            self.sum -= row
            row[:] = 0
        self.votes[now.step % self.window, now.key] += now.mass
        self.sum[now.key] += now.mass

    def value(self, keys, now):
        last = len(self.sum) - 1
        return (
            2 * self.sum[keys]
            + self.sum[np.maximum(keys - 1, 0)]
            + self.sum[np.minimum(keys + 1, last)]
        )
