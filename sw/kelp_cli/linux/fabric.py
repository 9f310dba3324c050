# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The second PCI segment: a host bridge and a root port, which are the host's and plain Python, and
below them the device, which is RTL: `CxlDevice`, registers and memory alike."""

from __future__ import annotations

import struct
from collections import Counter

import numpy as np

from kelp_rtl.cxlio.joined import JoinedDriver
from kelp_rtl.program import PARTIAL, READ, Program, Response

from .places import BRIDGE_BYTES, ECAM_BYTES, MMIO_BYTES, WINDOW_BYTES, Places

__all__ = ["Fabric"]

_BARS = {0x10: "component", 0x18: "device", 0x20: "pmu"}
_BAR_SIZES = {"component": 64 << 10, "device": 64 << 10, "pmu": 64 << 10}
_PORT_WINDOW = 2 << 20  #: of the MMIO window, from here on, is the root port's
_ACCESS_CYCLES = 64  #: of the device's clock that pass with each access of a register


class RootPort:
    """Configuration space of a root port with one device below it."""

    def __init__(self, places: Places):
        self.space = bytearray(4096)
        base = places.mmio + _PORT_WINDOW
        limit = places.mmio + MMIO_BYTES - 1
        struct.pack_into("<HHHHI", self.space, 0, 0x1B36, 0x000C, 7, 0x10, 0x06040000)
        self.space[0x0E] = 1
        struct.pack_into("<BBB", self.space, 0x18, 0, 1, 1)
        struct.pack_into("<BB", self.space, 0x1C, 0xF0, 0)  # no I/O
        struct.pack_into("<HH", self.space, 0x20, base >> 16 & 0xFFF0, limit >> 16 & 0xFFF0)
        struct.pack_into("<HH", self.space, 0x24, 0xFFF1, 0x0001)  # nothing prefetchable
        self.space[0x34] = 0x40
        # PCI Express capability, version 2, root port; a link of eight lanes that is up.
        link = 4 | 8 << 4
        struct.pack_into("<BBHIHHI", self.space, 0x40, 0x10, 0, 0x42, 0, 0, 0, link | 1 << 20)
        struct.pack_into("<HH", self.space, 0x50, 0, link | 1 << 13)
        struct.pack_into("<IHH", self.space, 0x6C, 0x1E, 4, 0)
        #: Bytes that a host may change.
        self._writable = {*range(4, 6), *range(0x18, 0x1C), *range(0x1C, 0x28), 0x3C, 0x3E, 0x3F}
        self._writable |= {*range(0x48, 0x4A), *range(0x50, 0x52), *range(0x5C, 0x5E), 0x68, 0x69}

    def read(self, at: int, size: int) -> int:
        return int.from_bytes(self.space[at : at + size], "little")

    def write(self, at: int, size: int, value: int) -> None:
        for i, byte in enumerate(value.to_bytes(size, "little")):
            if at + i in self._writable:
                self.space[at + i] = byte


class Fabric:
    """Accesses of the machine to the segment.

    Parameters
    ----------
    device : JoinedDriver
    places : Places
    """

    def __init__(self, device: JoinedDriver, places: Places):
        self.places, self.device = places, device
        self.port = RootPort(places)
        self.counts: Counter = Counter()
        # What a firmware does before the kernel: BARs.
        for i, (at, space) in enumerate(_BARS.items()):
            address = places.mmio + _PORT_WINDOW + i * _BAR_SIZES[space]
            self.device.write("configuration", at, 4, address)
            self.device.write("configuration", at + 4, 4, 0)
        self._placed = self._bars()

    def _bars(self) -> dict[str, int]:
        return {
            space: self.device.read("configuration", at, 4)[0] & ~0xF for at, space in _BARS.items()
        }

    def _place(self, address: int):
        """(space, offset) of the device's registers at a machine address."""
        for space, base in self._placed.items():
            if base <= address < base + _BAR_SIZES[space]:
                return space, address - base
        return None

    def read(self, address: int, size: int) -> int:
        ones, p = (1 << 8 * size) - 1, self.places
        if p.window <= address < p.window + WINDOW_BYTES:
            return self._load(address, size)
        self.device.clock(_ACCESS_CYCLES)
        if p.ecam <= address < p.ecam + ECAM_BYTES:
            bus, at = address - p.ecam >> 12, (address - p.ecam) & 0xFFF
            if bus == 0:
                return self.port.read(at, size)
            return self._register("configuration", at, size) if bus == 256 else ones
        if p.mmio <= address < p.mmio + BRIDGE_BYTES:
            # Component registers without a capability: one root port needs no decoder.
            return 0x110001 & ones if address - p.mmio == 0x1000 else 0
        where = self._place(address)
        return self._register(*where, size) if where else ones

    def write(self, address: int, size: int, value: int) -> None:
        p = self.places
        if p.window <= address < p.window + WINDOW_BYTES:
            self._store(address, size, value)
            return
        self.device.clock(_ACCESS_CYCLES)
        if p.ecam <= address < p.ecam + ECAM_BYTES:
            bus, at = address - p.ecam >> 12, (address - p.ecam) & 0xFFF
            if bus == 0:
                self.port.write(at, size, value)
            elif bus == 256:
                self.counts["register writes"] += 1
                self.device.write("configuration", at, size, value)
                if 0x10 <= at < 0x28:
                    self._placed = self._bars()
        elif where := self._place(address):
            self.counts["register writes"] += 1
            self.device.write(*where, size, value)

    def _register(self, space: str, at: int, size: int) -> int:
        self.counts["register reads"] += 1
        return self.device.read(space, at, size)[0]

    def pump(self, cycles: int = 500) -> None:
        """Time that passes without an access."""
        self.device.clock(cycles)

    # - memory -------------------------------------------------------------------------------------
    def _load(self, address: int, size: int) -> int:
        """A load is a MemRd of its line; what has no data reads ones."""
        self.counts["loads"] += 1
        result = self.device.run(Program(opcode=READ, address=[address & ~63]))
        response = Response(result.response[0])
        self.counts[f"loads answered {response.name}"] += 1
        if response != Response.DATA:
            return (1 << 8 * size) - 1
        line = result.data[0].tobytes()
        return int.from_bytes(line[address % 64 : address % 64 + size], "little")

    def _store(self, address: int, size: int, value: int) -> None:
        """A store is a MemWrPtl."""
        self.counts["stores"] += 1
        line = np.zeros((1, 64), np.uint8)
        at = address % 64
        line[0, at : at + size] = np.frombuffer(value.to_bytes(size, "little"), np.uint8)
        enable = ((1 << size) - 1) << at
        self.device.run(
            Program(opcode=PARTIAL, address=[address & ~63], data=line, byte_enable=[enable])
        )

    def take_messages(self) -> list[dict]:
        """Interrupts since the last call."""
        messages, self.device.messages = self.device.messages, []
        return messages
