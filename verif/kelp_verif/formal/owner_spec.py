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


class _Frame:
    """The followed frame, and who owns it: one of six."""

    def __init__(self):
        self.number = AnyConst(SMALL.frame_bits)
        self.in_pool = Signal(init=1)
        self.elsewhere = Signal()  #: a page that is not followed has it
        self.in_miss = Signal()
        self.in_flush = Signal()
        self.astray = Signal()

    def is_named(self, word):
        """A page's word has it."""
        return _has_frame(word) & (word.place == self.number)


class _Page:
    """The followed page and the op's."""

    def __init__(self, op, word_shape):
        self.number = AnyConst(len(op.squeue) + len(op.page))
        self.word = Signal(word_shape)
        self.mine = Signal()  #: the op is on the followed page
        self.holder = Signal()  #: the op is on that other page which has the frame
        self.after = Signal(word_shape)  #: what the op leaves of its page's word
        self.claimed = Signal()  #: an eviction works on the followed page
        self.claimed_frame = Signal.like(op.frame)


class _Misses:
    """Miss entries: alive, given a frame, of the followed page; which has ours."""

    def __init__(self, op):
        self.alive, self.framed, self.of_page = (Signal(SMALL.misses) for _ in range(3))
        self.entry = Signal.like(op.miss)


def _has_frame(word):
    return (word.state == PageState.RESIDENT) | (word.state == PageState.WRITING_BACK)


