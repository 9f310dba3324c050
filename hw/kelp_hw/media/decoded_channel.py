# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A CXL.mem channel whose host addresses become the device's. Latency 2 cycles, one message a
cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import MetaField, MetaValue
from kelp_spec.cxlio.config import CxlIoConfig

from ..cxlio.hdm_decode import HdmDecode
from ..cxlio.signatures import decoding_layout

__all__ = ["DecodedChannel"]


class DecodedChannel(wiring.Component):
    """Messages in their order, each with its address decoded. One that is in no window gets the
    address of all ones, which is outside the endpoint's map: a read is answered NXM, a write is
    dropped with Cmp. Of a coherent device (`config.coherent`) nothing is granted while
    back-invalidate is off: a message then has MetaField No-Op and MetaValue Invalid.

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
    back_invalidate : in, with `config.coherent`
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
                **({"back_invalidate": In(1)} if config.coherent else {}),
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
            if self.config.coherent:
                with m.If(~self.back_invalidate):
                    m.d.sync += [
                        first.meta_field.eq(MetaField.NO_OP),
                        first.meta_value.eq(MetaValue.INVALID),
                    ]
        with m.If(~decode.o.valid | decode.o.ready):
            m.d.sync += second.eq(first)
        return m
