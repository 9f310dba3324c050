# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`wtinylfu`: a small LRU window, a segmented LRU behind it, and a duel by recent frequency for the
place (TinyLFU, ToS '17)."""

from __future__ import annotations

from ..engine import Policy

__all__ = ["WTinyLfu"]


class WTinyLfu(Policy):
    id = "wtinylfu"
    bits = 24 + 2 + 4

    def __init__(self, pool, window=1, protected=80):
        """Percent of the frames in the window; percent of the others in the protected segment."""
        super().__init__(pool)
        if not (0 <= window <= 100 and 0 <= protected <= 100):
            raise ValueError(
                f"wtinylfu: window = {window}, protected = {protected} is refused; legal: 0 … "
                + "100 percent"
            )
        self.window: dict[int, None] = {}
        self.probation: dict[int, None] = {}
        self.protected: dict[int, None] = {}
        self.window_frames = max(1, pool.frames * window // 100)
        self.protected_frames = (pool.frames - self.window_frames) * protected // 100
        self.count: dict[int, int] = {}
        self.until_aging = 10 * pool.frames

    def seen(self, now, missed):
        """Exact counts to 15 stand for the count-min sketch; halved every 10 accesses per frame."""
        self.count[now.key] = min(15, self.count.get(now.key, 0) + 1)
        self.until_aging -= 1
        if not self.until_aging:
            self.count = {key: n // 2 for key, n in self.count.items() if n > 1}
            self.until_aging = 10 * self.pool.frames

    def admitted(self, key, now):
        self.window[key] = None
        while len(self.window) > self.window_frames:
            oldest = next(iter(self.window))
            del self.window[oldest]
            self.probation[oldest] = None

    def hit(self, key, now):
        for held in (self.window, self.protected):
            if key in held:
                del held[key]
                held[key] = None
                return
        del self.probation[key]
        self.protected[key] = None
        if len(self.protected) > self.protected_frames:
            oldest = next(iter(self.protected))
            del self.protected[oldest]
            self.probation[oldest] = None

    def victim(self, now):
        def oldest(*lists):
            return next(
                (key for held in lists for key in held if self.pool.is_open(key, now)), None
            )

        candidate, incumbent = oldest(self.window), oldest(self.probation, self.protected)
        if candidate is None or incumbent is None:
            return incumbent if candidate is None else candidate
        # The window is full: its oldest page leaves it for the access to come, into the main part
        # if it is the more frequent one.
        return (
            incumbent if self.count.get(candidate, 0) > self.count.get(incumbent, 0) else candidate
        )

    def evicted(self, key, now):
        for held in (self.window, self.probation, self.protected):
            held.pop(key, None)
