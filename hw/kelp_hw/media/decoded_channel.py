# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A CXL.mem channel whose host addresses become the device's. Latency 2 cycles, one message a
cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import CxlIoConfig

from ..cxlio.hdm_decode import HdmDecode
from ..cxlio.signatures import decoding_layout

__all__ = ["DecodedChannel"]


class DecodedChannel(wiring.Component):
    """Messages in their order, each with its address decoded. One that is in no window gets the
    address of all ones, which is outside the endpoint's map: a read is answered NXM, a write is
    dropped with Cmp.

    Latency: `LATENCY` cycles; interval: `INTERVAL`.

    Parameters
    ----------
    config : CxlIoConfig
    message : layout
        With a field `address`.

    Members
    -------
    i, o : streams of message
    decoding : in
        Of `CxlIo`.
    """

    LATENCY = HdmDecode.LATENCY
    INTERVAL = 1

    def __init__(self, *, config: CxlIoConfig, message):
        self.config, self.message = config, message
        super().__init__(
            {
                "i": In(stream.Signature(message)),
                "o": Out(stream.Signature(message)),
                "decoding": In(decoding_layout(config)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.decode = decode = HdmDecode(config=self.config)
        first, second = Signal(self.message), Signal(self.message)
        m.d.comb += [
            decode.i.valid.eq(self.i.valid),
            decode.i.p.eq(self.i.p.address),
            self.i.ready.eq(decode.i.ready),
            decode.o.ready.eq(self.o.ready),
            self.o.valid.eq(decode.o.valid),
            self.o.p.eq(second),
            self.o.p.address.eq(Mux(decode.o.p.hit, decode.o.p.line, ~0)),
            decode.windows.eq(self.decoding.windows),
            decode.enable.eq(self.decoding.enable),
            decode.mem_enable.eq(self.decoding.mem_enable),
            decode.range_base.eq(self.decoding.range_base),
        ]
        # What the decode does not carry moves as its two stages do.
        with m.If(decode.i.ready):
            m.d.sync += first.eq(self.i.p)
        with m.If(~decode.o.valid | decode.o.ready):
            m.d.sync += second.eq(first)
        return m
