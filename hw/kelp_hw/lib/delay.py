# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A payload that waits beside a long pipeline, in distributed RAM instead of a register per bit and
stage. One payload a cycle, given back `cycles` enabled cycles later."""

from __future__ import annotations

from amaranth.hdl import Module, Shape, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

__all__ = ["Delay"]


class Delay(wiring.Component):
    """`o` is what `i` was `cycles` enabled cycles ago; undefined for the first `cycles` of them.

    Latency: `LATENCY` = `cycles` enabled cycles. One payload in each cycle (`INTERVAL`). No error
    cases.

    Parameters
    ----------
    shape : shape-like
        Of the payload.
    cycles : int
        2 … 32.

    Members
    -------
    en : in
        Takes `i` and moves all payloads one cycle on.
    i : in
    o : out
    """

    INTERVAL = 1

    @property
    def LATENCY(self):
        return self.cycles

    def __init__(self, *, shape, cycles: int):
        if not isinstance(cycles, int) or isinstance(cycles, bool) or not 2 <= cycles <= 32:
            raise ValueError(f"cycles = {cycles!r} is refused; legal: 2 … 32")
        self.shape = shape
        self.cycles = cycles
        super().__init__({"en": In(1), "i": In(shape), "o": Out(shape)})

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self.shape).width
        depth = 1 << ceil_log2(self.cycles)
        m.submodules.rows = rows = memory.Memory(shape=width, depth=depth, init=())
        write, read = rows.write_port(), rows.read_port(domain="comb")
        place = Signal(range(depth))
        held = Signal(width, reset_less=True)
        m.d.comb += [
            write.en.eq(self.en),
            write.addr.eq(place),
            write.data.eq(Value.cast(self.i)),
            read.addr.eq(place - (self.cycles - 1)),
            Value.cast(self.o).eq(held),
        ]
        with m.If(self.en):
            m.d.sync += [place.eq(place + 1), held.eq(read.data)]
        return m
