# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The coherent front: stands between the host's six channels and a device that knows nothing of
caches (docs/coherence.md). One Req or RwD a cycle; a Req reaches the inner device after 5 cycles, a
RwD after 1 cycle."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.address import Region
from kelp_spec.coherence import (
    Coherence,
    DirectoryOp,
    DirectoryOutcome,
    MetaField,
    MetaValue,
    SnpType,
)
from kelp_spec.config import Config
from kelp_spec.messages import S2MNDR, M2SReq, M2SRwD

from ..layouts import MESSAGES, TIME_BITS
from ..lib.order_fifo import OrderFifo
from ..lib.protected import BlockFault, gather, gather_blocks
from ..lib.skid import Skid
from .completions import Completions
from .directory import Directory
from .grants import Grants
from .layouts import CoherenceLayouts, channels
from .request_window import RequestWindow
from .snoop_engine import SnoopEngine

__all__ = ["CoherentFront"]


class CoherentFront(wiring.Component):
    """Keeps the directory of what the host may hold and calls it back: HDM-DB in front, HDM-H
    behind.

    Only Req waits: in a window, from whose head on requests are tried again when a recall stands in
    their way. RwD and BIRsp pass it. BIConflict is answered here. Of the KV aperture MemRd, MemInv
    and MemClnEvct come to what docs/coherence.md says; everything else is handed on as it is. A
    gathered read goes when each RwD that was taken before it has left `inner_rwd`.

    Latency: `LATENCY` cycles from `m2s_req` to `inner_req`, `WRITE_LATENCY` from `m2s_rwd` to
    `inner_rwd`, `ANSWER_LATENCY` from `inner_drs` to `s2m_drs`. One Req or RwD in each cycle
    (`INTERVAL`), RwD first; the end of a recall and each sector that is asked for take a cycle.
    A sector that is asked for is answered `ASK_LATENCY` cycles later, the next ones two cycles
    later each.
    Errors: `pulses` and `o_lost`; a memory beyond repair is fatal.

    Parameters
    ----------
    config : Config
    sizes : Coherence

    Members
    -------
    m2s_req, m2s_rwd : in, streams of messages
    m2s_birsp : in, always-ready stream of messages
    s2m_drs, s2m_ndr, s2m_bisnp : out, streams of messages
    inner_req, inner_rwd : out, streams of messages
        To the inner device, which answers each access once and lets none overtake another of its
        line. A read's tag is a number of the front's; a write's is the host's. A read for ownership
        has MetaValue Any, every other one MetaField No-Op.
    inner_drs, inner_ndr : in, streams of messages
    i_ask : in, stream of sectors
        That are to be held by nobody.
    o_answer : out, always-ready stream
        Whether something of it is held, in order. If it is, its recall is under way or waits for a
        place: ask again. If not, what was dirty has come home. The host may ask for it anew at
        any time.
    o_lost : out, stream
        A line that the host did not give back, to be poisoned. Its recall waits until it is taken.
    sessions : in
        Of each session, whether it is open (grants are given), whether its formats round, and its
        owner's LD-ID: what another asks of its lines is handed on, and changes nothing of what the
        host holds.
    now, bi : in
        Time; how long a BISnp may be unanswered, whose it is, and whether it may be of a Blk form.
    fatal : in
        A fatal error has been told: requests wait for no recall, and nothing is granted.
    ready : out
        The directory is empty: no Req and no RwD is accepted before.
    pulses : out
        A BIRsp was unasked; a MemWr keeps a copy that was not granted.
    idle : out
        No request, answer or recall is here.
    commit : out, always-ready stream of result
        For verification: each op of the directory, in order, with what it came to.
    fault : out, BlockFault
    """

    LATENCY = 5
    WRITE_LATENCY = 1
    ANSWER_LATENCY = 1
    ASK_LATENCY = 3
    INTERVAL = 1

    #: Requests that may be under way when a place is looked for, and one more.
    RESERVE = 4
    PLACES = 16

    def __init__(self, *, config: Config, sizes: Coherence):
        self.config, self.sizes = config, sizes
        self.layouts = layouts = CoherenceLayouts(config, sizes)
        super().__init__(
            {
                **channels(),
                "m2s_birsp": In(stream.Signature(MESSAGES["M2SBIRsp"], always_ready=True)),
                "i_ask": In(stream.Signature(layouts.sector_bits)),
                "o_answer": Out(stream.Signature(1, always_ready=True)),
                "o_lost": Out(stream.Signature(layouts.lost)),
                "sessions": In(layouts.sessions),
                "now": In(TIME_BITS),
                "bi": In(layouts.bi),
                "fatal": In(1),
                "ready": Out(1),
                "pulses": Out(layouts.pulses),
                "idle": Out(1),
                "commit": Out(stream.Signature(layouts.result, always_ready=True)),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        parts = {"config": self.config, "sizes": self.sizes}
        m.submodules.directory = directory = Directory(**parts)
        m.submodules.recalls = recalls = SnoopEngine(**parts)
        m.submodules.grants = grants = Grants(**parts)
        m.submodules.window = window = RequestWindow(**parts)
        m.submodules.asks = asks = Skid(self.layouts.sector_bits)
        m.submodules.completions = completions = Completions(config=self.config)
        m.submodules.out = out = OrderFifo(
            width=MESSAGES["M2SReq"].size, depth=self.PLACES, protect=self.config.protect
        )
        m.submodules.writes = writes = Skid(MESSAGES["M2SRwD"], registered=())
        b = SimpleNamespace(
            directory=directory,
            recalls=recalls,
            grants=grants,
            window=window,
            asks=asks,
            completions=completions,
            out=out,
            writes=writes,
        )
        self._channels(m, b)
        evicts = self._onwards(m, b)
        self._choose(m, b, evicts)
        fifos = Signal(BlockFault)
        gather(m, fifos, out.fault)
        blocks = (directory, grants, window, completions)
        gather_blocks(m, self.fault, *(block.fault for block in blocks), fifos)
        return m

    def _channels(self, m, b):
        """What passes between ports and blocks as it is."""
        result, looked_up = b.directory.o, Signal()
        # An op that the directory has looked up and not decided yet: the block that it came from
        # may have nothing else.
        m.d.sync += looked_up.eq(b.directory.i.valid)
        connect(m, flipped(self.m2s_req), b.window.m2s_req)
        connect(m, flipped(self.inner_drs), b.grants.i_drs)
        connect(m, b.grants.o_drs, flipped(self.s2m_drs))
        connect(m, b.grants.o_ndr, b.completions.i_grant)
        connect(m, flipped(self.inner_ndr), b.completions.i_inner)
        connect(m, b.completions.s2m_ndr, flipped(self.s2m_ndr))
        connect(m, b.recalls.s2m_bisnp, flipped(self.s2m_bisnp))
        connect(m, b.recalls.o_lost, flipped(self.o_lost))
        connect(m, flipped(self.i_ask), b.asks.i)
        connect(m, b.writes.o, flipped(self.inner_rwd))
        m.d.comb += [
            b.recalls.m2s_birsp.valid.eq(self.m2s_birsp.valid),
            b.recalls.m2s_birsp.p.eq(self.m2s_birsp.p),
            self.o_answer.valid.eq(result.valid & (result.p.op.kind == DirectoryOp.ASK)),
            self.o_answer.p.eq(result.p.outcome != DirectoryOutcome.DONE),
            b.window.i_result.valid.eq(result.valid),
            b.window.i_result.p.eq(result.p),
            self.idle.eq(
                b.window.idle
                & b.grants.idle
                & b.recalls.idle
                & b.completions.idle
                & b.asks.idle
                & b.writes.idle
                & (b.out.level == 0)
                & ~self.m2s_rwd.valid
                & ~looked_up
                & ~result.valid
            ),
            self.inner_req.valid.eq(b.out.o.valid),
            self.inner_req.p.eq(b.out.o.p),
            b.out.o.ready.eq(self.inner_req.ready),
            self.ready.eq(b.directory.ready),
            b.window.enable.eq(b.directory.ready),
            b.directory.free.eq(b.recalls.free),
            b.directory.fatal.eq(self.fatal),
            b.grants.i_look.eq(b.directory.o_look),
            b.directory.i_under_way.eq(b.grants.o_under_way),
            b.recalls.now.eq(self.now),
            b.recalls.timeout.eq(self.bi.timeout),
            b.recalls.bi_id.eq(self.bi.id),
            b.recalls.blocks.eq(self.bi.blocks),
            self.pulses.unasked.eq(b.recalls.unasked),
            self.pulses.ungranted.eq(result.valid & result.p.ungranted),
            self.commit.valid.eq(result.valid & ~result.p.dropped),
            self.commit.p.eq(result.p),
        ]

    def _choose(self, m, b, evicts):
        """D0: the end of a recall goes first, then a sector that is asked for, a RwD, a Req; but a
        Req that a RwD went before goes before the next one, so that RwD in every cycle keep none
        out. A RwD waits one cycle for it, for it goes in that cycle; for a gathered read until the
        RwD before it are in the inner device, which it waits for anyway. `evicts`: the completion
        of a MemClnEvct has the front's own queue in this cycle."""
        rwd, level = self.m2s_rwd, b.completions.level
        finish, op = b.recalls.o_finish, b.directory.i
        req_op, rwd_op = self._op(m, b.window.message, False), self._op(m, rwd.p, True)
        may, goes, conflict, asks, asked = Signal(), Signal(), Signal(), Signal(), Signal()
        req_could, req_can, passed, roomy = Signal(), Signal(), Signal(), Signal()
        m.d.sync += asked.eq(asks)
        m.d.comb += [
            finish.ready.eq(self.ready),
            # One sector in two cycles, so that others find a place between.
            asks.eq(b.asks.o.valid & ~asked & self.ready & ~finish.valid),
            b.asks.o.ready.eq(asks),
            may.eq(self.ready & ~finish.valid & ~asks),
            # Places in the front's own queue of completions. A BIConflict asks for as many as a
            # Req does: with fewer it would fill the queue up again before any Req could go.
            roomy.eq(level <= Completions.DEPTH - 2 * self.RESERVE),
            # A RwD needs a place in NDR, or one on its way to the inner device, and no Req.
            conflict.eq(rwd.p.opcode == M2SRwD.BI_CONFLICT),
            goes.eq(
                rwd.valid
                & may
                & ~(passed & req_could)
                & Mux(
                    conflict,
                    ~evicts & roomy,
                    b.writes.i.ready,
                )
            ),
            rwd.ready.eq(goes),
            b.writes.i.valid.eq(goes & ~conflict),
            b.writes.i.p.eq(rwd.p),
            req_could.eq(
                b.window.waits & b.grants.room & (b.out.level <= self.PLACES - self.RESERVE) & roomy
            ),
            # What a gathered read finds may be of a RwD that was taken before it, and the host does
            # not know that the two are of one line: that RwD is in the inner device first.
            req_can.eq(req_could & ~(req_op.gathers & b.writes.o.valid))
            if self.config.select
            else req_can.eq(req_could),
            b.window.take.eq(req_can & may & ~goes),
        ]
        m.d.sync += passed.eq((passed | (goes & req_could)) & ~b.window.take)
        with m.If(evicts):
            m.d.comb += b.completions.i_own.valid.eq(1)
        with m.Else():
            # A BIConflict carries the BI-Tag of its BISnp where others have their tag.
            m.d.comb += [
                b.completions.i_own.valid.eq(goes & conflict),
                b.completions.i_own.p.tag.eq(rwd.p.tag),
                b.completions.i_own.p.ld_id.eq(rwd.p.ld_id),
                b.completions.i_own.p.ack.eq(1),
            ]
        with m.If(finish.valid):
            m.d.comb += [op.p.eq(finish.p), op.valid.eq(self.ready)]
        with m.Elif(asks):
            m.d.comb += [
                op.p.kind.eq(DirectoryOp.ASK),
                op.p.sector.eq(b.asks.o.p),
                op.valid.eq(1),
            ]
        with m.Elif(goes):
            m.d.comb += [op.p.eq(rwd_op), op.valid.eq(rwd_op.tracked)]
        with m.Else():
            m.d.comb += [op.p.eq(req_op), op.p.epoch.eq(b.window.epoch)]
            m.d.comb += op.valid.eq(b.window.take)

    def _onwards(self, m, b):
        """D2: a recall begins; a request that is done goes on its way. Returns whether it is a
        MemClnEvct, which ends here."""
        result = b.directory.o.p
        m.d.comb += [
            b.recalls.i.valid.eq(
                b.directory.o.valid
                & ~result.dropped
                & (
                    (result.outcome == DirectoryOutcome.RECALL)
                    | (result.outcome == DirectoryOutcome.DONE_RECALL)
                )
            ),
            b.recalls.i.p.sector.eq(result.recalled_sector),
            b.recalls.i.p.place.eq(result.recalled),
            b.recalls.i.p.lines.eq(result.lines),
        ]
        request = b.window.message
        for n in range(Directory.LATENCY):
            later = Signal(MESSAGES["M2SReq"], name=f"request_{n + 1}")
            m.d.sync += later.eq(request)
            request = later
        tracked, begun = result.op.tracked, b.grants.i.p
        reads, owns, evicts, onwards = Signal(), Signal(), Signal(), Signal(MESSAGES["M2SReq"])
        m.d.comb += [
            reads.eq((request.opcode == M2SReq.MEM_RD) | (request.opcode == M2SReq.MEM_RD_DATA)),
            owns.eq(
                tracked
                & ((request.opcode == M2SReq.MEM_INV) | (request.opcode == M2SReq.MEM_INV_NT))
            ),
            evicts.eq(b.window.ends & tracked & (request.opcode == M2SReq.MEM_CLN_EVCT)),
            b.grants.i.valid.eq(b.window.ends & (reads | owns)),
            begun.grants.tag.eq(request.tag),
            begun.grants.ld_id.eq(request.ld_id),
            begun.grants.data.eq(reads),
            begun.grants.ndr.eq(Mux(tracked, result.ndr, S2MNDR.CMP)),
            # By the message alone: a host knows what to wait for, whatever the session is.
            begun.grants.has_ndr.eq(~reads | (request.snp_type != SnpType.NO_OP)),
            begun.place.eq(result.place),
            begun.counts.eq(tracked & result.op.holds),
            onwards.eq(request),
            b.out.i.valid.eq(b.window.ends & ~evicts),
            b.out.i.p.eq(onwards),
            b.completions.i_own.p.tag.eq(request.tag),
            b.completions.i_own.p.ld_id.eq(request.ld_id),
            Assert(~b.out.i.valid | b.out.i.ready, "a request without a place"),
        ]
        # The inner device reads; what for is the front's business.
        for_ownership = tracked & result.op.holds & ~result.op.shared
        with m.If(reads | owns):
            m.d.comb += [
                onwards.opcode.eq(M2SReq.MEM_RD),
                onwards.snp_type.eq(SnpType.NO_OP),
                # for ownership: the page is to have a frame
                onwards.meta_field.eq(Mux(for_ownership, MetaField.META0, MetaField.NO_OP)),
                onwards.meta_value.eq(Mux(for_ownership, MetaValue.ANY, 0)),
                onwards.tag.eq(b.grants.o_number),
            ]
        return evicts

    def _op(self, m, message, is_write):
        """The op that a message of the host comes to."""
        c, layouts = self.config, self.layouts
        op = Signal(layouts.op, name="rwd_op" if is_write else "req_op")
        line_bits = c.aperture_bits - 6
        line, above = message.address[:line_bits], message.address[line_bits:]
        session = line[line_bits - c.session_bits :]
        queue = line[: line_bits - c.session_bits][-c.queue_bits :]
        # The inner device refuses what a stranger asks, so the directory must not hear of it: his
        # write would make it forget what the owner holds, and his reads take the owner's places.
        owner = self.sessions.owners[session] if c.sessions > 1 else self.sessions.owners[0]
        in_map = Signal(name="rwd_in_map" if is_write else "req_in_map")
        in_kv, is_open, value = Signal(), Signal(), message.meta_value
        m.d.comb += [
            in_map.eq((session < c.sessions) & (queue < c.queues) & (message.ld_id == owner)),
            in_kv.eq(~above.any() & in_map),
            is_open.eq(self.sessions.open.bit_select(session, 1)),
            op.sector.eq(line[self.sizes.sector_bits :]),
            op.line.eq(line[: self.sizes.sector_bits]),
            op.rounds.eq(self.sessions.rounds.bit_select(session, 1)),
        ]
        meta0 = message.meta_field == MetaField.META0
        keeps = (value == MetaValue.ANY) | (value == MetaValue.SHARED)
        # A write whose MetaValue is none of the three says nothing of what the host keeps.
        if is_write:
            m.d.comb += [
                op.kind.eq(DirectoryOp.WRITE),
                op.tracked.eq(
                    in_kv
                    & ((message.opcode == M2SRwD.MEM_WR) | (message.opcode == M2SRwD.MEM_WR_PTL))
                ),
                op.holds.eq(meta0 & keeps),
                op.shared.eq(meta0 & (value == MetaValue.SHARED)),
                op.evicts.eq(meta0 & (value == MetaValue.INVALID)),
            ]
            return op
        m.d.comb += op.kind.eq(DirectoryOp.REQUEST)
        # A gathered line is read by its page's address, and nothing is granted of it: the host
        # holds lines by the addresses that it maps, and the window's are another line tomorrow.
        tracked, plain = in_kv, meta0 & (message.snp_type != SnpType.NO_OP)
        if c.select:
            gathers = in_map & (above == Region.GATHER)
            tracked, plain = in_kv | gathers, plain & ~gathers
        with m.Switch(message.opcode):
            with m.Case(M2SReq.MEM_RD, M2SReq.MEM_RD_DATA):
                m.d.comb += [
                    op.tracked.eq(tracked & is_open),
                    op.holds.eq(plain & (value != MetaValue.INVALID)),
                    op.shared.eq(value == MetaValue.SHARED),
                    op.evicts.eq(plain & (value == MetaValue.INVALID)),
                ]
                if c.select:
                    m.d.comb += op.gathers.eq(gathers)
            with m.Case(M2SReq.MEM_INV, M2SReq.MEM_INV_NT):
                m.d.comb += [
                    op.tracked.eq(in_kv & is_open),
                    op.holds.eq(value != MetaValue.INVALID),
                    op.evicts.eq(value == MetaValue.INVALID),
                ]
            with m.Case(M2SReq.MEM_CLN_EVCT):
                m.d.comb += [op.tracked.eq(in_kv), op.evicts.eq(1)]
        return op
