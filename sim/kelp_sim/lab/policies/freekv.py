# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`freekv`: LRU that fetches for the next layer what that layer read in the step before and no
longer has (FreeKV-like)."""

from __future__ import annotations

from .lru import Lru

__all__ = ["FreeKv"]


class FreeKv(Lru):
    id = "freekv"
    prefetches = True

    def __init__(self, pool):
        super().__init__(pool)
        self.now: dict[int, list[int]] = {}  # queue: the pages it read in its latest step
        self.step: dict[int, int] = {}

    def seen(self, now, missed):
        if self.step.get(now.queue) != now.step:
            self.step[now.queue] = now.step
            self.now[now.queue] = []
        self.now[now.queue].append(now.key)

    def prefetch(self, now):
        layer = (now.layer + 1) % self.pool.layers
        for queue in range(layer * self.pool.kv_heads, (layer + 1) * self.pool.kv_heads):
            if queue in self.pool.queues:
                # its turn in this step is still to come, or over: either way its latest reads
                yield from self.now.get(queue, ())
