# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contract of the eviction slots: what `frame_owner` assumes of an eviction, where it is made. Each
slot's eviction goes CLAIM, flush, (write-back,) RELEASE, in this order and each once, of the page
that was CLAIMed and the frame that was found; until it is over the slot answers for its page."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Mux, Signal, Value
from amaranth.lib import enum, wiring

from kelp_hw.eviction.slots import EvictionSlots
from kelp_spec.metadata import Op, Outcome

from .fifo_specs import SMALL

__all__ = ["EvictionSlotsContract"]


class Stage(enum.Enum, shape=3):
    FREE = 0
    CLAIMED = 1
    FOUND = 2  #: its frame is known
    DIRTY = 3  #: flushed; it goes to flash
    WRITING = 4
    DONE = 5  #: flushed and clean, or spoilt, or written: it waits for its RELEASE
    RELEASED = 6
    COOLING = 7


class _Slot:
    """What slot `k` does, from its ports alone."""

    def __init__(self, m, s, k):
        r = s.i_result.p
        mine = s.i_result.valid & (r.op.slot[: SMALL.write_back_bits] == k)
        self.claims = mine & (r.op.kind == Op.CLAIM) & (r.outcome == Outcome.DONE)
        self.decides = mine & (r.op.kind == Op.RELEASE)
        self.told = s.i_claim.valid & (s.i_claim.p.slot[: SMALL.write_back_bits] == k)
        self.flushes = s.i_flushed.valid & (s.i_flushed.p == k)
        self.writes = s.o_write_back.valid & (s.o_write_back.p.token == k)
        self.back = s.i_written_back.valid & (s.i_written_back.p.token == k)
        self.releases = s.o_op.valid & (s.o_op.p.slot == k)
        self.stage = Signal(Stage, name=f"stage{k}")
        self.cool = Signal(range(EvictionSlots.COOL + 1), name=f"cool{k}")
        self.squeue, self.page, self.pool, self.frame, self.mask = (
            Signal.like(Value.cast(of), name=f"{name}{k}")
            for name, of in (
                ("squeue", r.op.squeue),
                ("page", r.op.page),
                ("pool", r.pool),
                ("frame", s.i_claim.p.frame),
                ("mask", s.i_claim.p.line_mask),
            )
        )
        self.dirty, self.spoilt, self.failed = (
            Signal(name=f"{name}{k}") for name in ("dirty", "spoilt", "failed")
        )
        self._moves(m, s, r)

    def _moves(self, m, s, r):
        stage = self.stage
        with m.Switch(stage):
            with m.Case(Stage.FREE):
                with m.If(self.claims):
                    m.d.sync += [
                        stage.eq(Stage.CLAIMED),
                        self.squeue.eq(r.op.squeue),
                        self.page.eq(r.op.page),
                        self.pool.eq(r.pool),
                    ]
            with m.Case(Stage.CLAIMED):
                with m.If(self.told):
                    m.d.sync += [
                        stage.eq(Stage.FOUND),
                        self.frame.eq(s.i_claim.p.frame),
                        self.dirty.eq(s.i_claim.p.dirty),
                        self.mask.eq(Value.cast(s.i_claim.p.line_mask)),
                        self.spoilt.eq(0),
                    ]
            with m.Case(Stage.FOUND):
                with m.If(s.i_error.valid & (s.i_error.p == self.frame)):
                    m.d.sync += self.spoilt.eq(1)
                with m.If(self.flushes):
                    m.d.sync += [
                        stage.eq(Mux(self.dirty & ~self.spoilt, Stage.DIRTY, Stage.DONE)),
                        self.failed.eq(self.spoilt),
                    ]
            with m.Case(Stage.DIRTY):
                with m.If(self.writes & s.o_write_back.ready):
                    m.d.sync += stage.eq(Stage.WRITING)
            with m.Case(Stage.WRITING):
                with m.If(self.back & s.i_written_back.ready):
                    m.d.sync += [stage.eq(Stage.DONE), self.failed.eq(s.i_written_back.p.failed)]
            with m.Case(Stage.DONE):
                with m.If(self.releases & s.o_op.ready):
                    m.d.sync += stage.eq(Stage.RELEASED)
            with m.Case(Stage.RELEASED):
                with m.If(self.decides):
                    m.d.sync += [stage.eq(Stage.COOLING), self.cool.eq(EvictionSlots.COOL)]
            with m.Case(Stage.COOLING):
                m.d.sync += self.cool.eq(self.cool - 1)
                with m.If(self.cool == 1):
                    m.d.sync += stage.eq(Stage.FREE)

    def at(self, page):
        """It works on that page."""
        here = (self.squeue == page.squeue) & (self.page == page.page)
        return (self.stage != Stage.FREE) & here

    def kept(self, s):
        """What others do to it: M3 takes a free slot, and each tells once, in its turn."""
        return [
            ~self.claims | (self.stage == Stage.FREE),
            ~self.told | (self.stage == Stage.CLAIMED),
            ~self.flushes | (self.stage == Stage.FOUND),
            ~self.back | (self.stage == Stage.WRITING),
            ~self.decides | (self.stage == Stage.RELEASED),
        ]

    def promised(self, s):
        write, op = s.o_write_back.p, s.o_op.p
        written = (
            (self.stage == Stage.DIRTY)
            & (write.squeue == self.squeue)
            & (write.page == self.page)
            & (write.frame == self.frame)
            & (Value.cast(write.line_mask) == self.mask)
        )
        released = (
            (self.stage == Stage.DONE)
            & (op.kind == Op.RELEASE)
            & (op.squeue == self.squeue)
            & (op.page == self.page)
            & (op.frame == self.frame)
            & (op.pool == self.pool)
            & (op.written == self.dirty)
            & (op.failed == self.failed)
        )
        return [
            (~self.writes | written, "a write-back out of turn, or of something else"),
            (~self.releases | released, "a RELEASE out of turn, or of something else"),
            ((self.stage != Stage.DONE) | s.o_op.valid, "a RELEASE is owed"),
            ((self.stage != Stage.DIRTY) | s.o_write_back.valid, "a write-back is owed"),
        ]


