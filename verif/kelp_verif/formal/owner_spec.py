# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""One owner for each frame, whatever M3 decides: the op table of docs/design.md §3 against the
rules that its clients keep, for the solver, by induction."""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.tracker.decide import Decide, frame_of
from kelp_spec.metadata import Event, Op, Outcome, PageState

from .fifo_specs import SMALL
from .inside import total

__all__ = ["FrameOwnerContract"]


class _Search:
    """What `Orphans` knows of the frame when it RECOVERs it, by the proof `orphans`.

    At some moment (`found`) the frame was in use and not named by its owner's word. Every miss
    entry that had a frame then has flipped since, then no eviction worked on the page (`quiet`),
    and the frame has been given to no other entry and CLAIMed by no eviction. Then a PEEK of its
    owner found it in use and not named (`sure`).

    Parameters
    ----------
    framed : entries that live and have a frame
    flips : the bit of the entry that flips
    moves : the frame is given to an entry, or CLAIMed
    working : an eviction works on the followed page
    unnamed : the op is a PEEK of the frame's owner, whose word does not name it
    ends : the op is its RECOVER
    """

    def __init__(self, m, *, framed, flips, moves, working, unnamed, ends):
        found, self.pending = AnySeq(1), Signal.like(framed, name="pending")
        self.moved, self.searched, self.quiet, self.sure = (
            Signal(init=1, name="moved"),
            Signal(name="searched"),
            Signal(name="quiet"),
            Signal(name="sure"),
        )
        asks = self.quiet & ~self.moved & unnamed & AnySeq(1)
        m.d.sync += [
            self.searched.eq(self.searched | found),
            self.pending.eq(Mux(found, framed, self.pending) & ~flips),
            self.moved.eq((self.moved & ~found) | moves),
            self.quiet.eq(~found & (self.quiet | (self.searched & (self.pending == 0) & ~working))),
            self.sure.eq(~found & ~ends & (self.sure | asks)),
        ]


class FrameOwnerContract(wiring.Component):
    """Of a frame, any one: at every moment it is in exactly one of the pool, a page's word, a miss
    entry, the hands of whoever flushes and then FREEs it, or it is astray because the word that
    named it was uncorrectable, until RECOVER finds it.

    One page, any one, is followed word for word; of the others it is known only whether one of them
    has the frame. The op of a cycle is any op on any page. Assumed, each the promise of another
    block: a pop gives a frame that is in the pool (`free_frames`); a miss id has one owner
    (`free_list`); GRANT and FLIP come for entries that live, FLIP with the frame that the entry was
    given, failed if it has none (`MissBuffer`); one eviction at a time works on a page, and RELEASE
    names what it CLAIMed (`Evictor`); FREE names a frame that was flushed (proof `orphans`);
    RECOVER names a frame of which a search has made sure (`_Search`, proof `orphans`), so that it
    is astray, or one that is its page's in spite of all, which the op table finds out.
    """

    def __init__(self, block=Decide):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.decide = d = self.block
        op, x, result, strobes = d.op, d.context, d.result, d.strobes
        for value in (op.as_value(), x.as_value()):
            m.d.comb += value.eq(AnySeq(len(value)))
        is_op = {kind: Signal(name=f"is_{kind.name.lower()}") for kind in Op}
        m.d.comb += [flag.eq(op.kind == kind) for kind, flag in is_op.items()]
        self._decoded(m, is_op)
        frame, page = AnyConst(SMALL.frame_bits), AnyConst(len(op.squeue) + len(op.page))
        word, mine, holder = Signal(d.word.shape()), Signal(), Signal()
        # `holder`: the op is on that other page which has the frame.
        in_pool, elsewhere, in_miss, in_flush, astray = (
            Signal(init=1),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
        )
        other = Signal(d.word.shape())

        def here(value):
            return (value.state == PageState.RESIDENT) | (value.state == PageState.WRITING_BACK)

        def has(value):
            return here(value) & (value.place == frame)

        def sound(value):
            """Only a COLD word's place has more bits than a frame, or, while FETCHING, than a miss
            id."""
            return (~here(value) | (value.place[SMALL.frame_bits :] == 0)) & (
                (value.state != PageState.FETCHING) | (value.place[SMALL.miss_bits :] == 0)
            )

        m.d.comb += [
            mine.eq((op.squeue == page[: len(op.squeue)]) & (op.page == page[len(op.squeue) :])),
            holder.eq(~mine & elsewhere & AnySeq(1)),
            other.as_value().eq(AnySeq(len(other.as_value()))),
            d.word.eq(Mux(mine, word.as_value(), other.as_value())),
            Assume(mine | (has(other) == holder)),
            Assume(other.state <= PageState.LOST),
            Assume(sound(other)),
            Assert(sound(word)),
        ]
        after = Signal(d.word.shape())
        m.d.comb += after.eq(Mux(strobes.write, result.word.as_value(), d.word.as_value()))
        had, lost = has(d.word) & ~x.uncorrected, has(d.word) & x.uncorrected
        with m.If(mine):
            m.d.sync += word.eq(after)
        with m.Else():
            m.d.sync += elsewhere.eq((elsewhere & ~holder) | has(after))
        in_page = has(word)

        # Miss entries: alive, given a frame, of the followed page; which has ours.
        alive, framed, of_page = Signal(SMALL.misses), Signal(SMALL.misses), Signal(SMALL.misses)
        entry = Signal.like(op.miss)
        this = op.miss
        m.d.comb += [
            Assume(~strobes.take | ~alive.bit_select(x.miss, 1)),
            Assume(
                ~(is_op[Op.GRANT] | is_op[Op.FLIP])
                | (alive.bit_select(this, 1) & (of_page.bit_select(this, 1) == mine))
            ),
            Assume(~is_op[Op.GRANT] | ~framed.bit_select(this, 1)),
            Assume(~is_op[Op.FLIP] | (op.failed != framed.bit_select(this, 1))),
            Assume(
                ~(is_op[Op.FLIP] & ~op.failed)
                | ((op.frame == frame) == (in_miss & (entry == this)))
            ),
        ]
        pops = strobes.pop & (x.frame == frame)
        flipped = is_op[Op.FLIP] & (result.outcome != Outcome.RETRY)
        with m.If(strobes.take):
            m.d.sync += [
                alive.bit_select(x.miss, 1).eq(1),
                framed.bit_select(x.miss, 1).eq(strobes.pop),
                of_page.bit_select(x.miss, 1).eq(mine),
            ]
        with m.If(is_op[Op.GRANT] & strobes.pop):
            m.d.sync += framed.bit_select(this, 1).eq(1)
        with m.If(flipped):
            m.d.sync += alive.bit_select(this, 1).eq(0)
        with m.If(pops & (is_op[Op.GRANT] | is_op[Op.PREFETCH])):
            m.d.sync += [in_miss.eq(1), entry.eq(Mux(is_op[Op.GRANT], this, x.miss))]
        with m.Elif(flipped & in_miss & (entry == this)):
            m.d.sync += in_miss.eq(0)

        # The pool, and who flushes.
        pushes = strobes.push & (op.frame == frame)
        flushes = (
            d.frame_op.valid
            & d.frame_op.p.use
            & (d.frame_op.p.frame == frame)
            & (
                (
                    (is_op[Op.SCRUB] | is_op[Op.RECOVER])
                    & ((result.outcome == Outcome.DONE) | (result.outcome == Outcome.ORPHAN))
                )
                | (is_op[Op.FLIP] & (result.outcome == Outcome.ORPHAN))
            )
        )
        m.d.comb += [
            Assume(~pops | in_pool),
            Assume(~(is_op[Op.FREE] & (op.frame == frame)) | in_flush),
        ]
        m.d.sync += [
            in_pool.eq((in_pool & ~pops) | pushes),
            in_flush.eq((in_flush & ~(is_op[Op.FREE] & pushes)) | flushes),
            astray.eq((astray & ~(is_op[Op.RECOVER] & flushes)) | lost),
        ]
        # Evictions.
        claimed, claimed_frame = Signal(), Signal.like(op.frame)
        with m.If(mine & is_op[Op.CLAIM] & (result.outcome == Outcome.DONE)):
            m.d.sync += [claimed.eq(1), claimed_frame.eq(d.word.place)]
        with m.If(mine & is_op[Op.RELEASE]):
            m.d.sync += claimed.eq(0)
        writing = (d.word.state == PageState.WRITING_BACK) & ~x.uncorrected
        m.d.comb += [
            Assume(~(mine & is_op[Op.CLAIM]) | ~claimed),
            Assume(~(mine & is_op[Op.RELEASE]) | (claimed & (op.frame == claimed_frame))),
            # what is asserted of the followed page
            Assume(mine | ~(is_op[Op.RELEASE] & writing) | (op.frame == d.word.place)),
            Assert(~(mine & is_op[Op.RELEASE] & writing) | (op.frame == d.word.place)),
            Assert(
                (word.state != PageState.WRITING_BACK) | (claimed & (word.place == claimed_frame))
            ),
        ]
        # Recovery.
        under = mine & (word.state == PageState.FETCHING) & (word.place == entry) & ~x.uncorrected
        recovers = is_op[Op.RECOVER] & (op.frame == frame)
        named = has(d.word) & ~x.uncorrected
        # The frame table: in use, and of the op's page.
        owned = ~in_pool & ~in_flush & (~in_page | mine) & (~elsewhere | holder)
        search = _Search(
            m,
            framed=alive & framed,
            flips=Mux(flipped, 1 << this, 0),
            moves=(pops & (is_op[Op.GRANT] | is_op[Op.PREFETCH]))
            | (is_op[Op.CLAIM] & (result.outcome == Outcome.DONE) & (d.word.place == frame)),
            working=claimed,
            unnamed=is_op[Op.PEEK] & owned & ~named,
            ends=recovers,
        )
        m.d.comb += [
            Assume(
                ~recovers
                | search.sure
                | (~x.uncorrected & ((mine & in_page) | holder))
                | (in_miss & under)
            ),
            Assert(~search.sure | (astray & ~(claimed & (claimed_frame == frame)))),
            Assert(~(search.quiet & claimed & (claimed_frame == frame)) | search.moved),
            Assert(~search.quiet | (search.searched & (search.pending == 0))),
            Assert(
                ~(search.searched & in_miss) | search.moved | search.pending.bit_select(entry, 1)
            ),
        ]

        owners = total((in_pool, in_page, elsewhere, in_miss, in_flush, astray), 3)
        m.d.comb += [
            Assert(owners == 1),
            Assert(~in_miss | (alive.bit_select(entry, 1) & framed.bit_select(entry, 1))),
            Assert(~(had & pushes) | ~has(after)),
            Assert(word.state <= PageState.LOST),
        ]
        again = Signal(3)
        m.d.sync += again.eq(
            again
            | (pushes & is_op[Op.RELEASE])
            | ((pushes & is_op[Op.FREE]) << 1)
            | ((is_op[Op.RECOVER] & flushes) << 2)
        )
        m.d.comb += [
            Cover(again[0] & in_page & mine),
            Cover(again[1] & in_page),
            Cover(again[2] & in_pool),
        ]
        return m

    def _decoded(self, m, is_op):
        """What the tracker decodes ahead of M3."""
        d = self.block
        op, x = d.op, d.context
        request = (op.kind == Op.READ) | (op.kind == Op.WRITE)
        m.d.comb += [
            *(
                Assume(x[name] == value)
                for name, value in frame_of(op.kind, x.asks, op.write).items()
            ),
            Assume(x.kinds == 1 << op.kind),
            Assume(x.grants == (is_op[Op.GRANT] & ~op.failed)),
            Assume(x.asks == (request & (x.event == Event.NONE) & ~op.no_memory)),
            *(
                Assume(x.states[s] == Mux(x.uncorrected, s == PageState.LOST, d.word.state == s))
                for s in PageState
            ),
        ]
        m.d.comb += [
            Assume(x.valid),
            Assume(~(x.corrected & x.uncorrected)),
            Assume(~x.can_take | x.can_pop),
            Assume(~x.can_prefetch | x.can_take),
        ]
