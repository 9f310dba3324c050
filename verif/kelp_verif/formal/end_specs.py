# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of the engines that walk: each ends in a bounded number of its own steps, and says for
whom it waits (docs/design.md §11). By induction."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Cover, Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.eviction.closer import Closer
from kelp_hw.eviction.orphans import Orphans
from kelp_spec.metadata import Op, Outcome, PageState

from .fifo_specs import SMALL
from .inside import ends, ongoing, open_up, register

__all__ = ["CloserEnds", "OrphansEnds"]


def _free(m, *values):
    """The solver drives them."""
    for value in values:
        m.d.comb += value.eq(AnySeq(len(value)))


class _Recovery:
    """When `Orphans` may RECOVER a frame, from what it is told, and by no register of its own: what
    the proof `frame_owner` relies on.

    The frame was found in use, its owner the page whose word does not name it. Since then every
    miss entry that had a frame has flipped, then no eviction worked on the page, and then both were
    asked once more: the frame is still in use, its owner that page, and the word does not name it.
    Meanwhile it was given to no other miss entry, and no eviction CLAIMed it.

    Attributes
    ----------
    holders : entries that had a frame when it was found and have not flipped
    quiet : since they have, no eviction worked on the page
    asked, confirmed : PEEKed since then; and answered so
    unnamed : the latest PEEK's word does not name the frame
    moved : a miss entry was given the frame since it was found, or an eviction CLAIMed it
    """

    def __init__(self, m, a, *, found):
        r, owner, op, entries = a.i_result.p, a.i_owner.p, a.o_op.p, SMALL.misses
        peeks = a.o_op.valid & a.o_op.ready & (op.kind == Op.PEEK)
        token = a.layouts.recover_token
        result = a.i_result.valid & (r.op.kind == Op.PEEK) & (r.op.slot == token)
        answer = a.i_owner.valid & (owner.slot == token)
        self.holding, entry, self.told = Signal(entries), Signal(entries), Signal()
        holding, told = self.holding, self.told
        self.holders = Signal(entries)
        self.quiet, self.asked, self.confirmed, self.unnamed, self.moved = (
            Signal(name=name) for name in ("quiet", "asked", "confirmed", "unnamed", "moved")
        )
        flips = a.i_result.valid & (r.op.kind == Op.FLIP) & (r.outcome != Outcome.RETRY)
        given = a.i_result.valid & (
            ((r.op.kind == Op.GRANT) & (r.outcome != Outcome.RETRY))
            | ((r.op.kind == Op.PREFETCH) & (r.outcome == Outcome.MISSED))
        )
        claimed = a.i_result.valid & (r.op.kind == Op.CLAIM) & (r.outcome == Outcome.DONE)
        here = (r.word.state == PageState.RESIDENT) | (r.word.state == PageState.WRITING_BACK)
        m.d.comb += [
            entry.eq(1 << r.miss),
            # M3 decides a PEEK before the frame table answers it, which answers what was asked.
            Assume(~answer | (told & (owner.frame == op.frame))),
        ]
        m.d.sync += [
            holding.eq(Mux(given, holding | entry, Mux(flips, holding & ~entry, holding))),
            self.holders.eq(Mux(found, holding, self.holders) & ~Mux(flips, entry, 0)),
            self.moved.eq((~found & self.moved) | ((given | claimed) & (r.frame == op.frame))),
            self.quiet.eq(~found & (self.quiet | ((self.holders == 0) & ~a.check.working))),
            self.asked.eq(~found & (self.asked | (peeks & self.quiet))),
            told.eq(~peeks & (told | result)),
            self.confirmed.eq(
                ~found
                & ~peeks
                & (
                    self.confirmed
                    | (
                        answer
                        & self.asked
                        & self.unnamed
                        & ~self.moved
                        & owner.in_use
                        & (owner.squeue == a.check.page.squeue)
                        & (owner.page == a.check.page.page)
                    )
                )
            ),
        ]
        with m.If(result):
            m.d.sync += self.unnamed.eq(~(here & (r.word.place == op.frame)))
        self.recovers = a.o_op.valid & (op.kind == Op.RECOVER)
        self.allowed = (
            self.confirmed & (op.squeue == a.check.page.squeue) & (op.page == a.check.page.page)
        )
        m.d.comb += Assert(~self.recovers | self.allowed)


