# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Data object exchange: words in, words out."""

from __future__ import annotations

from kelp_spec.cxlio.cdat import cdat_entries
from kelp_spec.cxlio.config import CXL_VENDOR, CxlIoConfig

__all__ = ["Exchange"]

_DISCOVERY, _TABLE_ACCESS = (1, 0), (CXL_VENDOR, 2)


class Exchange:
    def __init__(self, config: CxlIoConfig):
        self.entries = cdat_entries(config)
        self.given: list[int] = []
        self.answer: list[int] = []
        self.error = False

    @property
    def word(self) -> int:
        return self.answer[0] if self.answer else 0

    def write(self, value: int) -> None:
        if self.answer:
            self.error = True
        else:
            self.given.append(value)

    def take(self) -> None:
        del self.answer[:1]

    def abort(self) -> None:
        self.given, self.answer, self.error = [], [], False

    def go(self) -> None:
        if self.answer or not self.given:
            self.error = True
            return
        given, self.given = self.given, []
        if len(given) != 3 or given[1] != 3:
            return
        kind, word = (given[0] & 0xFFFF, given[0] >> 16), given[2]
        if kind == _DISCOVERY:
            types = (_DISCOVERY, _TABLE_ACCESS)
            index = word & 0xFF
            found = 0xFFFF
            if index < len(types):
                vendor, number = types[index]
                found = vendor | number << 16 | (index + 1) % len(types) << 24
            self.answer = [given[0], 3, found]
        elif kind == _TABLE_ACCESS and not word & 0xFFFF and word >> 16 < len(self.entries):
            handle = word >> 16
            entry = self.entries[handle]
            following = handle + 1 if handle + 1 < len(self.entries) else 0xFFFF
            words = [int.from_bytes(entry[i : i + 4], "little") for i in range(0, len(entry), 4)]
            self.answer = [given[0], 3 + len(words), following << 16, *words]
