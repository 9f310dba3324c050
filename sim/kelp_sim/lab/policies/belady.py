# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`belady`: the page whose next access is furthest away, in whole steps; ties: lower queue, lower
page. It alone is told the future."""

from __future__ import annotations

import numpy as np

from .lfu import Scored

__all__ = ["Belady"]


class Belady(Scored):
    id = "belady"
    oracle = True

    def tell(self, timeline):
        self.following = timeline.next_use()
        first = np.full(len(self.pool.known), np.int64(1) << 40)
        keys, at = np.unique(timeline.keys, return_index=True)
        first[keys] = timeline.sequence.step[at]
        self.next = first

    def seen(self, now, missed):
        self.next[now.key] = self.following[now.index]

    def value(self, keys, now):
        return -self.next[keys]
