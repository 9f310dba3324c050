# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The lines that the endpoint finds poisoned as what the mailbox puts on its poison list, and
records beside them. Latency 5 cycles; a page a cycle in, a line a cycle out."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..cxlio.signatures import event_layout
from ..layouts import Layouts, queue_in_map
from ..lib.protected import BlockFault, Fault, fifo_of, gather, used

__all__ = ["PoisonedLines"]


class PoisonedLines(wiring.Component):
    """Takes pages with the lines that are poisoned from now on, or healed, and offers each line by
    itself: an event without a record (`quiet`) for the poison list. Where pages wait and one finds
    no room, an event that says so (`lost`) goes before the next line: the list has overflowed.
    Records of `EventRecords` leave between the lines, in turn, so that neither keeps the other
    waiting.

    Latency: `LATENCY` cycles from `i`, one from `i_record`; interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : In stream of Layouts.poisoned_lines, always taken
    i_record : In stream of event_layout
    forget : in
        All lines are being erased: those that wait are told of no more, `DEPTH` cycles later, but
        for one that stands at `o`.
    o : Out stream of event_layout
    fault : out, BlockFault
        Of the cycle before; a page beyond repair is `poisoned`: it is lost, as without room.
    """

    LATENCY = 5
    INTERVAL = 1
    DEPTH = 16

    def __init__(self, *, config: Config):
        self.config, self.layout = config, Layouts(config).poisoned_lines
        super().__init__(
            {
                "i": In(stream.Signature(self.layout, always_ready=True)),
                "i_record": In(stream.Signature(event_layout())),
                "forget": In(1),
                "o": Out(stream.Signature(event_layout())),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        queue = fifo_of(
            fifo.SyncFIFOBuffered, depth=self.DEPTH, shape=self.layout.size, protect=c.protect
        )
        m.submodules.queue = queue
        come, page, broken = Signal(self.layout), Signal(self.layout), Signal()
        come_valid, page_valid, lost = Signal(), Signal(), Signal()
        left, turn = Signal(c.page_lines), Signal()
        line, last, take = Signal(c.line_bits), Signal(), Signal()
        m.d.sync += [come.eq(self.i.p), come_valid.eq(self.i.valid)]
        m.d.comb += [
            queue.w_data.eq(come.as_value()),
            queue.w_en.eq(come_valid),
            broken.eq(queue.fault.uncorrected if c.protect else 0),
            queue.r_en.eq(~page_valid | (take & ~lost & last) | self.forget),
            last.eq((left & (left - 1)) == 0),
        ]
        # What cannot be corrected is told of as soon as it stands there.
        faults = used(queue.fault, queue.r_en) if c.protect else Signal(Fault)
        gather(m, self.fault, poisoned=(faults,))
        for i in reversed(range(c.page_lines)):
            with m.If(left[i]):
                m.d.comb += line.eq(i)
        with m.If(take):
            with m.If(lost):
                m.d.sync += lost.eq(0)
            with m.Else():
                m.d.sync += left.eq(left & (left - 1))
        with m.If(queue.r_en):
            m.d.sync += [
                page_valid.eq(queue.r_rdy & ~broken & ~self.forget),
                page.as_value().eq(queue.r_data),
                left.eq(self.layout(queue.r_data).lines),
            ]
        # A page that found no room, or whose word is beyond repair: nothing can be told of it.
        with m.If((come_valid & ~queue.w_rdy) | (queue.r_en & queue.r_rdy & broken)):
            m.d.sync += lost.eq(1)
        with m.If(self.forget):
            m.d.sync += lost.eq(0)

        told, offers, free = Signal(event_layout()), Signal(), Signal()
        m.d.comb += [
            told.poison.eq(1),
            told.quiet.eq(1),
            told.lost.eq(lost),
            told.source.eq(page.source),
            told.healed.eq(page.healed & ~lost),
            told.dpa.eq(
                Cat(Const(0, 6), line, page.page, queue_in_map(m, c, page.squeue)),
            ),
            offers.eq((page_valid | lost) & ~self.forget),
            free.eq(~self.o.valid | self.o.ready),
            self.i_record.ready.eq(free & ~(turn & offers)),
            take.eq(free & offers & (turn | ~self.i_record.valid)),
        ]
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(self.i_record.valid | offers),
                self.o.p.eq(Mux(take, told.as_value(), self.i_record.p.as_value())),
                turn.eq(~take),
            ]
        return m
