# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The line-wide memories of the data path."""

from __future__ import annotations

from amaranth.hdl import Module, Shape, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

__all__ = ["WideMemory"]


class WideMemory(wiring.Component):
    """:class:`.sram.Sram` with write enables, and in the kind of memory that suits its depth.

    Above `DISTRIBUTED_TO` rows it is in block RAM: a tool left alone puts 32 rows of 512 bits into
    distributed RAM, 1500 LUTs for what 15 block RAMs hold. Up to there, one level of an ECP5's
    distributed RAM holds it, in a third of that, and 15 block RAMs would be full to a thirtieth.

    Latency: one cycle, `read_en` with `read_address` → `read_data`, which then holds while
    `read_en` is low. Throughput: one read and one write per cycle. A read of what is written in the
    same cycle returns the **new** data, unless `apart`: then either.

    Parameters
    ----------
    depth : int
    shape : shape-like
    apart : bool
        It does not matter what a read of what is written in the same cycle returns: distributed RAM
        needs no second way to its output register then.
    granularity : int or None
        Bits per bit of `write_en`; by default one enable for the row. `shape` must be a width then.
    """

    DISTRIBUTED_TO = 16

    def __init__(self, *, depth: int, shape, granularity: int | None = None, apart: bool = False):
        width = Shape.cast(shape).width
        if granularity is not None and (granularity < 1 or width % granularity):
            raise ValueError(
                f"granularity = {granularity!r} is refused; legal: a divisor of the width, {width}"
            )
        self.depth = depth
        self.width = width
        self.granularity = granularity
        self.apart = apart
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
        distributed = self.depth <= self.DISTRIBUTED_TO
        m.submodules.rows = rows = memory.Memory(
            shape=self.width,
            depth=self.depth,
            init=(),
            attrs={"ram_style": "distributed" if distributed else "block"},
        )
        write = rows.write_port(granularity=self.granularity)
        # Block RAM has the new data more cheaply than the old, distributed RAM the other way round.
        read = rows.read_port(transparent_for=() if self.apart and distributed else (write,))
        m.d.comb += [
            read.en.eq(self.read_en),
            read.addr.eq(self.read_address),
            Value.cast(self.read_data).eq(read.data),
            write.en.eq(self.write_en),
            write.addr.eq(self.write_address),
            write.data.eq(Value.cast(self.write_data)),
        ]
        return m