class OrphansEnds(wiring.Component):
    """A search, from its start until the block is idle: at most 13 steps for each frame of the
    device, and 68 for a sweep's beginning. Between them it waits for M0 to take an op, for the
    answer of one, for a place of the event, for the FLIPs of the entries that had a frame when the
    frame in question was found, and for an eviction on its page; for nothing else.

    A frame is RECOVERed by the rules of `_Recovery`. A flushed frame is FREEd once, and no other.
    """

    def __init__(self, block=Orphans):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.orphans = a = self.block
        result, owner, flushed = a.i_result.p.as_value(), a.i_owner.p.as_value(), a.i_flushed
        _free(m, result, a.i_result.valid, owner, a.i_owner.valid, a.check.working)
        _free(m, flushed.p.as_value(), flushed.valid, a.o_free.ready, a.o_op.ready, a.event_taken)
        r, last_frame = a.i_result.p, SMALL.total_frames - 1
        frame, certain, wait = (register(a, name) for name in ("frame", "certain", "wait"))
        untold, full = register(a, "untold"), register(a, "full")

        def at(*states):
            return ongoing(a, *states)

        answered = a.i_owner.valid & (a.i_owner.p.slot == a.layouts.recover_token)
        decided = a.i_result.valid & (r.op.kind == Op.RECOVER)
        recovery = _Recovery(m, a, found=at("HOLDERS"))
        waits = Cat(
            at("TELL", "EVENT") & ~a.event_taken,
            at("PEEK", "PEEK_AGAIN", "RECOVER") & ~a.o_op.ready,
            at("OWNER", "OWNER_AGAIN") & ~answered,
            at("RECOVERED") & ~decided,
            at("MISSES") & recovery.holders.any(),
            at("EVICTION") & a.check.working,
        ).any()
        # What is left to do with the frame at hand, at most.
        left = {"NEXT": 1, "EVENT": 2, "RECOVERED": 3, "RECOVER": 4, "EVICTION": 7, "MISSES": 8}
        left |= {"HOLDERS": 9, "OWNER": 12, "PEEK": 13}
        here = Mux(at("PEEK_AGAIN"), Mux(certain, 6, 11), Mux(certain, 5, 10))
        for state, steps in left.items():
            here = Mux(at(state), steps, here)
        first = at("TELL", "GATHER")
        frames = 13 * (SMALL.total_frames - 1)
        # One more word may find no place, and is told of: then those that wait have begun to leave.
        again = Mux(at("TELL"), 1 + 2 * full, Mux(untold, 2, 2 * full))
        rank = Mux(first, frames + 14 + wait + again, 13 * (last_frame - frame) + here)
        ends(m, a, busy=~at("IDLE"), waits=waits, rank=rank, most=frames + 17 + a.WAIT)
        m.d.comb += [
            # The search asks its page's word and this frame alone, and in turn.
            Assert(~first | ((frame == 0) & (wait <= a.WAIT))),
            Assert(at("IDLE") | (frame <= last_frame)),
            Assert(open_up(a).lost.level <= a.LOST),
            # What the block knows is what `recovery` has seen.
            Assert(~at("OWNER") | ~certain),
            Assert(~at("MISSES", "EVICTION", "RECOVER", "RECOVERED") | certain),
            Assert(~at("MISSES", "EVICTION") | (register(a, "pending") == recovery.holders)),
            Assert(register(a, "holding") == recovery.holding),
            Assert(~at("EVICTION") | (recovery.holders == 0)),
            Assert(register(a, "moved") == recovery.moved),
            Assert(~(at("PEEK_AGAIN", "OWNER_AGAIN") & certain) | recovery.quiet),
            Assert(~(at("OWNER_AGAIN") & certain) | recovery.asked),
            Assert(register(a, "told") == recovery.told),
            Assert(~recovery.told | (register(a, "named") == ~recovery.unnamed)),
            # Flushed frames.
            Assert((a.o_free.valid & a.o_free.ready) == (flushed.valid & flushed.ready)),
            Assert(~a.o_free.valid | (a.o_free.p.frame == flushed.p.frame)),
            Assert(~a.o_free.valid | (a.o_free.p.kind == Op.FREE)),
            Assert(~a.o_op.valid | (a.o_op.p.kind == Op.PEEK) | recovery.recovers),
        ]
        m.d.comb += [
            Cover(recovery.recovers),
            Cover(at("EVENT") & (r.outcome == Outcome.ORPHAN)),
            Cover(at("RECOVERED") & decided & (r.outcome == Outcome.RETRY)),
        ]
        return m


