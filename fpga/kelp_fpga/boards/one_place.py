# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A register between a wide stream and something slow: 1 cycle, one item in two cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Shape, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["OnePlace"]


class OnePlace(wiring.Component):
    """Holds one item: takes the next when the one before has gone. `i.ready` is a register's output
    and the payload's registers have no other enable, so that nothing on the far side reaches the
    hundreds of registers on this one in the same cycle.

    Latency: `LATENCY` cycle; an item each `INTERVAL` cycles.

    Parameters
    ----------
    shape : shape-like

    Members
    -------
    i, o : streams
    """

    LATENCY = 1
    INTERVAL = 2

    def __init__(self, shape):
        Shape.cast(shape)
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        # A register of its own says that nothing is held: `valid` belongs to whoever takes the
        # item, and may lie far off.
        empty = Signal(init=1)
        m.d.comb += [self.i.ready.eq(empty), Assert(empty != self.o.valid)]
        with m.If(empty):
            m.d.sync += [
                self.o.valid.eq(self.i.valid),
                empty.eq(~self.i.valid),
                self.o.p.eq(self.i.p),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += [self.o.valid.eq(0), empty.eq(1)]
        return m
