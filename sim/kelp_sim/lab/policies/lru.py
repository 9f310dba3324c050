# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`lru`: the page whose last access is longest ago."""

from __future__ import annotations

from ..engine import Policy

__all__ = ["Lru"]


class Lru(Policy):
    id = "lru"
    bits = 24  # last_step

    def __init__(self, pool):
        super().__init__(pool)
        self.order: dict[int, None] = {}  # oldest first

    def admitted(self, key, now):
        self.order[key] = None

    def hit(self, key, now):
        del self.order[key]
        self.order[key] = None

    def victim(self, now):
        return next((key for key in self.order if self.pool.is_open(key, now)), None)

    def evicted(self, key, now):
        del self.order[key]
