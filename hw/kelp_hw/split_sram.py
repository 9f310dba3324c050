# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A deep memory in pieces of the size of a block RAM, with a register at the output of each."""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Array, Module, Shape, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from .sram import Sram

__all__ = ["Piece", "SplitSram"]

_BLOCK_BITS = 14    #: a block RAM has 2^14 rows of one bit, or fewer of more


class Piece(NamedTuple):
    """What one `Sram` holds of a memory: `rows` from `first` on, and of these `bits` from `low` on."""

    first: int
    rows: int
    low: int
    bits: int
    name: str


class SplitSram(wiring.Component):
    """A `Sram` whose answer comes out of registers, a cycle later.

    A block RAM is slow to answer, and synthesis makes a deep memory of many that are far apart, with multiplexers between them and what reads. Here a memory of
    more rows than `Sram` keeps in `lib.memory` is split into parts of at most 2^14 rows, and each part into slices of as many bits as one block RAM has at
    that depth: nothing but the collision's multiplexer stands between a block RAM and its register. Between parts the choice is behind the registers.
    A memory of more than `SPLIT_UP_TO` rows is none of an FPGA's block RAM: it stays one macro.

    Latency: two cycles, `read_en` with `read_address` → `read_data`, which holds when `read_en` was low in the cycle but one before.
    Throughput, collisions and contents after configuration are `Sram`'s.

    Parameters
    ----------
    depth : int
        Rows, 1 and up. Addresses at or above it must not be presented.
    shape : shape-like
        Shape of a row: a width or a layout.

    Members
    -------
    read_en, read_address, read_data, write_en, write_address, write_data
    """

    LATENCY = 2
    SPLIT_UP_TO = 4 << _BLOCK_BITS

    def __init__(self, *, depth: int, shape):
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise ValueError(f"depth = {depth!r} is refused; legal: an integer of 1 and up")
        width = Shape.cast(shape).width
        if width < 1:
            raise ValueError(f"shape = {shape!r} is refused; legal: a shape of at least one bit")
        self.depth = depth
        self.shape = shape
        self.width = width
        self.pieces = self.split(depth, width)
        self.address_bits = max(1, ceil_log2(depth))
        super().__init__({
            "read_en": In(1), "read_address": In(self.address_bits), "read_data": Out(shape),
            "write_en": In(1), "write_address": In(self.address_bits), "write_data": In(shape),
        })

    @classmethod
    def split(cls, depth: int, width: int) -> list[Piece]:
        """The pieces of a memory, each a `Sram` of that name, parts in ascending order, and slices within each."""
        if not Sram.MACRO_ABOVE < depth <= cls.SPLIT_UP_TO:
            return [Piece(0, depth, 0, width, "whole")]
        pieces = []
        for first in range(0, depth, 1 << _BLOCK_BITS):
            rows = min(depth - first, 1 << _BLOCK_BITS)
            spare = _BLOCK_BITS - ceil_log2(rows)
            # Rows of nine bits and more have the block RAM's parity bits besides; none has more than 36.
            slice_bits = 1 << spare if spare < 3 else min(9 << spare - 3, 36)
            for low in range(0, width, slice_bits):
                bits = min(slice_bits, width - low)
                pieces.append(Piece(first, rows, low, bits, f"part{first >> _BLOCK_BITS}_bits{low}"))
        return pieces

    def elaborate(self, platform):
        m = Module()
        parts = 1 + max(piece.first for piece in self.pieces) // (1 << _BLOCK_BITS)
        raw = Array(Signal(self.width, name=f"raw{part}", reset_less=True) for part in range(parts))
        inside = self.address_bits if parts == 1 else _BLOCK_BITS
        for piece in self.pieces:
            part, bits = piece.first >> _BLOCK_BITS, slice(piece.low, piece.low + piece.bits)
            m.submodules[piece.name] = rows = Sram(depth=piece.rows, shape=piece.bits, macro=True if len(self.pieces) > 1 else None)
            here = self.write_address[inside:] == part if parts > 1 else 1
            m.d.comb += [
                rows.read_en.eq(self.read_en), rows.read_address.eq(self.read_address[:inside]),
                rows.write_en.eq(self.write_en & here), rows.write_address.eq(self.write_address[:inside]),
                rows.write_data.eq(Value.cast(self.write_data)[bits]),
            ]
            m.d.sync += raw[part][bits].eq(rows.read_data)
        if parts == 1:
            m.d.comb += Value.cast(self.read_data).eq(raw[0])
            return m
        asked, answers = (Signal(range(parts), name=name, reset_less=True) for name in ("asked", "answers"))
        with m.If(self.read_en):
            m.d.sync += asked.eq(self.read_address[inside:])
        m.d.sync += answers.eq(asked)
        m.d.comb += Value.cast(self.read_data).eq(raw[answers])
        return m
