# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Finds the slots of the line buffers that memory's errors have met, and reports them one by one
(docs/design.md §4). One report in 3 cycles; the first comes a walk over the slots and 2 cycles
after its error."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import Out

from kelp_spec.config import Config

from ..layouts import Layouts
from .signatures import SlotErrors

__all__ = ["ErrorReports"]


class ErrorReports(wiring.Component):
    """Walks over the slots of both buffers while one of them has an error to report, and offers the
    first that has on `o`. The transfer says that the frame table has executed the report.

    Latency: at most as many cycles as the larger buffer has slots, and `LATENCY`, from the error to
    `o`, while nothing else is to be reported. Throughput: one report in `INTERVAL` cycles where the
    next slot has one.

    Parameters
    ----------
    config : Config

    Members
    -------
    lines, scales : Out(SlotErrors), to the two buffers
    o : out, stream of memory_error
    """

    LATENCY = 2
    INTERVAL = 3

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__(
            {
                "lines": Out(SlotErrors(config, config.line_slots)),
                "scales": Out(SlotErrors(config, config.scale_slots)),
                "o": Out(stream.Signature(Layouts(config).memory_error)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        buffers, o = (self.lines, self.scales), self.o
        # The slot looked at, and the one of the cycle before, whose answer stands now.
        slot = Signal(max(len(b.slot) for b in buffers))
        before, looked = Signal.like(slot), Signal()
        of_scales = Signal()
        for buffer in buffers:
            m.d.comb += [
                buffer.slot.eq(slot),
                buffer.done.p.slot.eq(before),
                buffer.done.p.spoils.eq(o.p.spoils),
            ]
        m.d.comb += [
            self.lines.done.valid.eq(o.valid & o.ready & ~of_scales),
            self.scales.done.valid.eq(o.valid & o.ready & of_scales),
        ]
        with m.If(o.valid):
            with m.If(o.ready):
                m.d.sync += [o.valid.eq(0), looked.eq(0)]
        with m.Elif(looked & (self.lines.there | self.scales.there)):
            m.d.sync += [
                o.valid.eq(1),
                of_scales.eq(~self.lines.there),
                *(
                    o.p[field].eq(
                        Mux(
                            self.lines.there,
                            getattr(self.lines, field),
                            getattr(self.scales, field),
                        )
                    )
                    for field in ("frame", "offset", "spoils", "stored")
                ),
            ]
        with m.Else():
            m.d.sync += [
                looked.eq(self.lines.any | self.scales.any),
                before.eq(slot),
            ]
            with m.If(self.lines.any | self.scales.any):
                m.d.sync += slot.eq(slot + 1)
        return m
