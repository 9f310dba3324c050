# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Frames without a page: frees those that were flushed, and finds those of lost page words (spec
§4, docs/design.md §6)."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Op, Outcome

from ..layouts import POOL_BITS
from .signatures import EvictionLayouts, PageCheck

__all__ = ["Orphans"]


class Orphans(wiring.Component):
    """Answers each flushed frame with FREE, and each uncorrectable page word with a search for the
    frame that it may have had.

    A search waits until every miss entry alive at its start has flipped and no eviction works on
    the page. Then it PEEKs every frame, one at a time; the owner's frame is RECOVERed, which
    flushes and frees it. Latency: about 10 cycles per frame, in the background; up to `LOST`
    words wait their turn, the search for more is given up (`overflow`): their frames stay used
    until reset.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_flushed : in, stream of flush
        Frames that are no eviction's.
    i_result : in, always-ready stream of result
    i_owner : in, always-ready stream of frame_owner
    check : out, PageCheck
        Of the page whose frame is searched.
    o_free : out, stream of op (FREE)
    o_op : out, stream of op (PEEK, RECOVER)
    o_event : out, always-ready stream
        FRAME_RECOVERED, held until `event_taken`.
    event_taken : in
    overflow : out
        Pulse: a search was given up.
    idle : out
        No search waits or is under way.
    """

    LOST = 8
    WAIT = 64

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__(
            {
                "i_flushed": In(stream.Signature(layouts.flush)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_owner": In(stream.Signature(layouts.frame_owner, always_ready=True)),
                "check": Out(PageCheck(config)),
                "o_free": Out(stream.Signature(layouts.op)),
                "o_op": Out(stream.Signature(layouts.op)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "event_taken": In(1),
                "overflow": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config

        def pool_of(frame):
            value = Signal(POOL_BITS)
            for p in range(1, len(POOLS)):
                with m.If(frame >= c.pool_first_frame[p]):
                    m.d.comb += value.eq(p)
            return value

        # --- flushed frames ---
        free = self.o_free.payload
        m.d.comb += [
            self.o_free.valid.eq(self.i_flushed.valid),
            self.i_flushed.ready.eq(self.o_free.ready),
            free.kind.eq(Op.FREE),
            free.frame.eq(self.i_flushed.payload.frame),
            free.slot.eq(self.i_flushed.payload.token),
            free.pool.eq(pool_of(self.i_flushed.payload.frame)),
        ]

        # --- lost words ---
        r = self.i_result.p
        m.submodules.lost = lost = fifo.SyncFIFO(width=c.squeue_bits + c.page_bits, depth=self.LOST)
        where = self.layouts.page
        head, at, new = Signal(where), Signal(where), Signal(where)
        m.d.comb += [
            head.eq(lost.r_data),
            new.squeue.eq(r.op.squeue),
            new.page.eq(r.op.page),
            lost.w_data.eq(new),
            lost.w_en.eq(self.i_result.valid & r.uncorrected),
            self.overflow.eq(lost.w_en & ~lost.w_rdy),
            self.check.page.eq(at),
        ]
        # Miss entries under way, and those that a search waits for: any of them may hold the page's
        # frame.
        alive, pending = Signal(c.misses), Signal(c.misses)
        entry = Signal(c.misses)
        m.d.comb += entry.eq(1 << r.miss)
        flips = self.i_result.valid & (r.op.kind == Op.FLIP) & (r.outcome != Outcome.RETRY)
        with m.If(self.i_result.valid & (r.outcome == Outcome.MISSED)):
            m.d.sync += alive.eq(alive | entry)
        with m.Elif(flips):
            m.d.sync += [alive.eq(alive & ~entry), pending.eq(pending & ~entry)]

        frame = Signal(c.frame_bits)
        last_frame = c.total_frames - 1
        wait = Signal(range(self.WAIT + 1))
        op = self.o_op.payload
        m.d.comb += [
            op.kind.eq(Op.PEEK),
            op.squeue.eq(at.squeue),
            op.page.eq(at.page),
            op.frame.eq(frame),
            op.slot.eq(self.layouts.recover_token),
            op.pool.eq(pool_of(frame)),
            self.o_event.p.code.eq(Event.FRAME_RECOVERED),
            self.o_event.p.squeue.eq(at.squeue),
            self.o_event.p.page.eq(at.page),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(~lost.r_rdy & ~self.i_flushed.valid)
                m.d.sync += [
                    at.eq(head),
                    pending.eq(Mux(flips, alive & ~entry, alive)),
                    frame.eq(0),
                ]
                with m.If(lost.r_rdy):
                    m.d.comb += lost.r_en.eq(1)
                    m.next = "MISSES"
            with m.State("MISSES"):
                with m.If(~pending.any()):
                    m.next = "EVICTION"
            with m.State("EVICTION"):
                with m.If(~self.check.working):
                    m.next = "PEEK"
            with m.State("PEEK"):
                m.d.comb += self.o_op.valid.eq(1)
                with m.If(self.o_op.ready):
                    m.next = "OWNER"
            with m.State("OWNER"):
                with m.If(self.i_owner.valid & (self.i_owner.p.slot == self.layouts.recover_token)):
                    m.d.sync += Assert(self.i_owner.p.frame == frame)
                    m.next = "NEXT"
                    with m.If(
                        self.i_owner.p.in_use
                        & (self.i_owner.p.squeue == at.squeue)
                        & (self.i_owner.p.page == at.page)
                    ):
                        m.next = "RECOVER"
            with m.State("RECOVER"):
                m.d.comb += [op.kind.eq(Op.RECOVER), self.o_op.valid.eq(1)]
                m.d.sync += wait.eq(self.WAIT)
                with m.If(self.o_op.ready):
                    m.next = "RECOVERED"
            with m.State("RECOVERED"):
                with m.If(self.i_result.valid & (r.op.kind == Op.RECOVER)):
                    with m.Switch(r.outcome):
                        with m.Case(Outcome.ORPHAN):
                            m.next = "EVENT"
                        with m.Case(Outcome.RETRY):
                            m.next = "WAIT"
                        with m.Default():
                            m.next = "NEXT"
            with m.State("WAIT"):
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.next = "RECOVER"
            with m.State("NEXT"):
                m.d.sync += frame.eq(frame + 1)
                m.next = "PEEK"
                with m.If(frame == last_frame):
                    m.next = "IDLE"
            with m.State("EVENT"):
                m.d.comb += self.o_event.valid.eq(1)
                with m.If(self.event_taken):
                    m.next = "IDLE"
        return m
