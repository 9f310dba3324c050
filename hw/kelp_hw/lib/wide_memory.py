# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The line-wide memories of the data path. One read and one write a cycle; a read is answered after
1 cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Shape, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from .sram import Sram

__all__ = ["WideMemory"]


class WideMemory(wiring.Component):
    """A :class:`.sram.Sram` with write enables, in the kind of memory that suits its depth.

    Latency: `LATENCY` cycle, `read_en` with `read_address` → `read_data`, which then holds while
    `read_en` is low. One read and one write in each cycle (`INTERVAL`). A read of what is written
    in the same cycle returns the **new** data, or either when not `transparent`. No error cases.

    Above `DISTRIBUTED_TO` rows it is in block RAM: a tool left alone puts 32 rows of 512 bits into
    distributed RAM, 1500 LUTs for what 15 block RAMs hold. Up to there, one level of an ECP5's
    distributed RAM holds it, in a third of that, and 15 block RAMs would be full to a thirtieth.

    Parameters
    ----------
    depth : int
        Rows, 1 and up.
    shape : shape-like
        Shape of a row; a width where there is a `granularity`.
    granularity : int or None
        Bits per bit of `write_en`; by default one enable for the row.
    transparent : bool
        A read of what is written in the same cycle returns the new data. Without it the read may
        return old or new data, and distributed RAM needs no multiplexer before its output register.
    block : bool
        In block RAM whatever its depth, without a multiplexer behind it: a :class:`.sram.Sram`'s
        macro, which reads an undefined row where that is written in the same cycle. Not with
        `transparent` or `granularity`.

    Members
    -------
    read_en, read_address : in
    read_data : out
    write_en : in
        A bit per `granularity` bits of the row.
    write_address, write_data : in
    """

    LATENCY = 1
    INTERVAL = 1

    DISTRIBUTED_TO = 16

    def __init__(
        self,
        *,
        depth: int,
        shape,
        granularity: int | None = None,
        transparent: bool = True,
        block: bool = False,
    ):
        if block and (transparent or granularity is not None):
            raise ValueError(
                "block = True is refused with transparent or granularity; legal: False"
            )
        width = Shape.cast(shape).width
        if granularity is not None and (granularity < 1 or width % granularity):
            raise ValueError(
                f"granularity = {granularity!r} is refused; legal: a divisor of the width, {width}"
            )
        self.depth = depth
        self.width = width
        self.granularity = granularity
        self.transparent = transparent
        self.block = block
        address_bits = max(1, ceil_log2(depth))
        super().__init__(
            {
                "read_en": In(1),
                "read_address": In(address_bits),
                "read_data": Out(shape),
                "write_en": In(width // (granularity or width)),
                "write_address": In(address_bits),
                "write_data": In(shape),
            }
        )

    def elaborate(self, platform):
        m = Module()
        if self.block:
            m.submodules.rows = rows = Sram(
                depth=self.depth, shape=self.width, macro=True, transparent=False
            )
            m.d.comb += [
                rows.read_en.eq(self.read_en),
                rows.read_address.eq(self.read_address),
                Value.cast(self.read_data).eq(rows.read_data),
                rows.write_en.eq(self.write_en),
                rows.write_address.eq(self.write_address),
                rows.write_data.eq(Value.cast(self.write_data)),
            ]
            return m
        distributed = self.depth <= self.DISTRIBUTED_TO
        m.submodules.rows = rows = memory.Memory(
            shape=self.width,
            depth=self.depth,
            init=(),
            attrs={"ram_style": "distributed" if distributed else "block"},
        )
        write = rows.write_port(granularity=self.granularity)
        # Block RAM has the new data more cheaply than the old, distributed RAM the other way round.
        read = rows.read_port(
            transparent_for=(write,) if self.transparent or not distributed else ()
        )
        m.d.comb += [
            read.en.eq(self.read_en),
            read.addr.eq(self.read_address),
            Value.cast(self.read_data).eq(read.data),
            write.en.eq(self.write_en),
            write.addr.eq(self.write_address),
            write.data.eq(Value.cast(self.write_data)),
        ]
        return m
