# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`s3fifo`: a small FIFO that filters, a main FIFO with two-bit chances, a ghost FIFO of what the
filter threw out (SOSP '23)."""

from __future__ import annotations

from ..engine import Policy

__all__ = ["S3Fifo"]

_MOST = 1000  #: times the frames; accesses


class S3Fifo(Policy):
    id = "s3fifo"
    bits = 2 + 1

    def __init__(self, pool, small=0.1, ghost=0.9, promote=2):
        """Shares of the frames in the small queue and the ghosts; accesses in the small queue that
        earn a place in the main one."""
        super().__init__(pool)
        if not (0 < small < 1 and 0 <= ghost <= _MOST and 1 <= promote <= _MOST):
            raise ValueError(
                f"s3fifo: small = {small}, ghost = {ghost}, promote = {promote} is refused; "
                + f"legal: between 0 and 1, 0 … {_MOST}, 1 … {_MOST}"
            )
        self.small: dict[int, int] = {}  # oldest first; accesses since it came
        self.main: dict[int, int] = {}
        self.ghost: dict[int, None] = {}
        self.small_frames = int(pool.frames * small)
        self.ghost_frames = int(pool.frames * ghost)
        self.promote = promote
        self.returning = self.evicting = False

    def seen(self, now, missed):
        self.returning = now.key not in self.small and now.key in self.ghost
        if self.returning:
            del self.ghost[now.key]

    def hit(self, key, now):
        held = self.small if key in self.small else self.main
        held[key] += 1

    def admitted(self, key, now):
        if self.returning and now is not None and key == now.key:
            self.main[key] = 0
        elif not self.evicting and len(self.small) >= self.small_frames:
            self.main[key] = 0  # the pool fills for the first time
        else:
            self.small[key] = 0

    def victim(self, now):
        self.evicting = True
        is_open = self.pool.is_open
        from_main = len(self.main) > self.pool.frames - self.small_frames or not self.small
        if not from_main:
            for key in list(self.small):
                if self.small[key] >= self.promote:
                    del self.small[key]
                    self.main[key] = 0
                elif is_open(key, now):
                    return key
        for _ in range(4 * len(self.main)):
            key, chances = next(iter(self.main.items()))
            if not chances and is_open(key, now):
                return key
            del self.main[key]
            self.main[key] = min(chances, 3) - 1 if is_open(key, now) else chances
        return next((key for key in self.small if is_open(key, now)), None)

    def evicted(self, key, now):
        if key in self.main:
            del self.main[key]
            return
        del self.small[key]
        self.ghost[key] = None
        if len(self.ghost) > self.ghost_frames:
            del self.ghost[next(iter(self.ghost))]