class CloserEnds(wiring.Component):
    """A walk over the pages of a session that closes, until CLOSED has passed M3: a step for each
    page, and five. It waits for M0 to take an op, for the results of its SCRUBs, for the frames
    that they took away to be FREEd, and for CLOSED; for nothing else, and while it offers no op
    only as long as such a result or frame is owed. Another walk begins, 65 steps later, only when
    a SCRUB of the last one was answered RETRY, and no page before the first such one is asked
    again.
    """

    def __init__(self, block=Closer):
        self.block = block(config=SMALL)
        self.block.IN_FLIGHT = 4  # fewer than a session has pages, so that the walk has to wait
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        c = SMALL
        m.submodules.closer = a = self.block
        self._drive(m)
        r, op = a.i_result.p, a.o_op.p
        names = ("session", "squeue", "page", "last_squeue", "last_page", "again", "wait")
        session, squeue, page, last_squeue, last_page, again, wait = (
            register(a, name) for name in names
        )
        again_squeue, again_page = register(a, "again_squeue"), register(a, "again_page")

        def at(*states):
            return ongoing(a, *states)

        # Around it: a result for each SCRUB, of a page that this walk has asked; a FREE for each
        # frame that one took away.
        scrubs = a.i_result.valid & (r.op.kind == Op.SCRUB)
        frees = a.i_result.valid & (r.op.kind == Op.FREE) & (r.op.slot == a.layouts.scrub_token)
        retries = scrubs & (r.outcome == Outcome.RETRY)
        orphans = scrubs & ~retries & (r.old.state == PageState.RESIDENT)
        taken = a.o_op.valid & a.o_op.ready
        owed, unfreed = Signal(6), Signal(6)
        m.d.sync += [
            owed.eq(owed + (taken & (op.kind == Op.SCRUB)) - scrubs),
            unfreed.eq(unfreed + orphans - frees),
        ]
        here, begun, answered = (
            Cat(page, squeue),
            Signal.like(Cat(page, squeue)),
            Cat(r.op.page, r.op.squeue),
        )
        with m.If(at("IDLE", "WAIT")):
            m.d.sync += begun.eq(
                Mux(
                    at("WAIT"),
                    here,
                    Array(k * c.queues * c.pages for k in range(c.sessions))[session],
                )
            )
        m.d.comb += [
            Assume(~scrubs | ((owed != 0) & (answered >= begun) & (r.op.page <= last_page))),
            Assume(~scrubs | (r.op.squeue <= last_squeue)),
            Assume(~(scrubs & at("WALK")) | (answered < here)),
            Assume(~scrubs | (answered == Cat(register(a, "due_page"), register(a, "due_squeue")))),
            Assume(~frees | (unfreed != 0)),
        ]

        waits = Cat(
            at("WALK") & ~taken,
            at("DRAIN") & ((owed != 0) | ((unfreed != 0) & ~again)),
            at("CLOSED") & ~taken,
            at("CLOSING") & Array(s.closing for s in a.sessions)[session],
        ).any()
        walk = (last_squeue - squeue) * c.pages + last_page - page
        rank = Mux(
            at("WAIT"),
            5 + walk + wait,
            Mux(at("WALK"), 4 + walk, Mux(at("DRAIN"), 3, Mux(at("CLOSED"), 2, 1))),
        )
        ends(
            m,
            a,
            busy=~at("IDLE"),
            waits=waits,
            rank=rank,
            most=5 + c.queues * c.pages + a.WAIT,
            again=at("DRAIN") & again,
        )
        retried, started = Signal(), Signal()
        with m.If(at("IDLE") | (at("WAIT") & (wait == 0))):
            m.d.sync += retried.eq(0)
        with m.Elif(retries):
            m.d.sync += retried.eq(1)
        m.d.sync += started.eq(1)
        inside = (page <= last_page) & (squeue <= last_squeue)
        again_inside = (again_page <= last_page) & (again_squeue <= last_squeue)
        m.d.comb += [
            Assert(~again | retried | at("IDLE")),
            Assert(~(at("WALK") & ~a.o_op.valid) | (owed + unfreed != 0)),
            Assert(~at("WAIT", "WALK") | inside),
            Assert(
                ~at("WALK", "DRAIN")
                | ~again
                | (again_inside & (Cat(again_page, again_squeue) >= begun))
            ),
            Assert(~at("WALK", "DRAIN", "WAIT") | (last_page < c.pages)),
            Assert(~at("WALK", "DRAIN", "WAIT") | (last_squeue - begun[c.page_bits :] < c.queues)),
            Assert(~at("WAIT", "WALK") | (here >= begun)),
            Assert(~a.o_op.valid | (op.kind == Op.CLOSED) | (here >= begun)),
            Assert(~at("WAIT") | (wait <= a.WAIT)),
            Assert(started | at("IDLE")),
        ]
        self._in_flight(m, at, owed, unfreed, started)
        m.d.comb += [
            Cover(at("WAIT") & (here != begun)),
            Cover(at("CLOSED") & taken & (last_squeue == c.squeues - 1) & (last_page == 1)),
        ]
        return m

    def _drive(self, m):
        """Inputs, any; a session uses no more than there is."""
        c, a = SMALL, self.block
        _free(m, a.i_result.p.as_value(), a.i_result.valid, a.o_op.ready)
        for k in range(c.sessions):
            _free(m, a.sessions[k].as_value())
            m.d.comb += [
                Assume(a.sessions[k].used_queues <= c.queues),
                Assume(a.sessions[k].used_pages <= c.pages),
            ]

    def _in_flight(self, m, at, owed, unfreed, started):
        """What the block knows of the SCRUBs and frames that it waits for."""
        a, load = self.block, owed + unfreed
        room, offered = register(a, "room"), register(a, "offered")
        m.d.comb += [
            Assert(owed == register(a, "in_flight")),
            Assert(unfreed == register(a, "frames")),
            Assert(~at("IDLE", "CLOSED", "CLOSING") | (load == 0)),
            Assert(~at("WAIT") | (owed == 0)),
            Assert(load <= a.IN_FLIGHT),
            Assert(~(room | offered) | (load < a.IN_FLIGHT)),
            Assert(room | ~started | (load >= a.IN_FLIGHT - 2)),
        ]
