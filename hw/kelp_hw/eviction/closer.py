# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Closes sessions: scrubs every page, waits for the frames to be freed, reports CLOSED (spec §3,
docs/design.md §6). In the background, one page a cycle while the path takes them and no frame is to
be freed."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Op, Outcome, PageState

from ..pipeline import SCRUBS
from .signatures import EvictionLayouts

__all__ = ["Closer"]


class Closer(wiring.Component):
    """One session at a time, the first that is closing after the last one closed: SCRUB of pages 0
    … used − 1 of queues 0 … used − 1 in order, up to `IN_FLIGHT` ops and frames not yet freed at
    once. A page that is being fetched or written back answers RETRY. The walk goes on, since that
    page may wait for the very frames that later pages hold. `WAIT` cycles after its end another
    begins at the first such page; a SCRUB of an ABSENT page does nothing. Then CLOSED.

    Latency: a walk in the background. Throughput: one page per cycle when the path takes them and
    no frame is to be freed.

    Parameters
    ----------
    config : Config

    Members
    -------
    sessions : in, array of session
        As M3 has them.
    i_result : in, always-ready stream of result
    o_op : out, stream of op (SCRUB, CLOSED)
    idle : out
        No session is closing.
    """

    IN_FLIGHT = SCRUBS
    #: No distance of the pipeline: any value is right, and a small one asks M0 more often.
    WAIT = 64

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__(
            {
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "o_op": Out(stream.Signature(layouts.op)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        sessions = Array(self.sessions[k] for k in range(c.sessions))
        base = Array(Const(k * c.queues, c.squeue_bits) for k in range(c.sessions))
        session = Signal(range(c.sessions))
        squeue, page, last_squeue, last_page = (
            Signal(c.squeue_bits),
            Signal(c.page_bits),
            Signal(c.squeue_bits),
            Signal(c.page_bits),
        )
        ours = sessions[session]

        taken = Signal()
        in_flight, frames, room = self._owed(m, taken)
        self._in_order(m, in_flight, squeue, page, last_page)
        r = self.i_result.p
        again, again_squeue, again_page = (
            Signal(),
            Signal(c.squeue_bits),
            Signal(c.page_bits),
        )
        with m.If(
            self.i_result.valid & (r.op.kind == Op.SCRUB) & (r.outcome == Outcome.RETRY) & ~again
        ):
            m.d.sync += [again.eq(1), again_squeue.eq(r.op.squeue), again_page.eq(r.op.page)]

        op = self.o_op.payload
        m.d.comb += [
            op.session.eq(session),
            op.squeue.eq(squeue),
            op.page.eq(page),
            op.slot.eq(self.layouts.scrub_token),
            op.kind.eq(Op.SCRUB),
        ]
        wait = Signal(range(self.WAIT + 1))
        offered = Signal()
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.idle.eq(
                    ~Cat(self.sessions[k].closing for k in range(c.sessions)).any()
                )
                with m.If(ours.closing):
                    m.d.sync += [
                        squeue.eq(base[session]),
                        page.eq(0),
                        again.eq(0),
                        last_squeue.eq(base[session] + ours.used_queues - 1),
                        last_page.eq(ours.used_pages - 1),
                    ]
                    m.next = "WALK"
                    with m.If((ours.used_queues == 0) | (ours.used_pages == 0)):
                        m.next = "CLOSED"
                with m.Else():
                    m.d.sync += session.eq(session + 1)
                    with m.If(session == c.sessions - 1):
                        m.d.sync += session.eq(0)
            with m.State("WALK"):
                # Once offered, an op stays.
                m.d.comb += self.o_op.valid.eq(offered | room)
                m.d.sync += offered.eq(self.o_op.valid & ~self.o_op.ready)
                with m.If(self.o_op.valid & self.o_op.ready):
                    m.d.comb += taken.eq(1)
                    m.d.sync += page.eq(page + 1)
                    with m.If(page == last_page):
                        m.d.sync += [page.eq(0), squeue.eq(squeue + 1)]
                        with m.If(squeue == last_squeue):
                            m.next = "DRAIN"
            with m.State("DRAIN"):
                m.d.sync += wait.eq(self.WAIT)
                with m.If(in_flight == 0):
                    with m.If(again):
                        m.d.sync += [squeue.eq(again_squeue), page.eq(again_page)]
                        m.next = "WAIT"
                    with m.Elif(frames == 0):
                        m.next = "CLOSED"
            with m.State("WAIT"):
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.d.sync += again.eq(0)
                    m.next = "WALK"
            with m.State("CLOSED"):
                m.d.comb += [op.kind.eq(Op.CLOSED), self.o_op.valid.eq(1)]
                with m.If(self.o_op.ready):
                    m.next = "CLOSING"
            with m.State("CLOSING"):
                with m.If(~ours.closing):
                    m.next = "IDLE"
        return m

    def _owed(self, m: Module, taken: Signal):
        """SCRUBs decided or on their way; frames that they took away and that are not free yet;
        whether one more SCRUB may be `taken`."""
        r = self.i_result.p
        scrubbed, freed, orphan = Signal(), Signal(), Signal()
        in_flight, frames = Signal(range(self.IN_FLIGHT + 1)), Signal(range(self.IN_FLIGHT + 1))
        load, room = Signal(range(2 * self.IN_FLIGHT + 1)), Signal()
        m.d.comb += [
            scrubbed.eq(self.i_result.valid & (r.op.kind == Op.SCRUB)),
            freed.eq(
                self.i_result.valid
                & (r.op.kind == Op.FREE)
                & (r.op.slot == self.layouts.scrub_token)
            ),
            orphan.eq(
                scrubbed & (r.outcome != Outcome.RETRY) & (r.old.state == PageState.RESIDENT)
            ),
            load.eq(in_flight + frames),
        ]
        # `load` grows by one a cycle at most.
        m.d.sync += [
            room.eq(load < self.IN_FLIGHT - 1),
            in_flight.eq(in_flight + taken - scrubbed),
            frames.eq(frames + orphan - freed),
            Assert(~freed | (frames != 0)),
        ]
        return in_flight, frames, room

    def _in_order(self, m: Module, in_flight, squeue, page, last_page) -> None:
        """SCRUBs are decided in the order of the walk, each once; `squeue`, `page`: the next."""
        r, due_squeue, due_page = self.i_result.p, Signal.like(squeue), Signal.like(page)
        scrubbed, started = Signal(), Signal()
        m.d.comb += scrubbed.eq(self.i_result.valid & (r.op.kind == Op.SCRUB))
        with m.If(~in_flight.any()):
            m.d.sync += [due_squeue.eq(squeue), due_page.eq(page)]
        with m.Elif(scrubbed):
            m.d.sync += due_page.eq(due_page + 1)
            with m.If(due_page == last_page):
                m.d.sync += [due_page.eq(0), due_squeue.eq(due_squeue + 1)]
        m.d.sync += [
            started.eq(1),  # before the first clock edge inputs mean nothing
            Assert(
                ~started
                | ~scrubbed
                | ((in_flight != 0) & (r.op.squeue == due_squeue) & (r.op.page == due_page)),
                "a page is scrubbed that was not asked for, or out of turn",
            ),
        ]
