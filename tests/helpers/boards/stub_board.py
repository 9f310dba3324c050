# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board without an endpoint."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_fpga.memory.sdram import SdramPins

__all__ = ["Stub"]


class Stub(wiring.Component):
    """The board's ports and none of its contents: pins are what is looked at here."""

    hz = 80_000_000

    def __init__(self):
        super().__init__(
            {"rx": In(1, init=1), "tx": Out(1, init=1), "sdram": Out(SdramPins()), "leds": Out(8)}
        )

    def elaborate(self, platform):
        m = Module()
        m.d.sync += [
            self.tx.eq(self.rx),
            self.leds.eq(self.leds + self.sdram.dq_i),
            self.sdram.dq_o.eq(self.sdram.dq_i),
            self.sdram.cs_n.eq(self.rx),
        ]
        return m
