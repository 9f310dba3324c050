# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Takes a frame's lines out of the line buffers and reports when memory has them (docs/design.md
§4). A clean frame is reported after 4 cycles, one in 4 cycles; a dirty line adds its write and the
response."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..layouts import Layouts
from ..lib.protected import fault_ports, fifo_of
from ..pipeline import flushes
from .signatures import FrameFlush

__all__ = ["FlushUnit"]


class FlushUnit(wiring.Component):
    """Flushes frames in the order of `i`, one at a time; others wait in a FIFO with a place for
    each that may be on its way, so that the head goes on.

    When an item leaves on `o`, everything stored in its frame before the item entered is in memory,
    confirmed by B, and no buffer holds a line of it, except lines that ops behind the flush use.
    Latency of a clean frame `LATENCY` cycles, one frame in `INTERVAL` cycles; in addition one write
    and its response for each dirty line, overlapped.

    Parameters
    ----------
    config : Config

    Members
    -------
    i, o : streams of Layouts.flush
    lines, scales : Out(FrameFlush), to the two buffers
    idle : out
        No flush is at work or waits.
    fault : out, Fault
        With `config.protect`: of the flush at work.
    """

    LATENCY = 4
    INTERVAL = 4

    def __init__(self, *, config: Config):
        self.config = config
        #: flushes at work and waiting: all that may be on their way, so the head never waits
        self.queued = flushes(config.write_backs)
        self.layout = Layouts(config).flush
        super().__init__(
            {
                "i": In(stream.Signature(self.layout)),
                "o": Out(stream.Signature(self.layout)),
                "lines": Out(FrameFlush(frame_bits=config.frame_bits)),
                "scales": Out(FrameFlush(frame_bits=config.frame_bits)),
                "idle": Out(1),
                **fault_ports(config.protect, "fault"),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = fifo_of(
            SyncFIFO, shape=self.layout, depth=self.queued, protect=self.config.protect
        )
        item = self.layout(Value.cast(queue.r_data))
        if self.config.protect:
            m.d.comb += self.fault.eq(queue.fault)
        capture, invalidate, pending = Signal(), Signal(), Signal()
        for buffer in (self.lines, self.scales):
            m.d.comb += [buffer.frame.eq(item.frame), buffer.capture.eq(capture)]
            # Registered: the frame is still the flush's in the cycle in which the report stands at
            # `o` at the earliest, and `pending` is a critical path.
            m.d.sync += buffer.invalidate.eq(invalidate)
        m.d.comb += [
            queue.w_en.eq(self.i.valid),
            queue.w_data.eq(self.i.p),
            self.i.ready.eq(queue.w_rdy),
            self.o.p.eq(item),
            pending.eq(self.lines.pending | self.scales.pending),
        ]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                # The tables compare the frame in this cycle, and use the result in the next.
                with m.If(queue.r_rdy):
                    m.next = "CAPTURE"
            with m.State("CAPTURE"):
                m.d.comb += capture.eq(1)
                m.next = "WRITE"
            with m.State("WRITE"):
                with m.If(~pending):
                    m.d.comb += invalidate.eq(1)
                    m.next = "REPORT"
            with m.State("REPORT"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.comb += queue.r_en.eq(1)
                    m.next = "IDLE"
            m.d.comb += self.idle.eq(fsm.ongoing("IDLE") & ~queue.r_rdy)
        return m
