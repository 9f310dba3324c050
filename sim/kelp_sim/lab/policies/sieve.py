# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`sieve`: a hand walks from old to new and takes the first page not visited since it last passed;
hits move nothing (NSDI '24)."""

from __future__ import annotations

from ..engine import Policy

__all__ = ["Sieve"]


class Sieve(Policy):
    id = "sieve"
    bits = 1

    def __init__(self, pool):
        super().__init__(pool)
        self.visited: dict[int, bool] = {}
        # None is the end of the queue: the oldest is newer[None]
        self.newer: dict[int | None, int | None] = {None: None}
        self.older: dict[int | None, int | None] = {None: None}
        self.hand: int | None = None

    def admitted(self, key, now):
        newest = self.older[None]
        self.newer[newest], self.older[key], self.newer[key], self.older[None] = (
            key,
            newest,
            None,
            key,
        )
        self.visited[key] = False

    def hit(self, key, now):
        self.visited[key] = True

    def victim(self, now):
        at = self.hand if self.hand is not None else self.newer[None]
        for _ in range(2 * len(self.visited)):
            if self.pool.is_open(at, now):
                if not self.visited[at]:
                    self.hand = at
                    return at
                self.visited[at] = False
            at = self.newer[at] if self.newer[at] is not None else self.newer[None]
        return None

    def evicted(self, key, now):
        if key == self.hand:
            self.hand = self.newer[key]
        older, newer = self.older.pop(key), self.newer.pop(key)
        self.newer[older], self.older[newer] = newer, older
        del self.visited[key]
