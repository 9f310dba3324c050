# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`clock`: FIFO with a second chance for a page that was accessed since it was last looked at."""

from __future__ import annotations

from ..engine import Policy

__all__ = ["Clock"]


class Clock(Policy):
    id = "clock"
    bits = 1

    def __init__(self, pool):
        super().__init__(pool)
        self.order: dict[int, bool] = {}  # oldest first; referenced?

    def admitted(self, key, now):
        self.order[key] = False

    def hit(self, key, now):
        self.order[key] = True

    def victim(self, now):
        for _ in range(2 * len(self.order)):
            key, referenced = next(iter(self.order.items()))
            if not referenced and self.pool.is_open(key, now):
                return key
            # A page that may not go keeps its place in turn, and its chance if it has used none.
            del self.order[key]
            self.order[key] = referenced and not self.pool.is_open(key, now)
        return None

    def evicted(self, key, now):
        del self.order[key]
