# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Keys of pages as a choice sees them: lines looked at through the tracker and the data path, then
as int8 would store them (docs/select.md, "Block form"). With 32 codec lanes one line a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, LINE_BITS, Format
from kelp_spec.metadata import Answer, Op, Outcome
from kelp_spec.select import CODED_LINES

from ..choice.signatures import give
from ..codec.quantise import Quantiser
from ..layouts import Layouts
from ..lib.protected import BlockFault, ProtectedFifo, gather, used

__all__ = ["PageReader"]


class PageReader(wiring.Component):
    """Sends a LOOK for each line of the tokens it is asked for of K halves, and gives the lines in
    that order; those of one choice may be asked for while lines of the one before are on their way.
    A line of a page that is not resident when its LOOK is decided has a NaN, as has a poisoned one.
    Lines of a query it brings into the same form, before lines of keys that wait.

    Latency: a LOOK a cycle after its page was taken, a line's way through M0, memory and the data
    path, and `LATENCY` cycles more. One line in `INTERVAL` cycles, those of the quantiser, while
    `config.select_looks` lines cover that way and hits leave the cycles: with 32 codec lanes 12 and
    1. Errors: a line beyond correction has a NaN;
    where what is known of it cannot be corrected, which line comes next is not known, and that is
    fatal.

    Parameters
    ----------
    config : Config

    Members
    -------
    session, squeue, host_type, token_lines, bank : in
        Of the page at `i`; `token_lines` is one less than the lines of a token, and `bank` comes
        back with them.
    query_host_type : in
        Of `i_query`.
    i : in, stream
        A page, how many of its lines count, 1 and up, and `near`: bit by bit of the lines, whether
        the token that ends there is looked at; where none is, all are.
    i_query : in, stream
        A host line of a query.
    o_op : out, stream of op
        LOOKs.
    i_result : in, always-ready stream of result
        What M3 decided, of every op.
    i_line : in, stream of answer
        The data path's answers to LOOKs; always taken.
    o : out, stream
        A line of a page: payload and scale of int8, its place in the token, whether it ends token
        or page, its `bank`, and whether its page was `there`.
    o_query : out, stream
        A line of a query, the same.
    idle : out
        No line is inside.
    fault : out, BlockFault
    """

    def __init__(self, *, config: Config):
        self.config = c = config
        layouts = Layouts(c)
        self.at = data.StructLayout(
            {
                "page": c.page_bits,
                "line": range(c.select_lines),
                "token_end": 1,
                "page_end": 1,
                "bank": 1,
            }
        )
        self.asked = data.StructLayout({"at": self.at, "host_type": 1})
        self.place = data.StructLayout(
            {"head": range(c.select_heads), "line": range(c.select_lines)}
        )
        carried = data.StructLayout({"query": 1, "place": self.place, "at": self.at, "there": 1})
        self._quantiser = Quantiser(meta_shape=carried, lanes=c.codec_lanes, only=Format.INT8)
        stored = {"payload": 8 * ELEMENTS, "scale": 16}
        super().__init__(
            {
                "session": In(c.session_bits),
                "squeue": In(c.squeue_bits),
                "host_type": In(1),
                "query_host_type": In(1),
                "token_lines": In(range(c.select_lines)),
                "bank": In(1),
                "i": In(
                    stream.Signature(
                        data.StructLayout(
                            {"page": c.page_bits, "count": c.half_line_bits + 1}
                            | {"near": c.select_rows * CODED_LINES}
                        )
                    )
                ),
                "i_query": In(
                    stream.Signature(data.StructLayout({"data": LINE_BITS, "place": self.place}))
                ),
                "o_op": Out(stream.Signature(layouts.op)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_line": In(stream.Signature(layouts.answer)),
                "o": Out(
                    stream.Signature(data.StructLayout({**stored, "at": self.at, "there": 1}))
                ),
                "o_query": Out(
                    stream.Signature(data.StructLayout({**stored, "place": self.place}))
                ),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    @property
    def LATENCY(self) -> int:
        """Cycles from a line to its first cycle at `o`."""
        return 1 + self._quantiser.INTERVAL + self._quantiser.LATENCY

    @property
    def INTERVAL(self) -> int:
        """Cycles from one line to the next at full rate."""
        return self._quantiser.INTERVAL

    def elaborate(self, platform):
        m = Module()
        c = self.config
        depth = c.select_looks

        def queue(shape):
            return ProtectedFifo(shape=shape, depth=depth, protect=c.protect)

        m.submodules.asked, m.submodules.found = asked, found = queue(self.asked), queue(1)
        m.submodules.lines = lines = queue(LINE_BITS)
        m.submodules.quantiser = quantiser = self._quantiser

        # What is asked for: as many lines as there are places for.
        inside, issues, leaves = Signal(range(depth + 1)), Signal(), Signal()
        left, page = self._page(m, issues)
        line = Signal(range(len(left)))
        for k in reversed(range(len(left))):
            with m.If(left[k]):
                m.d.comb += line.eq(k)
        at, op = Signal(self.at), self.o_op.p
        waits = Signal()  # an op is offered, and stays
        m.d.comb += [
            at.page.eq(page.page),
            at.line.eq(line & page.token_lines),
            at.token_end.eq(at.line == page.token_lines),
            at.page_end.eq((left & (left - 1)) == 0),
            at.bank.eq(page.bank),
            self.o_op.valid.eq(left.any() & (waits | (inside != depth))),
            op.kind.eq(Op.LOOK),
            op.session.eq(page.session),
            op.squeue.eq(page.squeue),
            op.page.eq(page.page),
            op.kv_line.eq(line),
            op.origin.look.eq(1),
            issues.eq(self.o_op.valid & self.o_op.ready),
            asked.w_data.at.eq(at),
            asked.w_data.host_type.eq(page.host_type),
            asked.w_en.eq(issues),
        ]
        m.d.sync += [
            waits.eq(self.o_op.valid & ~self.o_op.ready),
            inside.eq(inside + issues - leaves),
            Assert(~issues | asked.w_rdy, "more lines are asked for than there are places"),
        ]

        # What comes back: M3's word first, in order; then, if it was there, the line.
        result, answer = self.i_result, self.i_line.p
        looked = result.valid & (result.p.op.kind == Op.LOOK)
        m.d.comb += [
            found.w_en.eq(looked),
            found.w_data.eq(result.p.outcome == Outcome.DONE),
            lines.w_en.eq(self.i_line.valid),
            lines.w_data.eq(Mux(answer.poison | (answer.answer == Answer.POISON), ~0, answer.data)),
            self.i_line.ready.eq(1),
        ]
        m.d.sync += Assert(~self.i_line.valid | lines.w_rdy, "a line that nobody asked for")

        query = self.i_query
        ready = asked.r_rdy & found.r_rdy & (lines.r_rdy | ~found.r_data)
        into, meta = quantiser.i, quantiser.i.p.meta
        # What is offered stays until it is taken.
        asks, asked_before, stands = Signal(), Signal(), Signal()
        m.d.sync += [asked_before.eq(asks), stands.eq(into.valid & ~into.ready)]
        m.d.comb += [
            asks.eq(Mux(stands, asked_before, query.valid)),
            into.valid.eq(ready | query.valid),
            into.p.line.eq(
                Mux(
                    asks,
                    query.p.data,
                    Mux(found.r_data & ~lines.fault.uncorrected, lines.r_data, ~0),
                )
            ),
            into.p.host_type.eq(Mux(asks, self.query_host_type, asked.r_data.host_type)),
            into.p.format.eq(Format.INT8),
            meta.query.eq(asks),
            meta.place.eq(Mux(asks, query.p.place.as_value(), 0)),
            # Of a query nothing: a line that comes while it stands would change what is offered.
            meta.at.eq(Mux(asks, 0, asked.r_data.at.as_value())),
            meta.there.eq(found.r_data & ~asks),
            leaves.eq(ready & into.ready & ~asks),
            asked.r_en.eq(leaves),
            found.r_en.eq(leaves),
            lines.r_en.eq(leaves & found.r_data),
            query.ready.eq(into.ready & asks),
        ]

        given = stream.Signature(quantiser.o.p.shape()).create()
        give(m, given, quantiser.o.p, quantiser.o.valid, quantiser.o.ready)
        self._give(m, given)
        # Lines in the quantiser, and behind it, show at the output alone.
        passing = Signal(range(64))
        m.d.sync += passing.eq(passing + (into.valid & into.ready) - (given.valid & given.ready))
        m.d.comb += self.idle.eq(
            ~self.i.valid & ~left.any() & (inside == 0) & (passing == 0) & ~query.valid
        )
        gather(m, self.fault, asked.fault, found.fault, poisoned=(used(lines.fault, lines.r_en),))
        return m

    def _page(self, m, issues):
        """The page whose lines are asked for: those that are left, and whose it is."""
        c, near = self.config, self.i.p.near
        left, lines = Signal(len(near)), Signal(len(near))
        names = ("session", "squeue", "host_type", "token_lines", "bank")
        page = Signal(
            data.StructLayout(
                {"page": c.page_bits, "session": c.session_bits, "squeue": c.squeue_bits}
                | {"host_type": 1, "token_lines": range(c.select_lines), "bank": 1}
            )
        )
        # A token's last line says it for all of them.
        ends = Signal(len(near))
        with m.Switch(self.token_lines):
            for n in range((c.select_lines - 1).bit_length() + 1):
                with m.Case((1 << n) - 1):
                    m.d.comb += ends.eq(Cat(near[k | (1 << n) - 1] for k in range(len(near))))
        # A summary that flipped since its page was named may have nothing near. Nobody would ever
        # hear of that page, so then all of it is looked at.
        every, some = Signal(len(near)), Signal(len(near))
        m.d.comb += [
            every.eq((1 << self.i.p.count) - 1),
            some.eq(ends & every),
            lines.eq(Mux(some.any(), some, every)),
            self.i.ready.eq(~left.any() | (issues & ((left & (left - 1)) == 0))),
        ]
        with m.If(issues):
            m.d.sync += left.eq(left & (left - 1))
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                left.eq(lines),
                page.page.eq(self.i.p.page),
                *(page[name].eq(getattr(self, name)) for name in names),
                Assert(lines.any(), "a page is asked for, and nothing of it"),
            ]
        return left, page

    def _give(self, m, given):
        """What leaves the quantiser, a key or a query."""
        out = given.p
        m.d.comb += [
            self.o.valid.eq(given.valid & ~out.meta.query),
            self.o_query.valid.eq(given.valid & out.meta.query),
            given.ready.eq(Mux(out.meta.query, self.o_query.ready, self.o.ready)),
            self.o.p.at.eq(out.meta.at),
            self.o.p.there.eq(out.meta.there),
            self.o_query.p.place.eq(out.meta.place),
        ]
        for o in (self.o.p, self.o_query.p):
            m.d.comb += [o.payload.eq(out.payload), o.scale.eq(out.scale)]
