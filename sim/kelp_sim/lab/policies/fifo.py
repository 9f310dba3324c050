# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`fifo`: the page that has had its frame longest."""

from __future__ import annotations

from .lru import Lru

__all__ = ["Fifo"]


class Fifo(Lru):
    id = "fifo"
    bits = 0  # a ring of frames

    def hit(self, key, now):
        pass
