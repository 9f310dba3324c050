# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Frame table: dirty, validity, poison, owner and prefetch bookkeeping of every frame, and the frame stage F1, F2 (docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Answer, DataOp, Op, Outcome, PrefetchSource

from .layouts import Layouts
from .page_address import PageAddress
from .sram import Sram

__all__ = ["FrameTable"]


class FrameTable(wiring.Component):
    """Executes frame ops in order, one per cycle, and tells the data path what to do.

    Latency: two cycles from `i` to every output; throughput: one op per cycle, also on one frame in successive cycles (forwarded); never
    stalls, so whoever drives `i` has reserved the data path's place. After reset `ready` rises once every entry is zero,
    `config.total_frames` cycles later.

    What an op with `use` does to its frame's entry, and the data op it emits (spec §3, §4; docs/design.md §3, §4):

    | op | entry | data op |
    |---|---|---|
    | any with `init` | starts anew: owner, source, in use; valid and poison all ones (`lost` or `failed`), else from `sector_data` (FILL), else zeros | |
    | READ, REPLAY of a read | `used` | READ; ANSWER poison or zeros for a poisoned or never-written line |
    | WRITE, REPLAY of one | `used`, `dirty`, `redirty`, line valid; poisoned by `poison`, healed by a full write | WRITE (`fresh`: into zeros); ANSWER Cmp |
    | CLAIM, outcome DONE | `redirty` cleared | FLUSH, `o_claim` |
    | RELEASE, DONE, not failed | no longer in use | |
    | RELEASE, VOID, not failed | `dirty` := `redirty`, if the frame still has the op's owner | |
    | SCRUB, RECOVER, DONE or ORPHAN; FLIP, ORPHAN | no longer in use | FLUSH |
    | PEEK | | `o_owner` |

    Without `use` the entry is not touched. `answer` other than NONE always becomes an ANSWER; `has_write` rides along, so that the data
    path frees the write slot. The first READ or WRITE on an unused prefetched frame reports it useful, its end without one useless; a
    REPLAY counts it as used silently, since M3 has called it late.

    Parameters
    ----------
    config : Config

    Members
    -------
    i, i_valid : in, frame_op
    sector_address : out; sector_data : in, a cycle later
        The completion's sector of `i.miss`, zeros when the miss had nothing to read.
    o, o_valid : out, data_op
    o_claim, o_owner, o_usage, o_commit, each with `_valid` : out
        `o_commit` reports every op with the entry after it.
    ready : out
    idle : out
        No op is inside.
    """

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = Layouts(config)
        super().__init__({
            "i": In(layouts.frame_op), "i_valid": In(1),
            "sector_address": Out(config.miss_bits), "sector_data": In(layouts.sector),
            "o": Out(layouts.data_op), "o_valid": Out(1),
            "o_claim": Out(layouts.claim), "o_claim_valid": Out(1),
            "o_owner": Out(layouts.frame_owner), "o_owner_valid": Out(1),
            "o_usage": Out(layouts.usage), "o_usage_valid": Out(1),
            "o_commit": Out(layouts.frame_commit), "o_commit_valid": Out(1),
            "ready": Out(1), "idle": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        c, entry_layout = self.config, self.layouts.frame_entry
        m.submodules.table = table = Sram(depth=c.total_frames, shape=entry_layout)
        m.submodules.place = place = PageAddress(config=c)

        # Input cycle: M3 presents the frame and the miss entry whose sector may be needed. Both are read in any case: whether they matter comes late.
        m.d.comb += [
            table.read_en.eq(1), table.read_address.eq(self.i.frame),
            self.sector_address.eq(self.i.miss),
        ]
        f1, f1_valid = Signal(self.layouts.frame_op), Signal()
        m.d.sync += [f1.eq(self.i), f1_valid.eq(self.i_valid)]

        # F1: the entry is out, or a fill starts it anew. An op's entry is written in the cycle after F2, and goes the long way to the block RAMs from a
        # register. So two writes are not seen: that of this cycle, and that of the op in F2, whose result follows into F2 beside what was read.
        f2, f2_valid = Signal(self.layouts.frame_op), Signal()
        read, entry, after, before, again = Signal(entry_layout), Signal(entry_layout), Signal(entry_layout), Signal(entry_layout), Signal()
        written, write_frame = Signal(), Signal.like(self.i.frame)     # `before` is written
        # Block RAMs are slow, and far apart: what takes their place, or nothing, is there before them.
        passed, instead = Signal(), Signal(entry_layout)
        m.d.comb += passed.eq(written & (write_frame == f1.frame))
        m.d.sync += [
            f2.eq(f1), f2_valid.eq(f1_valid), before.eq(after), written.eq(f2_valid & f2.use), write_frame.eq(f2.frame),
            read.eq(instead.as_value() | (table.read_data.as_value() & (~(passed | f1.init)).replicate(entry_layout.size))),
            again.eq(f2_valid & f2.use & ~f1.init & (f2.frame == f1.frame)),
        ]
        m.d.comb += entry.eq(Mux(again, before, read))
        with m.If(f1.init):
            ruined = f1.lost | f1.failed
            from_sector = f1.kind == Op.FILL
            m.d.comb += [
                instead.in_use.eq(1), instead.source.eq(f1.source), instead.squeue.eq(f1.squeue), instead.page.eq(f1.page),
                instead.valid.eq(Mux(ruined, ~0, Mux(from_sector, self.sector_data.valid, 0))),
                instead.poison.eq(Mux(ruined, ~0, Mux(from_sector, self.sector_data.poison, 0))),
            ]
        with m.Elif(passed):
            m.d.comb += instead.eq(before)
        m.d.comb += [getattr(place, name).eq(f1[name]) for name in ("frame", "pool", "kv_line", "used_lines", "k_only", "format_k", "format_v")]

        # F2: resolve the line, rewrite the entry, tell the data path.
        kind, outcome = f2.kind, f2.outcome
        demand, write = Signal(), Signal()
        line_valid, line_poison = Signal(), Signal()
        owner, unused, ends, flush = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            demand.eq(f2.use & (f2.answer == Answer.NONE) & ((kind == Op.READ) | (kind == Op.WRITE) | (kind == Op.REPLAY))),
            write.eq((kind == Op.WRITE) | ((kind == Op.REPLAY) & f2.write)),
            line_valid.eq(entry.valid.bit_select(f2.kv_line, 1)),
            line_poison.eq(entry.poison.bit_select(f2.kv_line, 1)),
            owner.eq(entry.in_use & (entry.squeue == f2.squeue) & (entry.page == f2.page)),
            unused.eq(entry.in_use & (entry.source != PrefetchSource.NONE) & ~entry.used),
            after.eq(entry),
        ]
        o = self.o
        m.d.comb += [
            o.answer.eq(f2.answer), o.frame.eq(f2.frame), o.base.eq(place.base), o.offset.eq(place.offset), o.part.eq(place.part), o.scaled.eq(place.scaled),
            o.scale_offset.eq(place.scale_offset), o.scale_byte.eq(place.scale_byte), o.format.eq(place.format), o.host_type.eq(f2.host_type),
            o.partial.eq(f2.partial), o.has_write.eq(f2.has_write), o.write_slot.eq(f2.write_slot), o.token.eq(f2.slot), o.origin.eq(f2.origin),
            o.kind.eq(DataOp.ANSWER), o.poison.eq(o.answer == Answer.POISON), self.o_valid.eq(f2_valid & (f2.answer != Answer.NONE)),
        ]
        with m.If(demand):
            m.d.comb += [self.o_valid.eq(f2_valid), after.used.eq(1)]
            with m.If(write):
                m.d.comb += [
                    after.dirty.eq(1), after.redirty.eq(1),
                    after.valid.bit_select(f2.kv_line, 1).eq(1),
                    after.poison.bit_select(f2.kv_line, 1).eq(f2.poison | (f2.partial & line_poison)),
                    # Poisoned bytes are not worth storing: nobody may read the line before a full write.
                    o.kind.eq(Mux(f2.poison, DataOp.ANSWER, DataOp.WRITE)), o.answer.eq(Answer.CMP), o.fresh.eq(f2.partial & ~line_valid),
                ]
            with m.Else():
                m.d.comb += [
                    o.kind.eq(Mux(line_poison | ~line_valid, DataOp.ANSWER, DataOp.READ)),
                    o.answer.eq(Mux(line_poison, Answer.POISON, Mux(line_valid, Answer.DATA, Answer.ZEROS))),
                ]
        with m.Elif(f2.use):
            done = outcome == Outcome.DONE
            with m.Switch(kind):
                with m.Case(Op.CLAIM):
                    m.d.comb += [flush.eq(done), self.o_claim_valid.eq(f2_valid & done)]
                    with m.If(done):
                        m.d.comb += after.redirty.eq(0)
                with m.Case(Op.RELEASE):
                    m.d.comb += ends.eq(done & ~f2.failed)
                    # The write-back may outlive its page's stay in the frame; a new owner's dirt is not its to clear.
                    with m.If((outcome == Outcome.VOID) & ~f2.failed & owner):
                        m.d.comb += after.dirty.eq(entry.redirty)
                with m.Case(Op.SCRUB, Op.RECOVER):
                    m.d.comb += [ends.eq(done | (outcome == Outcome.ORPHAN)), flush.eq(ends)]
                with m.Case(Op.FLIP):
                    m.d.comb += [ends.eq(outcome == Outcome.ORPHAN), flush.eq(ends)]
                with m.Case(Op.PEEK):
                    m.d.comb += self.o_owner_valid.eq(f2_valid)
        with m.If(flush):
            m.d.comb += [o.kind.eq(DataOp.FLUSH), o.answer.eq(Answer.NONE), self.o_valid.eq(f2_valid)]
        with m.If(ends):
            m.d.comb += after.in_use.eq(0)

        m.d.comb += [
            self.o_claim.slot.eq(f2.slot), self.o_claim.frame.eq(f2.frame), self.o_claim.dirty.eq(entry.dirty),
            self.o_claim.sector.valid.eq(entry.valid), self.o_claim.sector.poison.eq(entry.poison),
            self.o_owner.slot.eq(f2.slot), self.o_owner.frame.eq(f2.frame), self.o_owner.in_use.eq(entry.in_use), self.o_owner.squeue.eq(entry.squeue),
            self.o_owner.page.eq(entry.page),
            self.o_usage.source.eq(entry.source), self.o_usage.squeue.eq(entry.squeue),
            self.o_usage.useful.eq(demand & unused & (kind != Op.REPLAY)), self.o_usage.useless.eq(ends & unused),
            self.o_usage_valid.eq(f2_valid & (self.o_usage.useful | self.o_usage.useless)),
            self.o_commit.op.eq(f2), self.o_commit.entry.eq(after), self.o_commit_valid.eq(f2_valid),
            self.idle.eq(~self.i_valid & ~f1_valid & ~f2_valid),
        ]

        # Reset scrub: RECOVER walks owners, so an entry that never had one must say so.
        scrub = Signal(range(c.total_frames))
        with m.If(~self.ready):
            m.d.sync += scrub.eq(scrub + 1)
            m.d.comb += [table.write_en.eq(1), table.write_address.eq(scrub), Assert(~f1_valid)]
            with m.If(scrub == c.total_frames - 1):
                m.d.sync += self.ready.eq(1)
        with m.Else():
            m.d.comb += [table.write_en.eq(written), table.write_address.eq(write_frame), table.write_data.eq(before)]

        with m.If(f2_valid):
            m.d.comb += [
                # No request reaches a frame that is not its page's.
                Assert(~demand | owner),
                Assert(~(f2.use & ((kind == Op.CLAIM) | (kind == Op.RELEASE)) & (outcome == Outcome.DONE)) | owner),
                # A frame is filled only when nobody has it, and what was clean at its claim is dirty only by later writes.
                Assert(~(f2.use & entry.in_use & entry.redirty) | entry.dirty),
                Assert(~(demand & write) | f2.has_write),
            ]
        taken = Signal()
        found = Mux(passed, before.in_use, table.read_data.in_use)
        m.d.sync += taken.eq(f1_valid & f1.init & Mux(f2_valid & f2.use & (f2.frame == f1.frame), after.in_use, found))
        m.d.comb += Assert(~taken)
        return m
