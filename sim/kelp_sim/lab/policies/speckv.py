# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`speckv`: LRU that fetches the pages around each page last read (CXL-SpecKV-like speculation; the
published ±W window with W = 1)."""

from __future__ import annotations

from .freekv import FreeKv

__all__ = ["SpecKv"]


class SpecKv(FreeKv):
    id = "speckv"

    def __init__(self, pool, window=1):
        """Pages to either side."""
        super().__init__(pool)
        if window < 0:
            raise ValueError(f"speckv: window = {window} is refused; legal: 0 or more pages")
        self.window = window

    def prefetch(self, now):
        pages = self.pool.pages
        for key in super().prefetch(now):
            page = key % pages
            for other in range(max(0, page - self.window), min(pages - 1, page + self.window) + 1):
                yield key - page + other
