# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the host may hold, sector by sector, in a set-associative memory (docs/coherence.md). One op
a cycle, decided after 2 cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import Coherence, DirectoryOp, DirectoryOutcome, Held
from kelp_spec.config import Config
from kelp_spec.messages import S2MNDR

from ..lib.protected import BlockFault, ProtectedMemory, gather, used
from .layouts import CoherenceLayouts, first_from, folded

__all__ = ["Directory"]


class Directory(wiring.Component):
    """Executes ops one after another: each is looked up in one cycle, corrected in the next and
    decided in the one after, with what the ops before it have changed.

    After a fatal error nothing that the directory waits for need come. So each REQUEST is DONE
    then, and grants nothing: no data are answered any more, but registers stand behind it.

    No recall begins while grants of its sector are under way: what is granted may wait for a frame,
    and frames may wait for recalls, of which there are few.

    A REQUEST that comes to WAIT or RECALL has changed nothing of its line. The requests behind it
    that are under way already are `dropped`; the next one that counts has the other `epoch`. So
    requests stay in order while the other ops pass.

    Latency: `LATENCY` cycles from `i` to `o`. One op in each cycle (`INTERVAL`), one read and one
    write of the memory each. Critical path: D2, from the row's register by tag compare and choice
    of a way to the memory's encoder. Errors: a row beyond repair is fatal, for nobody else knows
    what the host holds. Reset clears one set a cycle, then `ready`.

    Parameters
    ----------
    config : Config
    sizes : Coherence

    Members
    -------
    i : in, always-ready stream of op
        None while `ready` is low.
    free : in
        A recall may begin in this cycle.
    fatal : in
        A fatal error has been told, here or elsewhere.
    o_look : out
        The set of the op that is decided in the next cycle.
    i_under_way : in
        Its ways of which grants are under way, or begin, in the same cycle.
    o : out, always-ready stream of result
    ready : out
    fault : out, BlockFault
    """

    LATENCY = 2
    INTERVAL = 1
    CLEARS = ("rows.rows",)  #: memories in it that are written whole before it is ready

    def __init__(self, *, config: Config, sizes: Coherence):
        self.config, self.sizes = config, sizes
        self.layouts = layouts = CoherenceLayouts(config, sizes)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.op, always_ready=True)),
                "free": In(1),
                "fatal": In(1),
                "o_look": Out(sizes.set_bits),
                "i_under_way": In(sizes.ways),
                "o": Out(stream.Signature(layouts.result, always_ready=True)),
                "ready": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        sizes, layouts = self.sizes, self.layouts
        m.submodules.rows = rows = ProtectedMemory(
            depth=sizes.sets, shape=layouts.row, protect=self.config.protect
        )

        def set_of(sector):
            tag = sector[sizes.set_bits :]
            return sector[: sizes.set_bits] ^ folded(tag, sizes.set_bits)

        # D0: the memory is addressed. A write of the row in this cycle is seen (transparent).
        op1, valid1 = Signal(layouts.op), Signal()
        m.d.comb += [
            rows.read_en.eq(self.i.valid),
            rows.read_address.eq(set_of(self.i.p.sector)),
        ]
        m.d.sync += [valid1.eq(self.i.valid), op1.eq(self.i.p)]

        # D1: SECDED. A write of D2 in this cycle takes the row's place.
        op2, valid2, index2 = Signal(layouts.op), Signal(), Signal(sizes.set_bits)
        row2, new_row, writes = Signal(layouts.row), Signal(layouts.row), Signal()
        index1 = Signal(sizes.set_bits)
        same = writes & (index1 == index2)
        granting = Signal(sizes.ways)
        m.d.comb += [index1.eq(set_of(op1.sector)), self.o_look.eq(index1)]
        m.d.sync += [
            granting.eq(self.i_under_way),
            valid2.eq(valid1),
            op2.eq(op1),
            index2.eq(index1),
            row2.eq(Mux(same, Value.cast(new_row), Value.cast(rows.read_data))),
        ]
        gather(m, self.fault, used(rows.fault, valid1 & ~same))

        # Reset: every set is emptied.
        scrub, empty = Signal(range(sizes.sets + 1)), Signal(layouts.row)
        m.d.comb += self.ready.eq(scrub == sizes.sets)
        with m.If(~self.ready):
            m.d.sync += scrub.eq(scrub + 1)
        m.d.comb += [
            rows.write_en.eq(writes | ~self.ready),
            rows.write_address.eq(Mux(self.ready, index2, scrub)),
            rows.write_data.eq(Mux(self.ready, Value.cast(new_row), Value.cast(empty))),
            Assert(self.ready | ~self.i.valid),
        ]
        self._decide(m, op2, valid2, index2, row2, granting, new_row, writes)
        return m

    def _decide(self, m, op, valid, index, row, granting, new_row, writes):
        """D2: the decision, of the row as all ops before have left it."""
        sizes, result = self.sizes, self.o.p
        s = self._seen(m, op, row)
        epoch, acts, outcome = Signal(), Signal(), result.outcome
        is_request = op.kind == DirectoryOp.REQUEST
        # What is done: the line's way is written, or that of a victim, whose recall begins.
        d = SimpleNamespace(
            changes=Signal(),
            place=Signal(sizes.way_bits),
            held=Signal(2),
            begins=Signal(),
            victim=Signal(sizes.way_bits),
            may=Signal(),
        )
        m.d.comb += [
            self.o.valid.eq(valid),
            result.op.eq(op),
            result.hit.eq(s.hit),
            result.free.eq(self.free),
            result.granting.eq(granting),
            d.may.eq(self.free & ~granting.bit_select(d.victim, 1)),
            result.dropped.eq(is_request & (op.epoch != epoch)),
            acts.eq(valid & ~result.dropped),
            d.place.eq(Mux(s.hit, s.here, s.spare)),
            result.ndr.eq(S2MNDR.CMP),
            outcome.eq(DirectoryOutcome.DONE),
            d.held.eq(s.old),
            d.victim.eq(s.here),
        ]
        with m.Switch(op.kind):
            with m.Case(DirectoryOp.REQUEST):
                with m.If(op.tracked & ~self.fatal):
                    self._request(m, op, row, s, d)
            with m.Case(DirectoryOp.WRITE):
                m.d.comb += d.changes.eq(s.hit)
                with m.If(op.evicts):
                    m.d.comb += d.held.eq(Held.NONE)
                with m.Elif(s.old == Held.NONE):
                    m.d.comb += result.ungranted.eq(op.holds)
                with m.Elif(~s.under_recall):
                    with m.If(op.rounds | (s.old == Held.STALE)):
                        m.d.comb += d.held.eq(Held.STALE)
                    with m.Elif(op.shared):
                        m.d.comb += d.held.eq(Held.SHARED)
            with m.Case(DirectoryOp.ASK):
                with m.If(s.hit):
                    self._recall(m, s, d, DirectoryOutcome.DONE_RECALL)
            with m.Case(DirectoryOp.FINISH):
                ends = s.under_recall & (s.here == op.way)
                m.d.comb += [
                    d.changes.eq(1),
                    Assert(~acts | ends, "the end of a recall that is none"),
                ]
        sent_back = (outcome == DirectoryOutcome.WAIT) | (outcome == DirectoryOutcome.RECALL)
        with m.If(acts & is_request & op.tracked & sent_back):
            m.d.sync += epoch.eq(~epoch)
        gone = row.ways[d.victim]
        victim_tag = Signal.like(gone.tag)
        m.d.comb += [
            writes.eq(acts & (d.changes | d.begins)),
            result.place.eq(Cat(d.place, index)),
            result.recalled.eq(Cat(d.victim, index)),
            victim_tag.eq(gone.tag),
            result.recalled_sector.eq(Cat(index ^ folded(victim_tag, sizes.set_bits), victim_tag)),
            result.lines.eq(
                Cat(Value.cast(gone.held)[2 * n : 2 * n + 2].any() for n in range(sizes.sector))
            ),
            Assert(~valid | ((s.matches & (s.matches - 1)) == 0), "two entries of a sector"),
            Assert(~(acts & d.begins) | ~gone.recalled, "a recall of what is being recalled"),
        ]
        self._afterwards(m, op, s, d, row, new_row)

    def _recall(self, m, s, d, then):
        """The victim's recall begins, or the op must wait."""
        with m.If(d.may & ~s.under_recall):
            m.d.comb += [d.begins.eq(1), self.o.p.outcome.eq(then)]
        with m.Else():
            m.d.comb += self.o.p.outcome.eq(DirectoryOutcome.WAIT)

    def _request(self, m, op, row, s, d):
        """A request that the directory has a say in."""
        sizes, result = self.sizes, self.o.p
        must_come_home = op.holds & (s.old == Held.STALE)
        if self.config.select:
            must_come_home |= op.gathers & ((s.old == Held.STALE) | (s.old == Held.ANY))
        with m.If(s.under_recall):
            m.d.comb += result.outcome.eq(DirectoryOutcome.WAIT)
        with m.Elif(must_come_home):
            self._recall(m, s, d, DirectoryOutcome.RECALL)
        with m.Elif(op.holds & ~s.hit & s.full):
            # Where no way is on its way out, the oldest goes.
            m.d.comb += d.victim.eq(row.turn)
            with m.If(s.busy.any()):
                m.d.comb += result.outcome.eq(DirectoryOutcome.WAIT)
            with m.Else():
                self._recall(m, s, d, DirectoryOutcome.RECALL)
        with m.Elif(op.holds):
            # E only where it cannot be dirty in vain, unless every line has a place of its own.
            unowned = s.old == Held.SHARED
            if not sizes.eager:
                unowned = unowned | (s.old == Held.NONE)
            shared = op.shared & unowned
            m.d.comb += [
                d.changes.eq(1),
                d.held.eq(Mux(shared, Held.SHARED, Held.ANY)),
                result.ndr.eq(Mux(shared, S2MNDR.CMP_S, S2MNDR.CMP_E)),
            ]
            with m.If(~s.hit & s.last & row.pressed & ~s.busy.any()):
                m.d.comb += d.victim.eq(s.spare + 1)
                with m.If(d.may):
                    m.d.comb += [
                        d.begins.eq(1),
                        result.outcome.eq(DirectoryOutcome.DONE_RECALL),
                    ]
        with m.Elif(op.evicts):
            m.d.comb += [d.changes.eq(s.hit), d.held.eq(Held.NONE)]

    def _seen(self, m, op, row):
        """What the row says of the op's sector, and of the set."""
        sizes, tag = self.sizes, op.sector[self.sizes.set_bits :]
        takes, busy, matches = (
            Signal(sizes.ways, name=name) for name in ("takes", "busy", "matches")
        )
        here, old, last = Signal(sizes.way_bits), Signal(2), Signal()
        for n in range(sizes.ways):
            way = row.ways[n]
            m.d.comb += [
                busy[n].eq(way.recalled),
                takes[n].eq(way.recalled | Value.cast(way.held).any()),
                matches[n].eq(takes[n] & (way.tag == tag)),
            ]
            with m.If(matches[n]):
                m.d.comb += here.eq(n)
        hit = matches.any()
        mine = Value.cast(row.ways[here].held)
        # A way for a sector that has none, and whether it is the set's last.
        spare = first_from(m, ~takes, row.turn, "spare")
        m.d.comb += [
            old.eq(Mux(hit, mine.word_select(op.line, 2), Held.NONE)),
            last.eq((takes | (Const(1, sizes.ways) << spare)[: sizes.ways]).all()),
        ]
        return SimpleNamespace(
            busy=busy,
            matches=matches,
            hit=hit,
            here=here,
            old=old,
            under_recall=(matches & busy).any(),
            spare=spare,
            full=takes.all(),
            last=last,
        )

    def _afterwards(self, m, op, s, d, row, new_row):
        """The row after a decision."""
        sizes = self.sizes
        is_request = op.kind == DirectoryOp.REQUEST
        m.d.comb += new_row.eq(row)
        with m.If(is_request & d.changes & ~s.hit):
            m.d.comb += new_row.turn.eq(s.spare + 1)
            with m.If(~s.last):
                m.d.comb += new_row.pressed.eq(0)
        with m.If(is_request & d.begins & s.full & ~s.hit):
            m.d.comb += new_row.pressed.eq(1)
        for n in range(sizes.ways):
            way = new_row.ways[n]
            with m.If(d.changes & (d.place == n)):
                m.d.comb += way.tag.eq(op.sector[sizes.set_bits :])
                with m.If(op.kind == DirectoryOp.FINISH):
                    m.d.comb += [Value.cast(way.held).eq(0), way.recalled.eq(0)]
                with m.Else():
                    for k in range(sizes.sector):
                        with m.If(op.line == k):
                            m.d.comb += way.held[k].eq(d.held)
            with m.If(d.begins & (d.victim == n)):
                m.d.comb += way.recalled.eq(1)
