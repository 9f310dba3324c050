# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Frame table: dirty, validity, poison, owner and prefetch bookkeeping of every frame, and the
frame stage F1, F2 (docs/design.md §4). One op a cycle, with every output after 2 cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.metadata import Answer, DataOp, Event, Op, Outcome, PrefetchSource

from ..layouts import Layouts
from ..lib.protected import BlockFault, CheckedWord, Fault, ProtectedMemory, gather
from ..pipeline import FRAME_STAGES
from .page_address import PageAddress
from .signatures import FrameReports, poisoned_ports

__all__ = ["FrameTable"]


class FrameTable(wiring.Component):
    """Executes frame ops in order, one per cycle, and tells the data path what to do.

    Latency: `LATENCY` cycles from `i` to every output; one op in each cycle (`INTERVAL`), also on
    one frame in successive cycles (forwarded). Never stalls: the driver of `i` has reserved the
    data path's place. After reset `ready` rises once every entry is zero, `config.total_frames`
    cycles later.

    What an op with `use` does to its frame's entry, and the data op it emits (spec §3, §4;
    docs/design.md §3, §4):

    - any op with `init`: the entry starts anew (owner, source, in use); its valid and poison bits
      are all ones with `lost` or `failed`, else `line_mask_data` (FILL), else zeros.
    - READ, REPLAY of a read: sets `used`; emits READ, with `poison` when the line is poisoned and
      `fresh` when it was never written.
    - with `Config.coherence`, a READ with `partial` (for ownership) that starts the entry, and its
      REPLAY: `dirty`, `redirty`, for flash may have an old page.
    - WRITE, REPLAY of a write: sets `used`, `dirty`, `redirty` and the line's valid bit; `poison`
      poisons the line, a full write heals it; emits WRITE (`fresh`: into zeros) and ANSWER Cmp.
    - LOOK (`config.select`): emits READ as a READ does, and changes nothing.
    - CLAIM with outcome DONE: clears `redirty`; emits FLUSH and `o_frame.claim`.
    - RELEASE with DONE, not failed: the frame is no longer in use.
    - RELEASE with VOID, not failed: `dirty` := `redirty`, if the frame still has the op's owner.
    - SCRUB, RECOVER with DONE or ORPHAN, FLIP with ORPHAN: no longer in use; emits FLUSH.
    - PEEK: emits `o_frame.owner`.
    - ERROR, which comes by `i_error`: with `poison` (the error `spoils`) the lines in question that
      were written are poisoned, and the frame is dirty, as by a write; emits `o_event`.

    Without `use` the entry is not touched. `answer` other than NONE always becomes an ANSWER;
    `has_write` goes with it, so that the data path frees the write slot. The first READ or WRITE on
    an unused prefetched frame reports it useful, its end without one useless; a REPLAY counts it as
    used without a report, since M3 has counted it as a late prefetch.

    An entry's line masks have check bits of their own. When these are beyond repair, every line is
    written and poisoned, and so is the entry that the op leaves. What is beyond repair of the rest,
    dirty and owner, cannot be rebuilt: it is fatal, and from then on nothing is asserted. An op
    stores its entry anew, which mends a flipped bit.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, always-ready stream of frame_op
        None before `ready`.
    i_error : in, stream of frame_error
        Only where `i` brings nothing. Its payload stands until `o_frame.error`.
    line_mask_address : out
        `i.miss`.
    line_mask_data : in, a cycle later
        The line masks of that miss's completion, zeros when the miss had nothing to read.
    o : out, always-ready stream of data_op
    o_frame : out, FrameReports
        `claim` of each CLAIM with outcome DONE, `owner` of each PEEK of a frame. `error` of each
        ERROR, with `poison` or without, before any op behind it emits something: it is executed.
    o_usage : out, always-ready stream of usage
    o_event : out, always-ready stream of event
        Of each ERROR; `argument` is the DRAM line in the frame.
    o_commit : out, always-ready stream of frame_commit
        Every op with the entry after it.
    o_poisoned : out, always-ready stream of poisoned_lines, with `Config.cxlio`
        The lines of a page in use that an op leaves poisoned and did not find so, or, `healed`,
        that it found poisoned and leaves sound. None was poisoned of an entry that starts anew, nor
        of one whose masks were beyond repair.
    fault : out, BlockFault
        With an op's outputs: of its entry. `poisoned`: of its line masks, `fatal`: of the rest.
    ready : out
        The reset scrub is over.
    idle : out
        No op is inside.
    """

    LATENCY = len(FRAME_STAGES)
    INTERVAL = 1
    CLEARS = ("table.rows",)  #: memories in it that are written whole before it is ready

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = Layouts(config)
        lines = layouts.frame_entry["valid"].offset
        masks = CheckedWord(2 * config.page_lines, protect=config.protect)
        #: bits of an entry's code words: of what is before the line masks, and of these
        self.parts = (lines, *masks.parts)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.frame_op, always_ready=True)),
                "i_error": In(stream.Signature(layouts.frame_error)),
                "line_mask_address": Out(config.miss_bits),
                "line_mask_data": In(layouts.line_mask),
                "o": Out(stream.Signature(layouts.data_op, always_ready=True)),
                "o_frame": Out(FrameReports(config)),
                "o_usage": Out(stream.Signature(layouts.usage, always_ready=True)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "o_commit": Out(stream.Signature(layouts.frame_commit, always_ready=True)),
                **poisoned_ports(config),
                "fault": Out(BlockFault),
                "ready": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.table = table = self._table()
        m.submodules.place = place = PageAddress(config=c)
        error = self.i_error

        # Input cycle: M3 presents the frame and the miss entry whose line masks may be needed. Both
        # are read in any case. Critical path: whether they matter.
        m.d.comb += [
            table.read_en.eq(1),
            table.read_address.eq(Mux(error.valid, error.p.frame, self.i.p.frame)),
            self.line_mask_address.eq(self.i.p.miss),
            error.ready.eq(1),
        ]
        f1, f1_valid = Signal(self.layouts.frame_op), Signal()
        m.d.sync += [f1.eq(self.i.p), f1_valid.eq(self.i.valid)]
        # An error's offset goes by `kv_line`, which is as wide.
        assert c.offset_bits <= c.line_bits
        with m.If(error.valid):
            m.d.sync += [
                f1_valid.eq(1),
                f1.kind.eq(Op.ERROR),
                f1.outcome.eq(Outcome.DONE),
                f1.answer.eq(Answer.NONE),
                f1.use.eq(1),
                f1.init.eq(0),
                f1.frame.eq(error.p.frame),
                f1.kv_line.eq(error.p.offset),
                f1.poison.eq(error.p.spoils),
            ]
        m.d.sync += Assert(~(self.i.valid & error.valid), "an error comes with an op")
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.table, s.place, s.f1, s.f1_valid = table, place, f1, f1_valid
        self._f1_entry(m, s)
        self._f1_op(m, s)
        self._f2(m, s)
        self._write(m, s)
        return m

    def _f1_entry(self, m: Module, s: SimpleNamespace) -> None:
        """F1: the entry as it is after all ops before this one."""
        entry_layout = self.layouts.frame_entry
        f1, f1_valid, table, place = s.f1, s.f1_valid, s.table, s.place
        # F1: the entry is out, or a fill starts it anew. An op's entry is written in the cycle
        # after F2, from a register (critical path: the wires to the block RAMs). So three writes
        # are not seen: that of the cycle in which it was read, that of this cycle, and that of the
        # op in F2.
        f2, f2_valid = Signal(self.layouts.frame_op), Signal()
        after, before, instead = Signal(entry_layout), Signal(entry_layout), Signal(entry_layout)
        written, write_frame = Signal(), Signal.like(self.i.p.frame)  # `before` is written
        # a cycle ago
        was_written, was_frame, was = Signal(), Signal.like(self.i.p.frame), Signal(entry_layout)
        # Critical path: the block RAM's answer, and the comparison of frames. Each of the three is
        # registered here, and so is which of them it is.
        same, passed, met, read, stands_in = (
            Signal(),
            Signal(),
            Signal(),
            Signal(entry_layout),
            Signal(entry_layout),
        )
        from_before, from_read = Signal(), Signal()
        m.d.comb += [
            same.eq(f2_valid & f2.use & (f2.frame == f1.frame)),
            passed.eq(written & (write_frame == f1.frame)),
            met.eq(was_written & (was_frame == f1.frame)),
            instead.eq(Mux(passed, before.as_value(), was.as_value())),
        ]
        m.d.sync += [
            f2.eq(f1),
            f2_valid.eq(f1_valid),
            before.eq(after),
            written.eq(f2_valid & f2.use),
            write_frame.eq(f2.frame),
            stands_in.eq(instead),
            was.eq(before),
            was_written.eq(written),
            was_frame.eq(write_frame),
            read.eq(self._read(table)),
            from_before.eq(same & ~f1.init),
            from_read.eq(~(same | passed | met | f1.init)),
        ]
        broken = self._faults(m, table, f1_valid & f1.use & ~(same | passed | met | f1.init))
        with m.If(f1.init):
            ruined = f1.lost | f1.failed
            fill = f1.kind == Op.FILL
            m.d.comb += [
                instead.eq(0),
                instead.in_use.eq(1),
                instead.source.eq(f1.source),
                instead.squeue.eq(f1.squeue),
                instead.page.eq(f1.page),
                instead.valid.eq(Mux(ruined, ~0, Mux(fill, self.line_mask_data.valid, 0))),
                instead.poison.eq(Mux(ruined, ~0, Mux(fill, self.line_mask_data.poison, 0))),
            ]
        m.d.comb += [
            *(getattr(place, name).eq(f1[name]) for name in ("frame", "pool", "kv_line")),
            *(place.stored[name].eq(f1[name]) for name in place.stored.shape().members),
        ]
        s.f2, s.f2_valid, s.after, s.before, s.written = f2, f2_valid, after, before, written
        s.write_frame, s.was, s.same, s.passed, s.met = write_frame, was, same, passed, met
        s.read, s.stands_in, s.from_before, s.from_read = read, stands_in, from_before, from_read
        s.broken = broken

    def _f1_op(self, m: Module, s: SimpleNamespace) -> None:
        """F1: what the op is, in bits that are registers when its entry is there."""
        c = self.config
        f1, f1_valid = s.f1, s.f1_valid

        # What the op is, in bits that are there when its entry is.
        def of_kind(*kinds):
            return f1.use & Cat(f1.kind == k for k in kinds).any()

        is_demand, is_write, is_done, is_orphan, is_flush = (
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
        )
        keeps = None
        if c.coherence:
            # A frame that has been given to be owned differs from flash, which may have an old
            # page there.
            keeps = Signal(name="keeps")
            m.d.sync += keeps.eq(
                is_demand & ~is_write & f1.partial & (f1.init | (f1.kind == Op.REPLAY))
            )
        lets_go, line = Signal(), Signal(c.page_lines)  # `line`: a bit for each
        demand, reads, stores, spoils, heals, first_use, ends, voids, flushes, emits, loses = (
            Signal(name=name)
            for name in (
                "demand",
                "reads",
                "stores",
                "spoils",
                "heals",
                "first_use",
                "ends",
                "voids",
                "flushes",
                "emits",
                "loses",
            )
        )
        kind, answer = Signal(DataOp), Signal(Answer)
        is_read, is_line = is_demand & ~is_write, is_demand
        if c.select:
            # A LOOK reads the line, and leaves the entry as it is.
            is_look = of_kind(Op.LOOK)
            is_read, is_line = is_read | is_look, is_line | is_look
        m.d.comb += [
            is_demand.eq((f1.answer == Answer.NONE) & of_kind(Op.READ, Op.WRITE, Op.REPLAY)),
            is_write.eq(is_demand & ((f1.kind == Op.WRITE) | ((f1.kind == Op.REPLAY) & f1.write))),
            is_done.eq(f1.outcome == Outcome.DONE),
            is_orphan.eq(f1.outcome == Outcome.ORPHAN),
            lets_go.eq(
                (of_kind(Op.SCRUB, Op.RECOVER) & (is_done | is_orphan))
                | (of_kind(Op.FLIP) & is_orphan)
            ),
            is_flush.eq(lets_go | (of_kind(Op.CLAIM) & is_done)),
        ]
        m.d.sync += [
            line.eq(1 << f1.kv_line),
            demand.eq(is_demand),
            reads.eq(is_read),
            stores.eq(is_write),
            spoils.eq(is_write & f1.poison),
            heals.eq(is_write & ~f1.partial),
            first_use.eq(is_demand & (f1.kind != Op.REPLAY)),
            # The write-back may outlive its page's stay in the frame: it must not clear `dirty` of
            # the frame's next page.
            ends.eq(lets_go | (of_kind(Op.RELEASE) & is_done & ~f1.failed)),
            voids.eq(of_kind(Op.RELEASE) & (f1.outcome == Outcome.VOID) & ~f1.failed),
            flushes.eq(is_flush),
            loses.eq(of_kind(Op.ERROR) & f1.poison),
            self.o_frame.error.valid.eq(f1_valid & of_kind(Op.ERROR)),
            emits.eq(f1_valid & (is_line | is_flush | (f1.answer != Answer.NONE))),
            self.o_frame.claim.valid.eq(f1_valid & of_kind(Op.CLAIM) & is_done),
            self.o_frame.owner.valid.eq(f1_valid & of_kind(Op.PEEK)),
            # Poisoned bytes are not worth storing: nobody may read the line before a full write.
            kind.eq(
                Mux(
                    is_flush,
                    DataOp.FLUSH,
                    Mux(
                        is_write & ~f1.poison,
                        DataOp.WRITE,
                        Mux(is_read, DataOp.READ, DataOp.ANSWER),
                    ),
                )
            ),
            answer.eq(
                Mux(
                    is_flush,
                    Answer.NONE,
                    Mux(is_write, Answer.CMP, Mux(is_line, Answer.DATA, f1.answer)),
                )
            ),
        ]
        s.line, s.demand, s.reads, s.stores, s.spoils = line, demand, reads, stores, spoils
        s.heals, s.first_use, s.ends, s.voids, s.emits = heals, first_use, ends, voids, emits
        s.loses, s.kind, s.answer, s.keeps = loses, kind, answer, keeps

    def _f2(self, m: Module, s: SimpleNamespace) -> None:
        """F2: resolve the line, rewrite the entry, tell the data path and the engines."""
        entry_layout, c, error = self.layouts.frame_entry, self.config, self.i_error
        from_before, before, from_read, read = s.from_before, s.before, s.from_read, s.read
        stands_in, f2, after, demand, stores = s.stands_in, s.f2, s.after, s.demand, s.stores
        voids, ends, line, heals, spoils = s.voids, s.ends, s.line, s.heals, s.spoils
        loses, kind, answer, emits, reads = s.loses, s.kind, s.answer, s.emits, s.reads
        place, first_use, f2_valid, f1_valid = s.place, s.first_use, s.f2_valid, s.f1_valid
        stored, partial = stores, f2.partial
        if c.coherence:
            stored, partial = stores | s.keeps, f2.partial & ~reads
        # F2: resolve the line, rewrite the entry, tell the data path, which makes of a READ and
        # what its line is an answer.
        entry, owner, unused = Signal(entry_layout), Signal(), Signal()
        lost = Signal(c.page_lines)  # to memory's error
        o = self.o.p
        m.d.comb += [
            entry.eq(
                Mux(
                    from_before,
                    before.as_value(),
                    Mux(from_read, read.as_value(), stands_in.as_value()),
                )
            ),
            owner.eq(entry.in_use & (entry.squeue == f2.squeue) & (entry.page == f2.page)),
            unused.eq(entry.in_use & (entry.source != PrefetchSource.NONE) & ~entry.used),
            after.eq(entry),
            after.used.eq(entry.used | demand),
            after.redirty.eq((entry.redirty & ~self.o_frame.claim.valid) | stored | lost.any()),
            after.dirty.eq(Mux(voids & owner, entry.redirty, entry.dirty | stored | lost.any())),
            after.in_use.eq(entry.in_use & ~ends),
            after.valid.eq(entry.valid | (line & stores.replicate(c.page_lines))),
            after.poison.eq(
                (entry.poison & ~(line & heals.replicate(c.page_lines)))
                | (line & spoils.replicate(c.page_lines))
                | lost
            ),
            lost.eq(Mux(loses & entry.in_use, error.p.lines & entry.valid, 0)),
            self.o_frame.error.p.eq(f2.frame),
            self.o_event.valid.eq(self.o_frame.error.valid),
            self.o_event.p.code.eq(
                Mux(f2.poison, Event.MEMORY_WRITE_FAILED, Event.MEMORY_READ_FAILED)
            ),
            self.o_event.p.squeue.eq(entry.squeue),
            self.o_event.p.page.eq(entry.page),
            self.o_event.p.argument.eq(f2.kv_line),
            o.kind.eq(kind),
            o.answer.eq(answer),
            self.o.valid.eq(emits),
            o.fresh.eq(~(entry.valid & line).any() & (reads | (stores & f2.partial))),
            o.poison.eq(((entry.poison & line).any() & reads) | (answer == Answer.POISON)),
            o.frame.eq(f2.frame),
            *(o[name].eq(place.o[name]) for name in place.o.shape().members),
            *(o.stored[name].eq(f2[name]) for name in o.stored.shape().members),
            o.host_type.eq(f2.host_type),
            o.partial.eq(partial),
            o.has_write.eq(f2.has_write),
            o.write_slot.eq(f2.write_slot),
            o.token.eq(f2.slot),
            o.origin.eq(f2.origin),
            self.o_frame.claim.p.slot.eq(f2.slot),
            self.o_frame.claim.p.frame.eq(f2.frame),
            self.o_frame.claim.p.dirty.eq(entry.dirty),
            self.o_frame.claim.p.line_mask.valid.eq(entry.valid),
            self.o_frame.claim.p.line_mask.poison.eq(entry.poison),
            self.o_frame.owner.p.slot.eq(f2.slot),
            self.o_frame.owner.p.frame.eq(f2.frame),
            self.o_frame.owner.p.in_use.eq(entry.in_use),
            self.o_frame.owner.p.squeue.eq(entry.squeue),
            self.o_frame.owner.p.page.eq(entry.page),
            self.o_usage.p.source.eq(entry.source),
            self.o_usage.p.squeue.eq(entry.squeue),
            self.o_usage.p.useful.eq(first_use & unused),
            self.o_usage.p.useless.eq(ends & unused),
            self.o_usage.valid.eq(f2_valid & (self.o_usage.p.useful | self.o_usage.p.useless)),
            self.o_commit.p.op.eq(f2),
            self.o_commit.p.entry.eq(after),
            self.o_commit.valid.eq(f2_valid),
            self.idle.eq(~self.i.valid & ~error.valid & ~f1_valid & ~f2_valid),
        ]
        s.entry, s.owner = entry, owner
        if c.cxlio:
            self._poisoned(m, s)

    def _poisoned(self, m: Module, s: SimpleNamespace) -> None:
        """F2: lines that are poisoned from now on, or are no more."""
        f2, ruined, spoiled, o = s.f2, Signal(), Signal(), self.o_poisoned.p
        m.d.sync += spoiled.eq(self._spoiled(s.table))
        m.d.comb += [
            ruined.eq(Mux(f2.init, f2.lost | f2.failed, s.from_read & spoiled)),
            o.squeue.eq(s.after.squeue),
            o.page.eq(s.after.page),
            o.lines.eq(s.after.poison ^ Mux(f2.init | ruined, 0, s.entry.poison)),
            o.healed.eq(s.heals & ~s.spoils & ~f2.init & ~ruined),
            o.source.eq(
                Mux(
                    s.spoils & ~ruined,
                    PoisonSource.EXTERNAL,
                    Mux(
                        (f2.kind == Op.FILL) & ~ruined, PoisonSource.UNKNOWN, PoisonSource.INTERNAL
                    ),
                )
            ),
            self.o_poisoned.valid.eq(s.f2_valid & f2.use & s.after.in_use & o.lines.any()),
        ]

    def _write(self, m: Module, s: SimpleNamespace) -> None:
        """The entry is written, after reset a row without an owner; and what holds of each op."""
        c = self.config
        table, f1_valid, written, write_frame = s.table, s.f1_valid, s.written, s.write_frame
        before, f2_valid, broken, demand, owner = s.before, s.f2_valid, s.broken, s.demand, s.owner
        f2, entry, stores, f1, same, after = s.f2, s.entry, s.stores, s.f1, s.same, s.after
        passed, met, was = s.passed, s.met, s.was
        # Reset scrub: RECOVER walks owners, so an entry that never had one must say so.
        scrub = Signal(range(c.total_frames))
        with m.If(~self.ready):
            m.d.sync += scrub.eq(scrub + 1)
            m.d.comb += [table.write_en.eq(1), table.write_address.eq(scrub), Assert(~f1_valid)]
            with m.If(scrub == c.total_frames - 1):
                m.d.sync += self.ready.eq(1)
        with m.Else():
            m.d.comb += [
                table.write_en.eq(written),
                table.write_address.eq(write_frame),
                table.write_data.eq(before),
            ]

        with m.If(f2_valid & ~broken):
            m.d.comb += [
                # No request reaches a frame that is not its page's.
                Assert(~demand | owner),
                Assert(
                    ~(
                        f2.use
                        & ((f2.kind == Op.CLAIM) | (f2.kind == Op.RELEASE))
                        & (f2.outcome == Outcome.DONE)
                    )
                    | owner
                ),
                # A frame is filled only when nobody has it, and what was clean at its claim is
                # dirty only by later writes.
                Assert(~(f2.use & entry.in_use & entry.redirty) | entry.dirty),
                Assert(~stores | f2.has_write),
            ]
        taken = Signal()
        m.d.sync += taken.eq(
            f1_valid
            & f1.init
            & ~table.uncorrected.any()
            & Mux(
                same,
                after.in_use,
                Mux(passed, before.in_use, Mux(met, was.in_use, table.read_data.in_use)),
            )
        )
        m.d.comb += Assert(~taken)

    def _table(self) -> ProtectedMemory:
        return ProtectedMemory(
            depth=self.config.total_frames,
            shape=self.layouts.frame_entry,
            protect=self.config.protect,
            parts=self.parts,
            transparent=False,
        )

    def _read(self, table) -> Value:
        """The entry as it was read, all its lines written and poisoned where their masks are beyond
        repair."""
        word, masks = table.read_data.as_value(), self.parts[0]
        spoiled = self._spoiled(table).replicate(len(word) - masks)
        return Cat(word[:masks], word[masks:] | spoiled)

    def _spoiled(self, table) -> Value:
        """The line masks that were read are beyond repair."""
        return table.uncorrected[1:].any()

    def _faults(self, m, table, used) -> Signal:
        """Drives `fault` of an entry that F1 has `used`; returns whether one was fatal."""
        masks, rest, broken = Signal(Fault), Signal(Fault), Signal()
        m.d.comb += [
            rest.corrected.eq(used & table.corrected.any()),
            rest.uncorrected.eq(used & table.uncorrected[0]),
            masks.uncorrected.eq(used & self._spoiled(table)),
        ]
        gather(m, self.fault, rest, poisoned=(masks,))
        with m.If(rest.uncorrected):
            m.d.sync += broken.eq(1)
        return broken
