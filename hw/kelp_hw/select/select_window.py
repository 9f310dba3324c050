# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The SELECT region: queries and doorbells in, answers out (docs/select.md). One access in 3
cycles."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS
from kelp_spec.metadata import Event
from kelp_spec.select import BELL_FIELDS, SelectMap

from ..layouts import Layouts
from ..lib.protected import BlockFault, ProtectedMemory, gather, used

__all__ = ["SelectWindow", "bell_layout"]


def bell_layout(config: Config) -> data.StructLayout:
    """A doorbell, as far as the configuration looks at it, and whether it was written in part, or
    poisoned."""
    fields = dict(BELL_FIELDS)
    if not config.select_estimates:
        del fields["wait_above"], fields["patience"], fields["fetch_from"]
    return data.StructLayout(fields | {"broken": 1})


class SelectWindow(wiring.Component):
    """Keeps the lines of the region. A query is stored, a doorbell makes its block `pending`, and
    an answer is read, by the session's owner alone: what anyone else writes, or in a session that
    is not open, changes nothing, what he reads is zeros, and either is an event. A query that is
    written in part, or poisoned, has a NaN; such a doorbell is `broken`. A doorbell that comes
    before the one before it was taken takes its place. What a session that ended wrote is zeros:
    until it is, no access is taken.

    Latency: an access is answered after `LATENCY` cycle, one in `INTERVAL` cycles; what is read
    or taken for the choice is there in the next cycle. A session's end and a reset take a cycle for
    each of its, or of all, queries' lines. Errors: a line that could not be corrected is a NaN, a
    `broken` doorbell, or zeros.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, stream of register_access
    o : out, stream of window_answer
        Comes while its access stands at `i`.
    sessions : in
    forget : in
        Bit s: what session s wrote and was answered is no more.
    block : in
        Whose rows are meant: `session | group`.
    i_look : in, always-ready stream
        Which line of the block's queries is to be at `query` from the next cycle on.
    query, query_used : out, in
        It stays as it was read, whatever is written; and that it is used in this cycle.
    bell, broken : out
        The doorbell that was taken last, and whether it is no good.
    pending, rung : out
        A bit for each block; in the cycle in which a doorbell comes, in which it becomes pending.
    take : in
        The block's doorbell is taken.
    again : in
        The doorbell of `answer_block` becomes pending, as if it came once more.
    answer_en, answer_block, answer_line, answer : in
        A line of a block's answer; line 0 is the last of them, and makes the answer known.
    o_event : out, always-ready stream of event
    idle : out
    fault : out, BlockFault
    """

    LATENCY = 1
    INTERVAL = 3
    CLEARS = ("queries.rows",)  #: memories in it that are written whole before it is ready

    def __init__(self, *, config: Config):
        self.config = c = config
        self.map, self.bell_layout = SelectMap(c), bell_layout(c)
        layouts = self.layouts = Layouts(c)
        self.block_bits = c.session_bits + self.map.group_bits
        self.blocks = c.sessions << self.map.group_bits
        super().__init__(
            {
                "i": In(stream.Signature(layouts.register_access)),
                "o": Out(stream.Signature(layouts.window_answer)),
                "sessions": In(data.ArrayLayout(layouts.session, c.sessions)),
                "forget": In(c.sessions),
                "block": In(self.block_bits),
                "i_look": In(stream.Signature(range(self.map.query_lines), always_ready=True)),
                "query": Out(LINE_BITS),
                "query_used": In(1),
                "bell": Out(self.bell_layout),
                "broken": Out(1),
                "pending": Out(self.blocks),
                "rung": Out(self.blocks),
                "take": In(1),
                "again": In(1),
                "answer_en": In(1),
                "answer_block": In(self.block_bits),
                "answer_line": In(range(self.map.answer_lines)),
                "answer": In(LINE_BITS),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, half = self.config, self.map.half_bits

        def memory(depth, shape, block=True):
            return ProtectedMemory(depth=depth, shape=shape, protect=c.protect, block=block)

        m.submodules.queries = queries = memory(self.blocks << half, LINE_BITS)
        m.submodules.bells = bells = memory(self.blocks, self.bell_layout, block=False)
        m.submodules.answers = answers = memory(self.blocks << half, LINE_BITS)
        side = self.i.p
        place = data.StructLayout({"line": half, "upper": 1, "block": self.block_bits})
        at = place(side.offset[: place.size])
        session = at.block >> self.map.group_bits
        owned, closed = Signal(), Signal(init=1)
        for s in range(c.sessions):
            with m.If(session == s):
                one = self.sessions[s]
                m.d.comb += [
                    closed.eq(~one.open | one.closing),
                    owned.eq(one.open & ~one.closing & (one.ld_id == side.ld_id)),
                    self.o_event.p.squeue.eq(s * c.queues),
                ]
        whole = side.byte_enable.all() & ~side.poison
        known = Signal(self.blocks)  # blocks with an answer
        shows = Signal()

        wipes, wiped_row, stalls = self._wipes(m)

        # - the rows -------------------------------------------------------------------------------
        accepts = Signal()
        writes = accepts & side.write & owned
        rings = writes & at.upper & (at.line == 0)
        m.d.comb += [
            queries.write_en.eq(wipes | (writes & ~at.upper)),
            queries.write_address.eq(Mux(wipes, wiped_row, Cat(at.line, at.block))),
            queries.write_data.eq(Mux(wipes, 0, Mux(whole, side.data, ~0))),
            queries.read_en.eq(self.i_look.valid),
            queries.read_address.eq((self.block << half) | self.i_look.p),
            self.query.eq(Mux(queries.fault.uncorrected, ~0, queries.read_data)),
            bells.write_en.eq(rings),
            bells.write_address.eq(at.block),
            bells.write_data.eq(Cat(side.data[: self.bell_layout.size - 1], ~whole)),
            bells.read_en.eq(self.take),
            bells.read_address.eq(self.block),
            self.bell.eq(bells.read_data),
            self.broken.eq(self.bell.broken | bells.fault.uncorrected),
            answers.write_en.eq(self.answer_en),
            answers.write_address.eq((self.answer_block << half) | self.answer_line),
            answers.write_data.eq(self.answer),
            answers.read_en.eq(accepts),
            answers.read_address.eq(Cat(at.line, at.block)),
        ]
        with m.If(rings):
            m.d.comb += self.rung.bit_select(at.block, 1).eq(1)
            m.d.sync += self.pending.bit_select(at.block, 1).eq(1)
        # A doorbell that comes in this very cycle is the one that is taken.
        with m.If(self.take):
            m.d.sync += self.pending.bit_select(self.block, 1).eq(0)
        with m.If(self.again):
            m.d.sync += self.pending.bit_select(self.answer_block, 1).eq(1)
        with m.If(self.answer_en & (self.answer_line == 0)):
            m.d.sync += known.bit_select(self.answer_block, 1).eq(1)
        for s in range(c.sessions):
            with m.If(self.forget[s]):
                blocks = slice(s << self.map.group_bits, (s + 1) << self.map.group_bits)
                m.d.sync += [self.pending[blocks].eq(0), known[blocks].eq(0)]

        # - an access ------------------------------------------------------------------------------
        m.d.comb += [
            self.o.p.write.eq(side.write),
            self.o.p.tag.eq(side.tag),
            self.o.p.ld_id.eq(side.ld_id),
            self.o.p.data.eq(Mux(shows & ~answers.fault.uncorrected, answers.read_data, 0)),
            self.o_event.p.code.eq(Mux(closed, Event.CLOSED_SESSION, Event.FOREIGN_LD)),
            self.o_event.p.ld_id.eq(side.ld_id),
            self.o_event.valid.eq(accepts & ~owned),
        ]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += accepts.eq(self.i.valid & ~stalls)
                m.d.sync += shows.eq(
                    owned
                    & at.upper
                    & ~side.write
                    & (at.line < self.map.answer_lines)
                    & known.bit_select(at.block, 1)
                )
                with m.If(accepts):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.i.ready.eq(1)
                m.next = "IDLE"
        m.d.comb += self.idle.eq(fsm.ongoing("IDLE") & ~self.i.valid & ~stalls)
        self._faults(m, queries, bells, used(answers.fault, shows & self.o.valid & self.o.ready))
        return m

    def _faults(self, m, queries, bells, answered):
        """Words beyond correction that were used."""
        was_taken = Signal()
        m.d.sync += was_taken.eq(self.take)
        asked = used(queries.fault, self.query_used), used(bells.fault, was_taken)
        gather(m, self.fault, poisoned=(*asked, answered))

    def _wipes(self, m):
        """(a row of the queries is wiped in this cycle, which one, no access is taken): those of
        sessions that ended, one after another."""
        ended, wipes, wiped = (
            Signal(self.config.sessions, init=~0),
            Signal(),
            Signal(self.config.session_bits),
        )
        row = Signal(self.map.group_bits + self.map.half_bits)
        m.d.sync += ended.eq(ended | self.forget)
        with m.If(wipes):
            m.d.sync += row.eq(row + 1)
            with m.If(row == ~Const(0, len(row))):
                m.d.sync += wipes.eq(0)
        with m.Else():
            for s in reversed(range(self.config.sessions)):
                with m.If(ended[s]):
                    m.d.sync += [
                        wipes.eq(1),
                        wiped.eq(s),
                        ended.eq((ended & ~(1 << s)) | self.forget),
                    ]
        return wipes, Cat(row, wiped), wipes | ended.any()
