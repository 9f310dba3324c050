# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Hint lines into page ops (spec §6, docs/hints.md). One entry a cycle; the first op follows its
line after 5 cycles when no line waits."""

from __future__ import annotations

from enum import IntEnum
from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.hints import (
    ENTRIES,
    ENTRY_BITS,
    FLAGS_KNOWN,
    HEADER,
    HEADER_BITS,
    SEQUENCE_BITS,
    VERSION,
    HintFlag,
    HintKind,
)
from kelp_spec.metadata import Event, Op

from ..layouts import Layouts, code_shape
from ..lib.protected import BlockFault, ProtectedFifo, gather, used

__all__ = ["HintAbsorber"]

_HEADER = data.StructLayout({name: bits for name, bits, _ in HEADER})
_COUNT_BITS = ENTRIES.bit_length()
_PAGE_BITS = ENTRY_BITS + 1  # first_page + index may pass 65535


class _Item(IntEnum):
    """What leaves a line, one a cycle."""

    EVENT = 0  #: about the line
    ENTRY = 1
    STEP = 2  #: the step advance


_OP_OF_KIND = {
    HintKind.MASS: Op.MASS,
    HintKind.PREFETCH: Op.PREFETCH,
    HintKind.PIN: Op.PIN,
    HintKind.RELEASE: Op.UNPIN,
}


class HintAbsorber(wiring.Component):
    """Takes hint lines in order and turns each into ops, in the order of its entries, then its step
    advance; that of a PREFETCH line goes before its entries.

    MASS, PIN and RELEASE entries leave on `o_op` as MASS, PIN and UNPIN, PREFETCH entries on
    `o_prefetch`; nothing leaves before what precedes it has been taken. Lines wait in a FIFO of
    `config.hint_lines`; when it is full, `i` stalls and nothing is lost.

    Latency: `LATENCY` cycles from `i` to the first op when no line waits. One entry in each cycle
    (`INTERVAL`), also across lines of two or more entries.

    A line is dropped whole, with an event, when it is malformed or `broken` (HINT_MALFORMED), its
    session is beyond the configuration (OUT_OF_MAP), closed or closing (CLOSED_SESSION), or another
    LD-ID's (FOREIGN_LD; LD-ID 0 may write to every session). Of an accepted line: a number other
    than the one expected logs HINT_GAP (`argument`: the number expected) and the next is expected
    after it; a queue outside the session logs HINT_BAD_QUEUE (`argument`: the queue) and no entry
    counts; an entry for a page outside the session is left out, the first of a line logs
    HINT_BAD_PAGE (`argument`: the page). The step advances in all these cases. Numbers start at 0
    after OPEN. Whether a session is open is judged once for each line; M3 judges each op again.
    Lines that were taken in before the session closed are refused (CLOSED_SESSION) even when it is
    open again, and what is left of one under way then is dropped.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : stream of hint lines (`Layouts.hint_line`)
    sessions : in
        Session registers as M3 has them.
    o_op, o_prefetch : streams of ops and of pages
    o_event : always-ready stream
    line_taken, mass_taken : out
        Pulses for the counters: a line left the FIFO, a MASS op was taken.
    idle : out
        Nothing is waiting.
    fault : out, BlockFault
        Of headers, which say whose a line is: one beyond repair counts as `broken`.
    """

    LATENCY = 5
    INTERVAL = 1

    def __init__(self, *, config: Config):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        self.config = config
        self.layouts = layouts = Layouts(config)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.hint_line)),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "o_op": Out(stream.Signature(layouts.op)),
                "o_prefetch": Out(stream.Signature(layouts.page)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "line_taken": Out(1),
                "mass_taken": Out(1),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def _stale(self, m, live, *, enters, judge):
        """Of each session: the next line to be judged was taken in before the session closed, also
        when it is open again by now."""
        lines = range(self.config.hint_lines + 2)
        waiting, following = Signal(lines, name="waiting"), Signal(lines, name="following")
        m.d.comb += following.eq((waiting + enters - judge)[: len(waiting)])
        m.d.sync += waiting.eq(following)
        stale = Signal(self.config.sessions)
        for s in range(self.config.sessions):
            left_over = Signal(lines, name=f"left_over_{s}")
            m.d.comb += stale[s].eq(left_over != 0)
            with m.If(~live[s]):
                m.d.sync += left_over.eq(following)
            with m.Elif(judge & stale[s]):
                m.d.sync += left_over.eq(left_over - 1)
        return stale

    def _malformed(self, m, head, advance):
        """What docs/hints.md calls so, of a line's head."""
        h, known_kind, malformed = head.header, Signal(), Signal()
        with m.Switch(h.kind):
            with m.Case(*HintKind):
                m.d.comb += known_kind.eq(1)
        m.d.comb += malformed.eq(
            head.broken
            | (h.version != VERSION)
            | ~known_kind
            | (h.flags & ~FLAGS_KNOWN).any()
            | (h.count > ENTRIES)
            | h.reserved.any()
            | ((h.kind != HintKind.MASS) & h.first_page.any())
            | ((h.count == 0) & ~advance)
        )
        return malformed

    def _wait(self, m, head_layout):
        """Headers and entries wait in two FIFOs: the next header is judged while the entries of the
        line before it leave."""
        c = self.config
        m.submodules.heads = heads = ProtectedFifo(
            shape=head_layout, depth=c.hint_lines, protect=c.protect, buffered=False
        )
        m.submodules.bodies = bodies = SyncFIFO(width=ENTRIES * ENTRY_BITS, depth=c.hint_lines)
        head_in = Signal(head_layout)
        m.d.comb += [
            head_in.header.eq(self.i.p.data[:HEADER_BITS]),
            head_in.ld_id.eq(self.i.p.ld_id),
            head_in.broken.eq(self.i.p.broken),
            heads.w_data.eq(head_in),
            bodies.w_data.eq(self.i.p.data[HEADER_BITS:]),
            self.i.ready.eq(bodies.w_rdy),
            heads.w_en.eq(self.i.valid & bodies.w_rdy),
            bodies.w_en.eq(self.i.valid & bodies.w_rdy),
            Assert(heads.w_rdy | ~bodies.w_rdy),
        ]
        return heads, bodies

    def elaborate(self, platform):
        m = Module()
        c = self.config
        ld_id, argument = (self.layouts.event[name].shape for name in ("ld_id", "argument"))
        head_layout = data.StructLayout({"header": _HEADER, "ld_id": ld_id, "broken": 1})

        heads, bodies = self._wait(m, head_layout)
        head = Signal(head_layout)
        head_valid = Signal()
        judge = Signal()  # the head becomes the current line

        live = Cat(self.sessions[s].open & ~self.sessions[s].closing for s in range(c.sessions))
        stale = self._stale(m, live, enters=heads.w_en, judge=judge)
        m.d.comb += heads.r_en.eq(~head_valid | judge)
        gather(m, self.fault, poisoned=(used(heads.fault, heads.r_en),))
        with m.If(heads.r_en):
            m.d.sync += [head_valid.eq(heads.r_rdy), head.eq(heads.r_data)]
            with m.If(heads.fault.uncorrected):
                m.d.sync += head.broken.eq(1)
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.ld_id, s.argument, s.heads, s.bodies, s.head = ld_id, argument, heads, bodies, head
        s.head_valid, s.judge, s.live, s.stale = head_valid, judge, live, stale
        self._judge(m, s)
        self._line(m, s)
        self._items(m, s)
        self._next_line(m, s)
        self._check(m, s)
        return m

    def _judge(self, m: Module, s: SimpleNamespace) -> None:
        """Judge a line."""
        c = self.config
        head, stale = s.head, s.stale
        h = head.header
        session_id = h.session[: c.session_bits]
        session = Signal(self.layouts.session)
        expected = Signal(data.ArrayLayout(SEQUENCE_BITS, c.sessions))
        expected_here = Signal(SEQUENCE_BITS)
        m.d.comb += [session.eq(self.sessions[session_id]), expected_here.eq(expected[session_id])]
        advance = (h.flags & HintFlag.ADVANCE).any()
        malformed = self._malformed(m, head, advance)
        code = Signal(code_shape(Event))
        with m.If(malformed):
            m.d.comb += code.eq(Event.HINT_MALFORMED)
        with m.Elif(h.session >= c.sessions):
            m.d.comb += code.eq(Event.OUT_OF_MAP)
        with m.Elif(~session.open | session.closing | stale.bit_select(session_id, 1)):
            m.d.comb += code.eq(Event.CLOSED_SESSION)
        with m.Elif((head.ld_id != session.ld_id) & (head.ld_id != 0)):
            m.d.comb += code.eq(Event.FOREIGN_LD)
        accepted = code == Event.NONE
        bad_queue = accepted & (h.queue >= session.used_queues)
        base = Signal(c.squeue_bits)
        with m.If(~malformed & (h.session < c.sessions)):
            m.d.comb += base.eq(session_id * c.queues)
        s.h, s.session_id, s.session, s.expected = h, session_id, session, expected
        s.expected_here, s.advance, s.code, s.accepted = expected_here, advance, code, accepted
        s.bad_queue, s.base = bad_queue, base

    def _line(self, m: Module, s: SimpleNamespace) -> None:
        """The current line."""
        c = self.config
        ld_id, argument, live, judge = s.ld_id, s.argument, s.live, s.judge
        head_valid, expected = s.head_valid, s.expected
        line = Signal(
            data.StructLayout(
                {
                    "kind": _HEADER["kind"].shape,
                    "ld_id": ld_id,
                    "session": c.session_bits,
                    "squeue": c.squeue_bits,
                    "used_pages": c.page_bits + 1,
                    "code": code_shape(Event),
                    "argument": argument,
                    "expected": SEQUENCE_BITS,
                }
            )
        )
        # still to leave: HINT_GAP, the event `code`, the step advance
        gap, told, step = Signal(), Signal(), Signal()
        left = Signal(_COUNT_BITS)  # entries still to leave
        index = Signal(range(ENTRIES))
        page = Signal(_PAGE_BITS)
        line_valid, line_done = Signal(), Signal()
        # Nor does what is left of the current line count once its session closes.
        void, line_live = Signal(), Signal()
        m.d.comb += line_live.eq(live.bit_select(line.session, 1))
        with m.If(~line_live):
            m.d.sync += void.eq(1)
        m.d.comb += judge.eq(head_valid & (~line_valid | line_done))
        for k in range(c.sessions):
            with m.If(~self.sessions[k].open):
                m.d.sync += expected[k].eq(0)
        s.line, s.gap, s.told, s.step, s.left, s.index = line, gap, told, step, left, index
        s.page, s.line_valid, s.line_done, s.void = page, line_valid, line_done, void
        s.line_live = line_live

    def _items(self, m: Module, s: SimpleNamespace) -> None:
        """One item of the current line a cycle."""
        c = self.config
        ld_id, argument, bodies, index = s.ld_id, s.argument, s.bodies, s.index
        line_done, line_valid, left, gap, told = s.line_done, s.line_valid, s.left, s.gap, s.told
        step, line, void, line_live, page = s.step, s.line, s.void, s.line_live, s.page
        item = Signal(
            data.StructLayout(
                {
                    "type": code_shape(_Item),
                    "kind": _HEADER["kind"].shape,
                    "first": 1,
                    "void": 1,
                    "ld_id": ld_id,
                    "session": c.session_bits,
                    "squeue": c.squeue_bits,
                    "used_pages": c.page_bits + 1,
                    "code": code_shape(Event),
                    "argument": argument,
                    "page": _PAGE_BITS,
                    "mass": ENTRY_BITS,
                }
            )
        )
        item_valid, move = Signal(), Signal()
        entry = Signal(ENTRY_BITS)
        entries = Signal(data.ArrayLayout(ENTRY_BITS, ENTRIES))
        m.d.comb += [entries.eq(bodies.r_data), entry.eq(entries[index]), bodies.r_en.eq(line_done)]
        send = move & line_valid
        # The pages of a list to fetch are for the step that the line begins (docs/prefetch.md).
        early = step & (line.kind == HintKind.PREFETCH)
        # Exactly one item is left, and it leaves now.
        m.d.comb += line_done.eq(
            send
            & Mux(
                left == 0,
                Cat(gap, told, step).xor() & ~(gap & told & step),
                (left == 1) & ~gap & ~told & ~step,
            )
        )
        with m.If(move):
            m.d.sync += item_valid.eq(line_valid)
        with m.If(send):
            m.d.sync += [
                item.kind.eq(line.kind),
                item.first.eq(index == 0),
                item.void.eq(void | ~line_live),
                item.ld_id.eq(line.ld_id),
                item.session.eq(line.session),
                item.squeue.eq(line.squeue),
                item.used_pages.eq(line.used_pages),
                item.page.eq(Mux(line.kind == HintKind.MASS, page, entry)),
                item.mass.eq(entry),
            ]
            with m.If(gap):
                m.d.sync += [
                    gap.eq(0),
                    item.type.eq(_Item.EVENT),
                    item.code.eq(Event.HINT_GAP),
                    item.argument.eq(line.expected),
                ]
            with m.Elif(told):
                m.d.sync += [
                    told.eq(0),
                    item.type.eq(_Item.EVENT),
                    item.code.eq(line.code),
                    item.argument.eq(line.argument),
                ]
            with m.Elif((left != 0) & ~early):
                m.d.sync += [
                    left.eq(left - 1),
                    index.eq(index + 1),
                    page.eq(page + 1),
                    item.type.eq(_Item.ENTRY),
                ]
            with m.Else():
                m.d.sync += [step.eq(0), item.type.eq(_Item.STEP)]
        s.item, s.item_valid, s.move = item, item_valid, move

    def _next_line(self, m: Module, s: SimpleNamespace) -> None:
        """The next line takes over in the cycle in which the last item of this one leaves."""
        line_done, line_valid, judge, void = s.line_done, s.line_valid, s.judge, s.void
        line, h, head, session_id, session = s.line, s.h, s.head, s.session_id, s.session
        expected_here, accepted, bad_queue, base = s.expected_here, s.accepted, s.bad_queue, s.base
        code, gap, told, step, advance, left = s.code, s.gap, s.told, s.step, s.advance, s.left
        index, page, expected = s.index, s.page, s.expected
        # The next line takes over in the cycle in which the last item of this one leaves: after the
        # updates above, to win over them.
        with m.If(line_done):
            m.d.sync += line_valid.eq(0)
        with m.If(judge):
            m.d.sync += [
                line_valid.eq(1),
                void.eq(0),
                line.kind.eq(h.kind),
                line.ld_id.eq(head.ld_id),
                line.session.eq(session_id),
                line.used_pages.eq(session.used_pages),
                line.expected.eq(expected_here),
                line.squeue.eq(Mux(accepted & ~bad_queue, base + h.queue, base)),
                line.code.eq(Mux(bad_queue, Event.HINT_BAD_QUEUE, code)),
                line.argument.eq(
                    Mux(bad_queue, h.queue, Mux(code == Event.OUT_OF_MAP, h.session, h.sequence))
                ),
                gap.eq(accepted & (h.sequence != expected_here)),
                told.eq(~accepted | bad_queue),
                step.eq(accepted & advance),
                left.eq(Mux(accepted & ~bad_queue, h.count, 0)),
                index.eq(0),
                page.eq(h.first_page),
            ]
            with m.If(accepted):
                m.d.sync += expected[session_id].eq(h.sequence + 1)

    def _check(self, m: Module, s: SimpleNamespace) -> None:
        """Check the page, and out."""
        c = self.config
        live, item, move, item_valid, line_done = s.live, s.item, s.move, s.item_valid, s.line_done
        heads, head_valid, line_valid, bodies = s.heads, s.head_valid, s.line_valid, s.bodies
        gap, told, step, left = s.gap, s.told, s.step, s.left
        item_live = Signal()
        m.d.comb += item_live.eq(live.bit_select(item.session, 1))
        with m.If(~move & ~item_live):
            m.d.sync += item.void.eq(1)
        bad_page = Signal()
        bad_seen = Signal()  # this line's HINT_BAD_PAGE has been logged
        out_op, out_page = self.o_op, self.o_prefetch
        leaves = Signal()
        m.d.comb += [
            move.eq((~out_op.valid | out_op.ready) & (~out_page.valid | out_page.ready)),
            bad_page.eq((item.type == _Item.ENTRY) & (item.page >= item.used_pages)),
            leaves.eq(
                move & item_valid & (item.type != _Item.EVENT) & ~bad_page & ~item.void & item_live
            ),
        ]
        with m.If(move):
            m.d.sync += [out_op.valid.eq(0), out_page.valid.eq(0)]
        prefetch = (item.type == _Item.ENTRY) & (item.kind == HintKind.PREFETCH)
        with m.If(leaves):
            m.d.sync += [
                out_op.valid.eq(~prefetch),
                out_page.valid.eq(prefetch),
                out_op.p.session.eq(item.session),
                out_op.p.squeue.eq(item.squeue),
                out_op.p.page.eq(Mux(item.type == _Item.ENTRY, item.page, 0)),
                out_op.p.delta.eq(item.type == _Item.STEP),
                out_op.p.mass.eq(
                    Mux((item.type == _Item.ENTRY) & (item.kind == HintKind.MASS), item.mass, 0)
                ),
                out_page.p.squeue.eq(item.squeue),
                out_page.p.page.eq(item.page),
            ]
            with m.If(item.type == _Item.STEP):
                m.d.sync += out_op.p.kind.eq(Op.STEP)
            with m.Else():
                with m.Switch(item.kind):
                    for kind, op in _OP_OF_KIND.items():
                        with m.Case(kind):
                            m.d.sync += out_op.p.kind.eq(op)
        log_bad = bad_page & (item.first | ~bad_seen)
        with m.If(move & item_valid & (item.type == _Item.ENTRY)):
            m.d.sync += bad_seen.eq(bad_page | (bad_seen & ~item.first))
        m.d.comb += [
            self.o_event.valid.eq(move & item_valid & ((item.type == _Item.EVENT) | log_bad)),
            self.o_event.p.code.eq(Mux(bad_page, Event.HINT_BAD_PAGE, item.code)),
            self.o_event.p.ld_id.eq(item.ld_id),
            self.o_event.p.squeue.eq(item.squeue),
            self.o_event.p.page.eq(Mux(bad_page, item.page, 0)),
            self.o_event.p.argument.eq(Mux(bad_page, item.page, item.argument)),
            self.line_taken.eq(line_done),
            self.mass_taken.eq(out_op.valid & out_op.ready & (out_op.p.kind == Op.MASS)),
            self.idle.eq(
                ~self.i.valid
                & ~heads.r_rdy
                & ~head_valid
                & ~line_valid
                & ~item_valid
                & ~out_op.valid
                & ~out_page.valid
            ),
        ]

        m.d.comb += [
            Assert(~line_valid | bodies.r_rdy),
            Assert(~line_valid | gap | told | step | left.any()),
            Assert(left <= ENTRIES),
            Assert(~(out_op.valid & out_page.valid)),
            Assert(~out_op.valid | (out_op.p.squeue < c.squeues)),
            Assert(~self.o_event.valid | (self.o_event.p.code != Event.NONE)),
        ]
