# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A snoop's device address as the host knows it. Latency 1 cycle, one snoop a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import UNIT_BYTES, CxlIoConfig

from ..cxlio.signatures import UNIT_BITS, decoding_layout
from ..layouts import MESSAGES

__all__ = ["SnoopAddress"]

_UNIT_LINES = (UNIT_BYTES // 64).bit_length() - 1


class SnoopAddress(wiring.Component):
    """BISnp in their order, each with the host's address of its line: the committed window that has
    it, or the DVSEC range. With interleaving a host's line is one of several ways', and which way
    this device is no register says; so a coherent device commits no interleaved decoder
    (`HdmDecoders`). A snoop of a line that no window has any more is dropped: its host cannot be
    asked, and the line is given up when the time is over.

    Latency: `LATENCY` cycle; interval: `INTERVAL`.

    Parameters
    ----------
    config : CxlIoConfig

    Members
    -------
    i, o : streams of S2MBISnp
    decoding : in
        Of `CxlIo`.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: CxlIoConfig):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(MESSAGES["S2MBISnp"])),
                "o": Out(stream.Signature(MESSAGES["S2MBISnp"])),
                "decoding": In(decoding_layout(config)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        d, move, found = self.decoding, Signal(), Signal()
        unit, below = self.i.p.address[_UNIT_LINES:], self.i.p.address[:_UNIT_LINES]
        host = Signal(UNIT_BITS)
        m.d.comb += [
            move.eq(~self.o.valid | self.o.ready),
            self.i.ready.eq(move),
            found.eq(d.mem_enable & ~d.enable & (unit < self.config.capacity)),
            host.eq(d.range_base + unit),
        ]
        for window in d.windows:
            away = Signal(UNIT_BITS + 1)
            m.d.comb += away.eq(unit - window.dpa)
            with m.If(d.enable & window.on & (unit >= window.dpa) & (away < window.size)):
                m.d.comb += [found.eq(1), host.eq(window.base + away)]
        with m.If(move):
            m.d.sync += [
                self.o.valid.eq(self.i.valid & found),
                self.o.p.eq(self.i.p),
                self.o.p.address.eq(Mux(found, Cat(below, host), 0)),
            ]
        return m
