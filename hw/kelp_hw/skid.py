# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A register between two blocks, for both directions of a stream."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Shape, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["Skid"]


class Skid(wiring.Component):
    """Passes a stream on through registers: neither `o.valid` and its payload nor `i.ready` depends on an input of the same cycle.

    Latency 1 cycle, throughput one transfer a cycle. Two places: the one at `o`, and one for the transfer that comes while `o` stands still.

    Parameters
    ----------
    shape : shape-like

    Members
    -------
    i, o : streams
    idle : out
        Nothing is held.
    """

    def __init__(self, shape):
        Shape.cast(shape)
        self.shape = shape
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape)), "idle": Out(1)})

    def elaborate(self, platform):
        m = Module()
        spare, spare_valid = Signal(self.shape), Signal()
        moves = Signal()
        m.d.comb += [moves.eq(~self.o.valid | self.o.ready), self.i.ready.eq(~spare_valid), self.idle.eq(~self.o.valid & ~spare_valid)]
        with m.If(~spare_valid):
            m.d.sync += spare.eq(self.i.p)
        with m.If(moves):
            m.d.sync += [self.o.valid.eq(spare_valid | self.i.valid), self.o.p.eq(Mux(spare_valid, Value.cast(spare), Value.cast(self.i.p))), spare_valid.eq(0)]
        with m.Elif(self.i.valid):
            m.d.sync += spare_valid.eq(1)
        m.d.sync += Assert(~spare_valid | self.o.valid)
        return m
