# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A deep memory in pieces of the size of a block RAM, with a register at the output of each. One
read and one write a cycle; a read is answered after 2 cycles."""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Array, Module, Signal, Value
from amaranth.lib import wiring

from .sram import Sram, memory_ports

__all__ = ["Piece", "SplitSram"]

#: rows and bits of a block RAM where it has parity bits and the most rows; deeper ones lose an
#: eighth of their bits
_PART_BITS, _SLICE = 11, 9


class Piece(NamedTuple):
    """What one `Sram` holds of a memory: `rows` from `first` on, and of these `bits` from `low`
    on."""

    first: int
    rows: int
    low: int
    bits: int
    name: str


class SplitSram(wiring.Component):
    """A `Sram` with a register at its output, so that an answer comes a cycle later.

    Latency: `LATENCY` cycles, `read_en` with `read_address` → `read_data`, which holds when
    `read_en` was low two cycles before. One read and one write in each cycle (`INTERVAL`).
    Collisions, contents after configuration and error cases are `Sram`'s.

    Critical path: the output of a block RAM, registered here. Synthesis makes a deep memory of many
    block RAMs, with long wires and multiplexers between them and the reader. Here a memory of more
    rows than `Sram` keeps in `lib.memory` is split into parts of 2^11 rows, and each part into
    slices of nine bits, one block RAM each: nothing but the collision's multiplexer stands between
    a block RAM and its register `raw`. The multiplexer of the parts follows the registers. A memory
    of more than `SPLIT_UP_TO` rows is not for block RAM: it stays one macro.

    Parameters
    ----------
    depth : int
        Rows, 1 and up. Addresses at or above it must not be presented.
    shape : shape-like
        Shape of a row: a width or a layout.

    Members
    -------
    read_en, read_address : in
    read_data : out
    write_en, write_address, write_data : in
    """

    LATENCY = 2
    INTERVAL = 1
    SPLIT_UP_TO = 16 << _PART_BITS

    def __init__(self, *, depth: int, shape):
        self.depth = depth
        self.shape = shape
        self.width, self.address_bits, members = memory_ports(depth, shape)
        self.pieces = self.split(depth, self.width)
        super().__init__(members)

    @classmethod
    def split(cls, depth: int, width: int) -> list[Piece]:
        """The pieces of a memory, each a `Sram` of that name, parts in ascending order, and slices
        within each."""
        if not Sram.MACRO_ABOVE < depth <= cls.SPLIT_UP_TO:
            return [Piece(0, depth, 0, width, "whole")]
        pieces = []
        for first in range(0, depth, 1 << _PART_BITS):
            for low in range(0, width, _SLICE):
                name = f"part{first >> _PART_BITS}_bits{low}"
                pieces.append(
                    Piece(
                        first,
                        min(depth - first, 1 << _PART_BITS),
                        low,
                        min(_SLICE, width - low),
                        name,
                    )
                )
        return pieces

    def elaborate(self, platform):
        m = Module()
        parts = 1 + max(piece.first for piece in self.pieces) // (1 << _PART_BITS)
        raw = Array(Signal(self.width, name=f"raw{part}", reset_less=True) for part in range(parts))
        inside = self.address_bits if parts == 1 else _PART_BITS
        for piece in self.pieces:
            part, bits = piece.first >> _PART_BITS, slice(piece.low, piece.low + piece.bits)
            m.submodules[piece.name] = rows = Sram(
                depth=piece.rows, shape=piece.bits, macro=True if len(self.pieces) > 1 else None
            )
            here = self.write_address[inside:] == part if parts > 1 else 1
            m.d.comb += [
                rows.read_en.eq(self.read_en),
                rows.read_address.eq(self.read_address[:inside]),
                rows.write_en.eq(self.write_en & here),
                rows.write_address.eq(self.write_address[:inside]),
                rows.write_data.eq(Value.cast(self.write_data)[bits]),
            ]
            m.d.sync += raw[part][bits].eq(rows.read_data)
        if parts == 1:
            m.d.comb += Value.cast(self.read_data).eq(raw[0])
            return m
        asked, answers = (
            Signal(range(parts), name=name, reset_less=True) for name in ("asked", "answers")
        )
        with m.If(self.read_en):
            m.d.sync += asked.eq(self.read_address[inside:])
        m.d.sync += answers.eq(asked)
        m.d.comb += Value.cast(self.read_data).eq(raw[answers])
        return m
