# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The hotness monitoring unit as docs/cxl.md, "The hot list", has it."""

from __future__ import annotations

__all__ = ["HotList"]


class HotList:
    """`heat(unit, score)` one after another; `end()` of an epoch. `entries` is what the host has
    not taken, `overflow` and `filled` are set for good, `told` counts interrupts."""

    def __init__(self, size: int, *, always: bool, threshold: int, fill: int = 0xFFFF):
        self.size, self.always, self.threshold, self.fill = size, always, threshold, fill
        self.places: dict[int, tuple[int, int, bool]] = {}
        self.entries: list[int] = []
        self.overflow = self.filled = False
        self.told = 0

    def _place(self, unit: int) -> int:
        place = 0
        while unit:
            place ^= unit % self.size
            unit //= self.size
        return place

    def heat(self, unit: int, score: int) -> None:
        place = self._place(unit)
        there = self.places.get(place)
        if there and there[0] != unit and score <= there[1]:
            return
        listed = bool(there) and there[0] == unit and there[2]
        if self.always and score >= self.threshold and not listed:
            self._append(unit, score)
            listed = True
        self.places[place] = unit, score, listed

    def end(self) -> None:
        for place in sorted(self.places):
            unit, score, _ = self.places[place]
            if not self.always and score >= self.threshold:
                self._append(unit, score)
        self.places.clear()

    def _append(self, unit: int, score: int) -> None:
        if len(self.entries) == self.size - 1:
            self.told += not self.overflow
            self.overflow = True
            return
        self.entries.append(unit << 16 | score)
        if len(self.entries) > self.fill:
            self.told += not self.filled
            self.filled = True