def _is_sound(word):
    """Only a COLD word's place has more bits than a frame, or, while FETCHING, than a miss id."""
    return (~_has_frame(word) | (word.place[SMALL.frame_bits :] == 0)) & (
        (word.state != PageState.FETCHING) | (word.place[SMALL.miss_bits :] == 0)
    )


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
        for value in (d.op.as_value(), d.context.as_value()):
            m.d.comb += value.eq(AnySeq(len(value)))
        is_op = {kind: Signal(name=f"is_{kind.name.lower()}") for kind in Op}
        m.d.comb += [flag.eq(d.op.kind == kind) for kind, flag in is_op.items()]
        self._decoded(m, is_op)
        frame, page, misses = _Frame(), _Page(d.op, d.word.shape()), _Misses(d.op)
        had = self._words(m, frame, page)
        flipped = self._misses(m, is_op, frame, page, misses)
        pushes, flushes = self._pool(m, is_op, frame)
        self._evictions(m, is_op, page)
        lost = frame.is_named(d.word) & d.context.uncorrected
        m.d.sync += frame.astray.eq((frame.astray & ~(is_op[Op.RECOVER] & flushes)) | lost)
        self._recovery(m, is_op, frame, page, misses, flipped)
        in_page = frame.is_named(page.word)
        owners = (
            frame.in_pool,
            in_page,
            frame.elsewhere,
            frame.in_miss,
            frame.in_flush,
            frame.astray,
        )
        m.d.comb += [
            Assert(total(owners, 3) == 1),
            Assert(~(had & pushes) | ~frame.is_named(page.after)),
            Assert(page.word.state <= PageState.LOST),
        ]
        again = Signal(3)
        m.d.sync += again.eq(
            again
            | (pushes & is_op[Op.RELEASE])
            | ((pushes & is_op[Op.FREE]) << 1)
            | ((is_op[Op.RECOVER] & flushes) << 2)
        )
        m.d.comb += [
            Cover(again[0] & in_page & page.mine),
            Cover(again[1] & in_page),
            Cover(again[2] & frame.in_pool),
        ]
        return m

    def _words(self, m, frame, page):
        """Of the followed page the word, of the others whether one has the frame. Returns whether
        the op's page had it."""
        d, op, word, mine = self.block, self.block.op, page.word, page.mine
        squeue, other = page.number[: len(op.squeue)], Signal(d.word.shape())
        m.d.comb += [
            mine.eq((op.squeue == squeue) & (op.page == page.number[len(op.squeue) :])),
            page.holder.eq(~mine & frame.elsewhere & AnySeq(1)),
            other.as_value().eq(AnySeq(len(other.as_value()))),
            d.word.eq(Mux(mine, word.as_value(), other.as_value())),
            Assume(mine | (frame.is_named(other) == page.holder)),
            Assume(other.state <= PageState.LOST),
            Assume(_is_sound(other)),
            Assert(_is_sound(word)),
            page.after.eq(Mux(d.strobes.write, d.result.word.as_value(), d.word.as_value())),
        ]
        had, uncorrected = frame.is_named(d.word), d.context.uncorrected
        with m.If(mine):
            m.d.sync += word.eq(page.after)
        with m.Else():
            m.d.sync += frame.elsewhere.eq(
                (frame.elsewhere & ~page.holder) | frame.is_named(page.after)
            )
        return had & ~uncorrected

    def _misses(self, m, is_op, frame, page, misses):
        """Miss entries. Returns whether one flips."""
        d, op, x, strobes = self.block, self.block.op, self.block.context, self.block.strobes
        alive, framed, of_page, entry = misses.alive, misses.framed, misses.of_page, misses.entry
        this, mine, in_miss = op.miss, page.mine, frame.in_miss
        word, its = page.word, page.word.place[: SMALL.miss_bits]
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
                | ((op.frame == frame.number) == (in_miss & (entry == this)))
            ),
            Assert(~in_miss | (alive.bit_select(entry, 1) & framed.bit_select(entry, 1))),
            # So a request that parks on a page does so on an entry of that page.
            Assert((word.state != PageState.FETCHING) | (alive & of_page).bit_select(its, 1)),
        ]
        flipped = is_op[Op.FLIP] & (d.result.outcome != Outcome.RETRY)
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
        with m.If(self._pops(frame) & (is_op[Op.GRANT] | is_op[Op.PREFETCH])):
            m.d.sync += [in_miss.eq(1), entry.eq(Mux(is_op[Op.GRANT], this, x.miss))]
        with m.Elif(flipped & in_miss & (entry == this)):
            m.d.sync += in_miss.eq(0)
        return flipped

    def _pops(self, frame):
        return self.block.strobes.pop & (self.block.context.frame == frame.number)

    def _pool(self, m, is_op, frame):
        """The pool, and who flushes. Returns whether the frame goes back to it, and whether it is
        to be flushed."""
        d, op, outcome = self.block, self.block.op, self.block.result.outcome
        pops, pushes = self._pops(frame), d.strobes.push & (op.frame == frame.number)
        flushes = (
            d.frame_op.valid
            & d.frame_op.p.use
            & (d.frame_op.p.frame == frame.number)
            & (
                (
                    (is_op[Op.SCRUB] | is_op[Op.RECOVER])
                    & ((outcome == Outcome.DONE) | (outcome == Outcome.ORPHAN))
                )
                | (is_op[Op.FLIP] & (outcome == Outcome.ORPHAN))
            )
        )
        m.d.comb += [
            Assume(~pops | frame.in_pool),
            Assume(~(is_op[Op.FREE] & (op.frame == frame.number)) | frame.in_flush),
        ]
        m.d.sync += [
            frame.in_pool.eq((frame.in_pool & ~pops) | pushes),
            frame.in_flush.eq((frame.in_flush & ~(is_op[Op.FREE] & pushes)) | flushes),
        ]
        return pushes, flushes

    def _evictions(self, m, is_op, page):
        """One works on a page at a time, and releases what it claimed."""
        d, op, word, mine = self.block, self.block.op, page.word, page.mine
        claimed, claimed_frame = page.claimed, page.claimed_frame
        with m.If(mine & is_op[Op.CLAIM] & (d.result.outcome == Outcome.DONE)):
            m.d.sync += [claimed.eq(1), claimed_frame.eq(d.word.place)]
        with m.If(mine & is_op[Op.RELEASE]):
            m.d.sync += claimed.eq(0)
        writing = (d.word.state == PageState.WRITING_BACK) & ~d.context.uncorrected
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

    def _recovery(self, m, is_op, frame, page, misses, flipped):
        """RECOVER comes for a frame of which a search has made sure, or for its page's own."""
        d, op, x, word, mine = self.block, self.block.op, self.block.context, page.word, page.mine
        entry, claimed, in_page = misses.entry, page.claimed, frame.is_named(page.word)
        under = mine & (word.state == PageState.FETCHING) & (word.place == entry) & ~x.uncorrected
        recovers = is_op[Op.RECOVER] & (op.frame == frame.number)
        named = frame.is_named(d.word) & ~x.uncorrected
        # The frame table: in use, and of the op's page.
        in_use = ~frame.in_pool & ~frame.in_flush
        owned = in_use & (~in_page | mine) & (~frame.elsewhere | page.holder)
        search = _Search(
            m,
            framed=misses.alive & misses.framed,
            flips=Mux(flipped, 1 << op.miss, 0),
            moves=(self._pops(frame) & (is_op[Op.GRANT] | is_op[Op.PREFETCH]))
            | (
                is_op[Op.CLAIM]
                & (d.result.outcome == Outcome.DONE)
                & (d.word.place == frame.number)
            ),
            working=claimed,
            unnamed=is_op[Op.PEEK] & owned & ~named,
            ends=recovers,
        )
        works_on_it = claimed & (page.claimed_frame == frame.number)
        m.d.comb += [
            Assume(
                ~recovers
                | search.sure
                | (~x.uncorrected & ((mine & in_page) | page.holder))
                | (frame.in_miss & under)
            ),
            Assert(~search.sure | (frame.astray & ~works_on_it)),
            Assert(~(search.quiet & works_on_it) | search.moved),
            Assert(~search.quiet | (search.searched & (search.pending == 0))),
            Assert(
                ~(search.searched & frame.in_miss)
                | search.moved
                | search.pending.bit_select(entry, 1)
            ),
        ]

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
