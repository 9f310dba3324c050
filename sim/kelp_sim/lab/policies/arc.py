# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`arc`: recency against frequency, the split learnt from two ghost lists (FAST '03)."""

from __future__ import annotations

from ..engine import Policy

__all__ = ["Arc"]


class Arc(Policy):
    id = "arc"
    bits = 24 + 2

    def __init__(self, pool):
        super().__init__(pool)
        self.once: dict[int, None] = {}  # T1, oldest first
        self.often: dict[int, None] = {}  # T2
        self.ghost_once: dict[int, None] = {}  # B1
        self.ghost_often: dict[int, None] = {}  # B2
        self.target = 0.0  # wanted size of T1
        self.returning = 0  # 1 or 2: the access was in that ghost list

    def seen(self, now, missed):
        self.returning, key = 0, now.key
        if key in self.once or key in self.often:
            return
        b1, b2 = len(self.ghost_once), len(self.ghost_often)
        if key in self.ghost_once:
            self.target, self.returning = min(self.target + max(b2 / b1, 1), self.pool.frames), 1
            del self.ghost_once[key]
        elif key in self.ghost_often:
            self.target, self.returning = max(self.target - max(b1 / b2, 1), 0), 2
            del self.ghost_often[key]

    def hit(self, key, now):
        (self.once if key in self.once else self.often).pop(key)
        self.often[key] = None

    def admitted(self, key, now):
        (self.often if self.returning and now is not None and key == now.key else self.once)[
            key
        ] = None

    def victim(self, now):
        t1, t2, frames = len(self.once), len(self.often), self.pool.frames
        self.forget = False
        if not self.returning:
            if t1 + len(self.ghost_once) >= frames:
                if t1 < frames:
                    self.ghost_once.pop(next(iter(self.ghost_once)))
                else:
                    self.forget = True
            elif t1 + t2 + len(self.ghost_once) + len(self.ghost_often) >= 2 * frames:
                self.ghost_often.pop(next(iter(self.ghost_often)))
        first = (
            self.forget
            or not t2
            or (t1 > 0 and (t1 > self.target or (t1 == self.target and self.returning == 2)))
        )
        order = (self.once, self.often) if first else (self.often, self.once)
        return next((key for held in order for key in held if self.pool.is_open(key, now)), None)

    def evicted(self, key, now):
        held, ghost = (
            (self.once, self.ghost_once) if key in self.once else (self.often, self.ghost_often)
        )
        del held[key]
        if not self.forget:
            ghost[key] = None
