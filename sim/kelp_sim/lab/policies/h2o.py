# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`h2o`: heavy hitters by cumulated attention mass, of the pages read and renormalised over them;
ties: lower queue, lower page."""

from __future__ import annotations

import numpy as np

from .lfu import Scored

__all__ = ["H2O"]


class H2O(Scored):
    id = "h2o"
    bits = 32

    def __init__(self, pool):
        super().__init__(pool)
        self.sum = np.zeros(len(pool.known), np.int64)

    def seen(self, now, missed):
        self.sum[now.key] += now.mass

    def value(self, keys, now):
        return self.sum[keys]
