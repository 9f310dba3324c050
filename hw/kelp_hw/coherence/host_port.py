# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What stands between a caching host's six channels and the endpoint's own four
(docs/coherence.md). One Req or RwD a cycle; a Req is handed on after 5 cycles, a RwD and an answer
after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.coherence import sizes_of
from kelp_spec.config import Config
from kelp_spec.formats import Format
from kelp_spec.metadata import Event

from ..layouts import MESSAGES, TIME_BITS, Layouts
from ..lib.protected import BlockFault
from .front import CoherentFront
from .layouts import CoherenceLayouts, channels, name_line
from .lost_lines import LostLines

__all__ = ["CoherentHostPort"]


class CoherentHostPort(wiring.Component):
    """`CoherentFront` and `LostLines`, with what the endpoint knows of each session: whether it is
    usable, and whether one of its queues rounds what is written.

    A session's formats are known from its queues' configuration, since it was last closed. So a
    session counts as rounding that has one queue that does.

    Latency: `LATENCY` cycles from `m2s_req` to `inner_req`, `WRITE_LATENCY` from `m2s_rwd` to
    `inner_rwd`, `ANSWER_LATENCY` from the inner answers. One Req or RwD in each cycle (`INTERVAL`).
    Errors: events; a memory beyond repair is fatal.

    Parameters
    ----------
    config : Config

    Members
    -------
    m2s_req, m2s_rwd, m2s_birsp : in, streams of messages
    s2m_drs, s2m_ndr, s2m_bisnp : out, streams of messages
    inner_req, inner_rwd : out, inner_drs, inner_ndr : in, streams of messages
        As in `CoherentFront`.
    i_ask : in, stream of sectors; o_answer : out, always-ready stream
        As in `CoherentFront`.
    sessions : in, array of session
    config_write : in, always-ready stream of config_write
    now, bi, fatal : in
        As in `CoherentFront`.
    enable : in
        Low: no message of the host is accepted.
    o_event : out, array of always-ready streams of event
        SNOOP_LOST, BIRSP_UNASKED, COPY_UNGRANTED: a source each, for they may come in one cycle.
        The first and the last name a line; `argument` is the line in its page.
    ready, idle : out
        The directory is empty; nothing is under way.
    fault : out, BlockFault
    """

    LATENCY = CoherentFront.LATENCY
    WRITE_LATENCY = CoherentFront.WRITE_LATENCY
    ANSWER_LATENCY = CoherentFront.ANSWER_LATENCY
    INTERVAL = 1
    EVENTS = 3

    def __init__(self, *, config: Config):
        self.config = config
        layouts, sizes = Layouts(config), sizes_of(config)
        super().__init__(
            {
                **channels(),
                "m2s_birsp": In(stream.Signature(MESSAGES["M2SBIRsp"])),
                "i_ask": In(stream.Signature(sizes.sector_address_bits(config))),
                "o_answer": Out(stream.Signature(1, always_ready=True)),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "config_write": In(stream.Signature(layouts.config_write, always_ready=True)),
                "now": In(TIME_BITS),
                "bi": In(CoherenceLayouts(config, sizes).bi),
                "fatal": In(1),
                "enable": In(1),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)).array(
                    self.EVENTS
                ),
                "ready": Out(1),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

        #: Sessions that round, which tests look at.
        self.rounding = Signal(config.sessions)

    def elaborate(self, platform):
        m = Module()
        m.submodules.front = front = CoherentFront(config=self.config, sizes=sizes_of(self.config))
        m.submodules.lost = lost = LostLines(config=self.config)
        for name in ("s2m_drs", "s2m_ndr", "s2m_bisnp", "inner_req"):
            connect(m, getattr(front, name), flipped(getattr(self, name)))
        connect(m, flipped(self.inner_drs), front.inner_drs)
        connect(m, flipped(self.inner_ndr), lost.i_ndr)
        connect(m, lost.o_ndr, front.inner_ndr)
        connect(m, front.o_lost, lost.i)
        connect(m, flipped(self.i_ask), front.i_ask)
        connect(m, front.o_answer, flipped(self.o_answer))
        for port, inner in ((self.m2s_req, front.m2s_req), (self.m2s_rwd, front.m2s_rwd)):
            m.d.comb += [
                inner.valid.eq(port.valid & self.enable),
                inner.p.eq(port.p),
                port.ready.eq(inner.ready & self.enable),
            ]
        m.d.comb += [
            front.m2s_birsp.valid.eq(self.m2s_birsp.valid),
            front.m2s_birsp.p.eq(self.m2s_birsp.p),
            self.m2s_birsp.ready.eq(1),
            front.now.eq(self.now),
            front.bi.eq(self.bi),
            front.fatal.eq(self.fatal),
            *(lost.owners[k].eq(self.sessions[k].ld_id) for k in range(self.config.sessions)),
            self.ready.eq(front.ready),
            self.idle.eq(front.idle & lost.idle),
            self.fault.eq(front.fault),
        ]
        self._writes(m, front, lost)
        self._sessions(m, front)
        self._events(m, front, lost)
        return m

    def _writes(self, m, front, lost):
        """Poison of a lost line goes first. Once offered, a write stays."""
        turn, stays = Signal(), Signal()
        m.d.comb += turn.eq(lost.o_rwd.valid & ~stays)
        m.d.sync += stays.eq(self.inner_rwd.valid & ~self.inner_rwd.ready & ~turn)
        m.d.comb += [
            self.inner_rwd.valid.eq(Mux(turn, lost.o_rwd.valid, front.inner_rwd.valid)),
            self.inner_rwd.p.eq(Mux(turn, lost.o_rwd.p.as_value(), front.inner_rwd.p.as_value())),
            lost.o_rwd.ready.eq(self.inner_rwd.ready & turn),
            front.inner_rwd.ready.eq(self.inner_rwd.ready & ~turn),
        ]

    def _sessions(self, m, front):
        """Grants are given to usable sessions' owners alone."""
        c, write = self.config, self.config_write.p
        queue = write.queue_config
        raw = (queue.format_k == Format.RAW16) & (queue.format_v == Format.RAW16)
        for k, session in enumerate(self.sessions):
            rounds, fresh = Signal(name=f"rounds_{k}"), Signal(name=f"fresh_{k}", init=1)
            was_open = Signal(name=f"was_open_{k}")
            mine = write.squeue < (k + 1) * c.queues
            if k:
                mine &= write.squeue >= k * c.queues
            m.d.sync += was_open.eq(session.open)
            with m.If(was_open & ~session.open):
                m.d.sync += fresh.eq(1)
            with m.If(self.config_write.valid & mine):
                m.d.sync += [fresh.eq(0), rounds.eq((rounds & ~fresh) | ~raw)]
            m.d.comb += [
                front.sessions.open[k].eq(session.open & ~session.closing),
                front.sessions.owners[k].eq(session.ld_id),
                self.rounding[k].eq(rounds),
            ]
        m.d.comb += front.sessions.rounds.eq(self.rounding)

    def _events(self, m, front, lost):
        lines, unasked, ungranted = self.o_event
        # The write that keeps the copy is what the directory has decided in this cycle.
        op, layouts = front.commit.p.op, CoherenceLayouts(self.config, sizes_of(self.config))
        place = data.View(layouts.place, Cat(op.line, op.sector))
        owners = Array(session.ld_id for session in self.sessions)
        connect(m, lost.o_event, flipped(lines))
        m.d.comb += [
            unasked.valid.eq(front.pulses.unasked),
            unasked.p.code.eq(Event.BIRSP_UNASKED),
            ungranted.valid.eq(front.pulses.ungranted),
            ungranted.p.code.eq(Event.COPY_UNGRANTED),
            *name_line(ungranted.p, place, owners, self.config),
        ]
