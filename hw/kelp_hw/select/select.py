# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The choice of pages near memory, as the endpoint has it (docs/select.md): what lies between the
host's requests, the tracker and the data path. A request, an op or an answer that is not its own
passes in the same cycle; what comes on M2S Req is a cycle later, and no M2S RwD overtakes it."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.address import Region
from kelp_spec.config import Config
from kelp_spec.metadata import Event, Op, Outcome, PageState

from ..layouts import MESSAGES, TIME_BITS, DroppedPages, Layouts, PageValues
from ..lib.protected import BlockFault, gather_blocks
from ..lib.skid import Skid
from .select_control import SelectControl, SelectParts
from .summary_memory import summary_axi

__all__ = ["Select", "select_events", "summary_ports"]


def select_events(config: Config) -> int:
    """Sources of events that the choice has in a configuration."""
    return 2 + config.select_port if config.select else 0


def summary_ports(config: Config) -> dict:
    """The memory port of summaries, where a configuration has one."""
    return {"summary_axi": Out(summary_axi(config))} if config.select_port else {}


class Select(wiring.Component):
    """SELECT, GATHER and slots of an endpoint whose configuration has `select`.

    Latency: `LATENCY` cycle from `i_request` to `o_request`; the other streams pass in the same
    cycle (`PASS_LATENCY`). One transfer in each cycle (`INTERVAL`) on each of them. Errors:
    docs/select.md.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_request, o_request : streams of M2SReq
        From the host to ingress.
    i_write, o_write : streams of M2SRwD
        The same. A message waits while a request that was taken before it is inside, and while
        one waits that is not `stuck` no other request is taken; with `Config.select_port` also
        while a summary that memory lost waits for a cycle in which no key beside it is written,
        which it has done for `SummaryStore.PATIENCE` cycles then.
    stuck : in, without `Config.coherence`
        Ingress has no place for what stands on `o_write`, whatever comes on Req.
    i_access, o_access : streams of register_access
        From the router: those of the SELECT region stay, the others go on to the registers.
    i_served, o_served : streams of window_answer
        The registers' answers, and all of them to the router.
    i_op, o_op : streams of op
        The hints' ops, and with them LOOK, HOLD and UNHOLD.
    i_page, o_page : streams of pages
        The hints' pages to the prefetcher, and with them those that a choice would have fetched.
    i_answer, o_answer : streams of answer
        The data path's answers; those to LOOKs stay.
    i_result, i_hot : in, always-ready streams of result, hot
    sessions, now : in
    o_event : out, always-ready streams of event
        Refused SELECTs; accesses to the region that are not the owner's; with `Config.select_port`
        summaries that memory lost.
    idle : out
        Nothing is inside, and no SELECT waits.
    fault : out, BlockFault
    summary_axi : out
        With `Config.select_port`: the memory port of summaries (AXI4), one line per transaction.
    dropped : in, DroppedPages
        With `Config.select_estimates`: of what it asked for, and others did.
    values : in, PageValues; frames : in
        With `Config.select_tables`: what sweeps ask of the tables, and the frames that are in use.
    """

    LATENCY = 1
    PASS_LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = c = config
        layouts = Layouts(c)
        request, access = MESSAGES["M2SReq"], layouts.register_access
        super().__init__(
            {
                "i_request": In(stream.Signature(request)),
                "o_request": Out(stream.Signature(request)),
                "i_write": In(stream.Signature(MESSAGES["M2SRwD"])),
                "o_write": Out(stream.Signature(MESSAGES["M2SRwD"])),
                "i_access": In(stream.Signature(access)),
                "o_access": Out(stream.Signature(access)),
                "i_served": In(stream.Signature(layouts.window_answer)),
                "o_served": Out(stream.Signature(layouts.window_answer)),
                "i_op": In(stream.Signature(layouts.op)),
                "o_op": Out(stream.Signature(layouts.op)),
                "i_page": In(stream.Signature(layouts.page)),
                "o_page": Out(stream.Signature(layouts.page)),
                "i_answer": In(stream.Signature(layouts.answer)),
                "o_answer": Out(stream.Signature(layouts.answer)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_hot": In(stream.Signature(layouts.hot, always_ready=True)),
                "sessions": In(data.ArrayLayout(layouts.session, c.sessions)),
                "now": In(TIME_BITS),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)).array(
                    select_events(c)
                ),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
            | ({} if c.coherence else {"stuck": In(1)})
            | summary_ports(c)
            | ({"dropped": In(DroppedPages(c))} if c.select_estimates else {})
            | self._table_ports(c)
        )

    @staticmethod
    def _table_ports(config: Config) -> dict:
        if not config.select_tables:
            return {}
        return {"values": In(PageValues(config)), "frames": In(range(config.total_frames + 1))}

    def elaborate(self, platform):
        m = Module()
        c = self.config
        parts = SelectParts(c)
        m.submodules.window, m.submodules.gather = window, gather = parts.window, parts.gather
        m.submodules.store, m.submodules.reader = parts.store, parts.reader
        m.submodules.engine = parts.engine
        m.submodules.control = control = SelectControl(config=c, parts=parts)
        connect(m, flipped(self.i_request), gather.i)
        connect(m, gather.o, flipped(self.o_request))
        self._order(m, gather, parts.store.starves if c.select_port else Const(0))
        self._accesses(m, window)
        # Critical path: the choice's next page to hints that wait for their turn, and back.
        m.submodules.held = held = Skid(control.o_op.p.shape())
        connect(m, control.o_op, held.i)
        self._ops(m, parts.reader, held.o)
        self._pages(m, control)
        self._results(m, parts, control)
        for k, source in enumerate((control.o_event, window.o_event)):
            m.d.comb += [self.o_event[k].valid.eq(source.valid), self.o_event[k].p.eq(source.p)]
        if c.select_port:
            self._memory(m, parts.store)
        if c.select_estimates:
            connect(m, flipped(self.dropped), control.dropped)
        learnt = 1
        if c.select_tables:
            self._tables(m, parts.tables)
            learnt = parts.tables.idle
        m.d.comb += [
            window.sessions.eq(self.sessions),
            control.sessions.eq(self.sessions),
            control.now.eq(self.now),
            self.idle.eq(
                window.idle & gather.idle & parts.reader.idle & control.idle & held.idle & learnt
            ),
        ]
        blocks = [gather, window, parts.reader, parts.engine]
        if c.select_port:
            blocks.append(parts.store)
        gather_blocks(m, self.fault, *(block.fault for block in blocks))
        return m

    def _memory(self, m, store):
        """The port of summaries, and what memory lost of them."""
        lost, event = store.o_failed, self.o_event[2]
        connect(m, store.axi, flipped(self.summary_axi))
        m.d.comb += [
            event.valid.eq(lost.valid),
            event.p.code.eq(Event.SUMMARY_LOST),
            event.p.squeue.eq(lost.p.squeue),
            event.p.page.eq(lost.p.page),
            event.p.argument.eq(lost.p.write),
            event.p.ld_id.eq(self.sessions[0].ld_id),
        ]
        for k in range(1, self.config.sessions):
            with m.If(lost.p.squeue >= k * self.config.queues):
                m.d.comb += event.p.ld_id.eq(self.sessions[k].ld_id)

    def _order(self, m, gather, starves):
        """Messages reach ingress in the order in which they were taken; of two taken in one cycle
        the RwD first. While an RwD waits, no other request is taken, so it waits for one at most.
        Past one that is `stuck`, and is not offered, requests go until one has taken the place that
        it may be waiting for. Before a coherent front none waits: there a Req may wait for a
        recall, which a RwD must not (docs/coherence.md). While a summary `starves`, no RwD goes on;
        what is offered stays."""
        if self.config.coherence:
            held, hold = Const(0), Const(0)
        else:
            waits, passed = Signal(), Signal()
            m.d.comb += waits.eq(self.i_write.valid & ~self.i_write.ready)
            takes = gather.o.valid & gather.o.ready & self._is_side(gather.o.p.address)
            m.d.sync += passed.eq(waits & (passed | takes))
            held, hold = gather.o.valid | self.stuck, waits & (~self.stuck | passed)
        if self.config.select_port:
            stops = Signal()
            stands = self.o_write.valid & ~self.o_write.ready
            m.d.sync += stops.eq(starves & (stops | ~stands))
            held = held | stops
        m.d.comb += [
            self.o_write.valid.eq(self.i_write.valid & ~held),
            self.o_write.p.eq(self.i_write.p),
            self.i_write.ready.eq(self.o_write.ready & ~held),
            gather.hold.eq(hold),
        ]

    def _is_side(self, address):
        """Whether what is there is no KV line's, but a window's."""
        region = address[self.config.aperture_bits - 6 :]
        return Cat(region == side for side in (Region.HINT, Region.REGISTER, Region.SELECT)).any()

    def _accesses(self, m, window):
        """The region's accesses, and the registers'."""
        own = self.i_access.p.select
        m.d.comb += [
            window.i.valid.eq(self.i_access.valid & own),
            window.i.p.eq(self.i_access.p),
            self.o_access.valid.eq(self.i_access.valid & ~own),
            self.o_access.p.eq(self.i_access.p),
            self.i_access.ready.eq(Mux(own, window.i.ready, self.o_access.ready)),
            self.o_served.valid.eq(Mux(own, window.o.valid, self.i_served.valid)),
            self.o_served.p.eq(Mux(own, window.o.p, self.i_served.p)),
            window.o.ready.eq(self.o_served.ready & own),
            self.i_served.ready.eq(self.o_served.ready & ~own),
        ]

    def _ops(self, m, reader, held):
        """Hints and the choice take turns, and of the choice what changes slots goes first; an op
        that is offered stays until it is taken. Slots may be given back by the hundred without
        pause: longer than the router has a register access wait for the hint line before it."""
        sources = (self.i_op, reader.o_op, held)
        pick, kept, keeps = Signal(range(3)), Signal(range(3)), Signal()
        #: a hint went last
        hinted = Signal()
        of_choice = held.valid | reader.o_op.valid
        with m.If(keeps):
            m.d.comb += pick.eq(kept)
        with m.Elif(self.i_op.valid & ~(hinted & of_choice)):
            m.d.comb += pick.eq(0)
        with m.Else():
            m.d.comb += pick.eq(Mux(held.valid, 2, 1))
        for k, source in enumerate(sources):
            with m.If(pick == k):
                m.d.comb += [
                    self.o_op.valid.eq(source.valid),
                    self.o_op.p.eq(source.p),
                    source.ready.eq(self.o_op.ready),
                ]
        m.d.sync += [kept.eq(pick), keeps.eq(self.o_op.valid & ~self.o_op.ready)]
        with m.If(self.o_op.valid & self.o_op.ready):
            m.d.sync += hinted.eq(pick == 0)

    def _pages(self, m, control):
        """Two sources of pages; one that is offered stays until it is taken."""
        pick, kept, keeps = Signal(), Signal(), Signal()
        m.d.comb += [
            pick.eq(Mux(keeps, kept, control.o_fetch.valid)),
            self.o_page.valid.eq(Mux(pick, control.o_fetch.valid, self.i_page.valid)),
            self.o_page.p.eq(Mux(pick, control.o_fetch.p.as_value(), self.i_page.p.as_value())),
            control.o_fetch.ready.eq(self.o_page.ready & pick),
            self.i_page.ready.eq(self.o_page.ready & ~pick),
        ]
        m.d.sync += [kept.eq(pick), keeps.eq(self.o_page.valid & ~self.o_page.ready)]

    def _tables(self, m, tables):
        """What the tables are told beside choices, and asked."""
        m.submodules.tables = tables
        result = self.i_result
        op = result.p.op
        m.d.comb += [
            tables.value_of.squeue.eq(self.values.squeue),
            tables.value_of.page.eq(self.values.page),
            self.values.value.eq(tables.value),
            tables.frames.eq(self.frames),
            tables.i_spend.valid.eq(
                result.valid
                & result.p.changed
                & (result.p.old.state == PageState.COLD)
                & (result.p.word.state == PageState.FETCHING)
            ),
            tables.i_spend.p.eq(op.session),
        ]

    def _results(self, m, parts, control):
        """Who learns what of M3's decisions, and of the data path's answers."""
        window, store, reader = parts.window, parts.store, parts.reader
        c, result, hot = self.config, self.i_result, self.i_hot
        op, answer = result.p.op, self.i_answer
        look = answer.p.origin.look
        written = (
            (op.kind == Op.WRITE)
            & ((result.p.outcome == Outcome.HIT) | (result.p.outcome == Outcome.ALLOCATED))
        ) | ((op.kind == Op.REPLAY) & op.write & ~op.failed)
        key = op.kv_line < c.half_lines
        scrubbed = op.kind == Op.SCRUB
        ended = result.valid & (result.p.outcome == Outcome.DONE)
        ended &= (op.kind == Op.CLOSE) | (op.kind == Op.OPEN)
        hot_key = hot.valid & hot.p.write & (hot.p.kv_line < c.half_lines)
        # Only one op in a cycle uses the frame stage, so no two of these come together.
        m.d.comb += [
            store.i_clear.valid.eq(hot_key | (result.valid & ((written & key) | scrubbed))),
            store.i_clear.p.squeue.eq(Mux(hot_key, hot.p.squeue, op.squeue)),
            store.i_clear.p.page.eq(Mux(hot_key, hot.p.page, op.page)),
            window.forget.eq(control.ended),
            answer.ready.eq(Mux(look, reader.i_line.ready, self.o_answer.ready)),
            reader.i_line.valid.eq(answer.valid & look),
            reader.i_line.p.eq(answer.p),
            self.o_answer.valid.eq(answer.valid & ~look),
            self.o_answer.p.eq(answer.p),
        ]
        for k in range(c.sessions):
            m.d.comb += control.ended[k].eq(ended & (op.session == k))
        for block in (reader, control):
            m.d.comb += [block.i_result.valid.eq(result.valid), block.i_result.p.eq(result.p)]
