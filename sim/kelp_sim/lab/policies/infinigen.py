# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`infinigen`: LRU that fetches for the next layer the pages that this layer is reading
(InfiniGen-like; here by page number, not by a partial query)."""

from __future__ import annotations

from .lru import Lru

__all__ = ["InfiniGen"]


class InfiniGen(Lru):
    id = "infinigen"
    scopes = ("pooled",)
    prefetches = True

    def __init__(self, pool):
        super().__init__(pool)
        self.read: list[int] = []  # keys of the layer before the one that has just begun
        self.layer = (-1, -1)

    def seen(self, now, missed):
        if self.layer != (now.step, now.layer):
            self.layer, self.read = (now.step, now.layer), []
        self.read.append(now.key)

    def prefetch(self, now):
        # At the start of layer l only layer l − 1 is known in full: its pages are asked for in
        # layer l + 1.
        if now.layer + 1 < self.pool.layers and self.read:
            ahead = 2 * self.pool.kv_heads * self.pool.pages
            if self.layer == (now.step, now.layer - 1):
                yield from (key + ahead for key in self.read)