class EvictionSlotsContract(wiring.Component):
    """See the module."""

    def __init__(self, slots=EvictionSlots):
        self.slots = slots(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.slots = s = self.slots
        free = [s.i_result.valid, s.i_result.payload, s.i_claim.valid, s.i_claim.payload]
        free += [s.i_flushed.valid, s.i_flushed.payload, s.i_error.valid, s.i_error.payload]
        free += [s.i_written_back.valid, s.i_written_back.payload]
        checks = (s.check_victim, s.check_orphan, s.check_scrub)
        free += [s.o_write_back.ready, s.o_op.ready, *(check.page for check in checks)]
        for value in map(Value.cast, free):
            m.d.comb += value.eq(AnySeq(len(value)))
        slots = [_Slot(m, s, k) for k in range(SMALL.write_backs)]
        r = s.i_result.p
        claims = Cat(slot.claims for slot in slots).any()
        again = Cat(slot.at(r.op) for slot in slots).any()
        # Queues beyond the sessions are nobody's.
        lawful = ~s.i_result.valid | (r.op.squeue < SMALL.squeues)
        m.d.comb += [
            Assume(Cat(fact for slot in slots for fact in slot.kept(s)).all()),
            Assume(~claims | ~again),
            Assume(lawful),
            # The frame table takes an op or an error in a cycle, which it asserts.
            Assume(~(s.i_claim.valid & s.i_error.valid)),
        ]
        for slot in slots:
            m.d.comb += [Assert(fact, what) for fact, what in slot.promised(s)]
        for check in checks:
            working = Cat(slot.at(check.page) for slot in slots).any()
            m.d.comb += Assert(check.working == working, "it answers for another page")
        at_rest = Cat(slot.stage == Stage.FREE for slot in slots).all()
        m.d.comb += Assert(s.idle == at_rest)
        first, second = slots
        both = (first.stage == Stage.WRITING) & (second.stage == Stage.DONE)
        m.d.comb += [
            Cover(both),
            Cover(first.releases & first.dirty & ~first.failed),
            Cover(first.releases & first.spoilt & (second.stage == Stage.DIRTY)),
            Cover((first.stage == Stage.COOLING) & (first.cool == 1)),
        ]
        return m
