# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The emulator's remote PCI device (`x-pci-proxy-dev`): messages on a socket pair, and the
configuration space of a plain device whose three BARs are windows into the second segment."""

from __future__ import annotations

import select
import socket
import struct

from .places import ECAM_BYTES, MMIO_BYTES, WINDOW_BYTES, Places

__all__ = ["Proxy"]

_HEADER, _CONFIG, _ACCESS = struct.Struct("<i4xQ"), struct.Struct("<IIi"), struct.Struct("<QQI?3x")
_RETURN = 1
_CONFIG_WRITE, _CONFIG_READ, _BAR_WRITE, _BAR_READ, _RESET = 2, 3, 4, 5, 7
_SIZES = (ECAM_BYTES, MMIO_BYTES, WINDOW_BYTES)
_MEMORY_ENABLE = 2


class Proxy:
    """Serves the emulator's end.

    Parameters
    ----------
    socket : socket.socket
    read, write : callable
        (address, size) → value; (address, size, value): accesses of the BARs.
    """

    def __init__(self, end: socket.socket, read, write):
        self.socket, self.read, self.write = end, read, write
        self.places: Places | None = None
        self.bars = [0, 0, 0]
        self.command = 0

    def serve(self, seconds: float) -> bool:
        """One message, if one comes in that time; EOFError when the emulator has gone."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return False
        kind, size = _HEADER.unpack(self._take(_HEADER.size))
        body = self._take(size)
        if kind in (_CONFIG_READ, _CONFIG_WRITE):
            at, value, length = _CONFIG.unpack(body)
            write = kind == _CONFIG_WRITE
            self._answer(
                self._config_write(at, value, length) if write else self._config(at, length)
            )
        elif kind == _BAR_READ:
            at, _, length, _ = _ACCESS.unpack(body)
            self._answer(self.read(at, length))
        elif kind == _BAR_WRITE:
            at, value, length, _ = _ACCESS.unpack(body)
            self.write(at, length, value)
            self._answer(0)
        elif kind == _RESET:
            self._answer(0)
        return True

    def _take(self, size: int) -> bytes:
        out = b""
        while len(out) < size:
            # Descriptors of the machine's memory come along: the device reads none of it.
            part, given, _, _ = self.socket.recvmsg(size - len(out), 1024)
            for _, _, data in given:
                for (number,) in struct.iter_unpack("i", data):
                    socket.close(number)
            if not part:
                raise EOFError("the emulator has gone")
            out += part
        return out

    def _answer(self, value: int) -> None:
        self.socket.sendall(_HEADER.pack(_RETURN, 8) + struct.pack("<Q", value & (1 << 64) - 1))

    def _config(self, at: int, length: int) -> int:
        ones = (1 << 8 * length) - 1
        if self.places:
            return ones  # Linux finds nothing here; the BARs stay where they are
        space = bytearray(256)
        struct.pack_into("<HHHHI", space, 0, 0x1B36, 0x4B50, self.command, 0, 0x08800000)
        for i, base in enumerate(self.bars):
            struct.pack_into("<I", space, 0x10 + 4 * i, base)
        return int.from_bytes(space[at : at + length], "little")

    def _config_write(self, at: int, value: int, length: int) -> int:
        if self.places:
            return 0
        if at == 4:
            self.command = value & 7
        for i, size in enumerate(_SIZES):
            if at == 0x10 + 4 * i and length == 4:
                self.bars[i] = value & ~(size - 1) & 0xFFFFFFFF
        if self.command & _MEMORY_ENABLE and all(self.bars):
            self.places = Places(*self.bars)
        return 0
