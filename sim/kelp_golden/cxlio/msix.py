# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MSI-X: table, pending bits, messages."""

from __future__ import annotations

__all__ = ["Msix"]

_ENTRY, _MASK_BYTE = 16, 12


class Msix:
    """`sent`: (address, data) in the order in which they leave."""

    def __init__(self, vectors: int):
        self.table = bytearray(_ENTRY * vectors)
        self.pending = [False] * vectors
        self.sent: list[tuple[int, int]] = []
        self.enable = self.mask = self.bus_master = False
        for v in range(vectors):
            self.table[_ENTRY * v + _MASK_BYTE] = 1

    def read(self, offset: int, size: int) -> int:
        part = bytes(self.table[offset : offset + size])
        return int.from_bytes(part.ljust(size, b"\0"), "little")

    def write(self, offset: int, size: int, value: int) -> None:
        for i in range(size):
            at = offset + i
            if at < len(self.table):
                byte = value >> 8 * i & 0xFF
                if at % _ENTRY == _MASK_BYTE:
                    byte &= 1
                elif at % _ENTRY > _MASK_BYTE:
                    byte = 0
                self.table[at] = byte
        self.send()

    def trigger(self, vector: int) -> None:
        if self.enable:
            self.pending[vector] = True
        self.send()

    def send(self) -> None:
        """What nothing holds back leaves."""
        if not self.enable:
            self.pending = [False] * len(self.pending)
        if not self.enable or self.mask or not self.bus_master:
            return
        for v, waits in enumerate(self.pending):
            if waits and not self.table[_ENTRY * v + _MASK_BYTE]:
                self.pending[v] = False
                at = _ENTRY * v
                self.sent.append((self.read(at, 8), self.read(at + 8, 4)))

    def pending_bits(self) -> int:
        return sum(waits << v for v, waits in enumerate(self.pending))
