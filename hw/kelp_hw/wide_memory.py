# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The line-wide memories of the data path."""

from __future__ import annotations

from amaranth.hdl import Module, Shape, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

__all__ = ["WideMemory"]


class WideMemory(wiring.Component):
    """:class:`.sram.Sram` with write enables, and always in block RAM.

    A tool left alone puts 32 rows of 512 bits into distributed RAM, 1500 LUTs for what 15 block RAMs hold.

    Latency: one cycle, `read_en` with `read_address` → `read_data`, which then holds while `read_en` is low. A read of what is written in the same
    cycle returns the **new** data. Throughput: one read and one write per cycle.

    Parameters
    ----------
    depth : int
    shape : shape-like
    granularity : int or None
        Bits per bit of `write_en`; by default one enable for the row. `shape` must be a width then.
    """

    def __init__(self, *, depth: int, shape, granularity: int | None = None):
        width = Shape.cast(shape).width
        if granularity is not None and (granularity < 1 or width % granularity):
            raise ValueError(f"granularity = {granularity!r} is refused; legal: a divisor of the width, {width}")
        self.depth = depth
        self.width = width
        self.granularity = granularity
        address_bits = max(1, ceil_log2(depth))
        super().__init__({
            "read_en": In(1), "read_address": In(address_bits), "read_data": Out(shape),
            "write_en": In(width // (granularity or width)), "write_address": In(address_bits), "write_data": In(shape),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory.Memory(shape=self.width, depth=self.depth, init=(), attrs={"ram_style": "block"})
        write = rows.write_port(granularity=self.granularity)
        read = rows.read_port(transparent_for=(write,))
        m.d.comb += [
            read.en.eq(self.read_en), read.addr.eq(self.read_address), Value.cast(self.read_data).eq(read.data),
            write.en.eq(self.write_en), write.addr.eq(self.write_address), write.data.eq(Value.cast(self.write_data)),
        ]
        return m
