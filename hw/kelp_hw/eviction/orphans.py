# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Frames without a page: frees those that were flushed, and finds those of lost page words (spec
§4, docs/design.md §6). A search goes on in the background, about 10 cycles a frame."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Op, Outcome, PageState

from ..layouts import POOL_BITS
from .signatures import EvictionLayouts, PageCheck

__all__ = ["Orphans"]


class _Search:
    """A search: of one lost page's frame, or a sweep of all frames."""

    def __init__(self, layouts: EvictionLayouts, wait: int):
        config = layouts.config
        self.at = Signal(layouts.page)  #: the page that is asked for
        self.frame = Signal(config.frame_bits)
        self.certain = Signal()  #: none that had the frame then has it still, and
        self.moved = Signal()  #: another may have it since: its page's word may be lost under that
        self.sweeping = Signal()
        self.due = Signal()  #: a sweep is due; its event is not logged yet while `untold`
        self.untold = Signal()
        self.unplaced = Signal(layouts.page)
        self.overflows = Signal()  #: a word is lost that finds no place
        self.wait = Signal(range(wait + 1))


class Orphans(wiring.Component):
    """Answers each flushed frame with FREE, and each uncorrectable page word with a search for the
    frame that it may have had.

    A search PEEKs every frame, one at a time, until it meets one that is in use, whose owner is the
    lost page, and that the page's word does not name. That one is safe to take when every miss
    entry that has a frame by then has flipped, and no eviction works on the page: PEEKed again, it
    is RECOVERed, which flushes and frees it. Latency: about 10 cycles per frame, in the background.

    Up to `LOST` words wait their turn. When one more is lost, all of them become one *sweep*
    (FRAME_SWEEP, with that page), which does the same for every page that owns a frame. One that is
    lost while its sweep is told of is told, too, before it begins; of several in between, the last.
    What a sweep meets while the page is being fetched anew, or what has gone to another miss entry
    or to an eviction while it waited, is left to another sweep, `WAIT` cycles after it. So no lost
    frame stays lost.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_flushed : in, stream of flush
        Frames that are no eviction's.
    i_result : in, always-ready stream of result
    i_owner : in, always-ready stream of frame_owner
    check : out, PageCheck
        Of the page whose frame is searched.
    o_free : out, stream of op (FREE)
    o_op : out, stream of op (PEEK, RECOVER)
    o_event : out, always-ready stream
        FRAME_RECOVERED, FRAME_SWEEP, held until `event_taken`.
    event_taken : in
    idle : out
        No search waits or is under way.
    """

    LOST = 8
    #: No distance of the pipeline: any value is right, and a small one asks M0 more often.
    WAIT = 64

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__(
            {
                "i_flushed": In(stream.Signature(layouts.flush)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "i_owner": In(stream.Signature(layouts.frame_owner, always_ready=True)),
                "check": Out(PageCheck(config)),
                "o_free": Out(stream.Signature(layouts.op)),
                "o_op": Out(stream.Signature(layouts.op)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "event_taken": In(1),
                "idle": Out(1),
            }
        )

    def _pool_of(self, m, frame):
        value = Signal(POOL_BITS)
        for p in range(1, len(POOLS)):
            with m.If(frame >= self.config.pool_first_frame[p]):
                m.d.comb += value.eq(p)
        return value

    def _free_flushed(self, m):
        free = self.o_free.payload
        m.d.comb += [
            self.o_free.valid.eq(self.i_flushed.valid),
            self.i_flushed.ready.eq(self.o_free.ready),
            free.kind.eq(Op.FREE),
            free.frame.eq(self.i_flushed.payload.frame),
            free.slot.eq(self.i_flushed.payload.token),
            free.pool.eq(self._pool_of(m, self.i_flushed.payload.frame)),
        ]

    def _holders(self, m, *, wait):
        """Bits of the miss entries that a search waits for: with `wait` those that have a frame.
        Any of them may have the frame in question. One without a frame is not waited for: it may
        wait for this one. And whether a result gives a miss entry a frame."""
        r, count = self.i_result.p, self.config.misses
        holding, pending, entry = Signal(count), Signal(count), Signal(count)
        flipped, given = Signal(), Signal()
        m.d.comb += [
            entry.eq(1 << r.miss),
            flipped.eq(self.i_result.valid & (r.op.kind == Op.FLIP) & (r.outcome != Outcome.RETRY)),
            given.eq(
                self.i_result.valid
                & (
                    ((r.op.kind == Op.GRANT) & (r.outcome != Outcome.RETRY))
                    | ((r.op.kind == Op.PREFETCH) & (r.outcome == Outcome.MISSED))
                )
            ),
        ]
        with m.If(given):
            m.d.sync += holding.eq(holding | entry)
        with m.If(flipped):
            m.d.sync += [holding.eq(holding & ~entry), pending.eq(pending & ~entry)]
        # One that is given a frame in this cycle has another one than that in question.
        with m.If(wait):
            m.d.sync += pending.eq(holding & ~Mux(flipped, entry, 0))
        return pending, given

    def _peeked(self, m, frame):
        """Of the latest PEEK: the page's word names the frame; the page is being fetched."""
        r, named, fetching = self.i_result.p, Signal(), Signal()
        with m.If(
            self.i_result.valid & (r.op.kind == Op.PEEK) & (r.op.slot == self.layouts.recover_token)
        ):
            here = (r.word.state == PageState.RESIDENT) | (r.word.state == PageState.WRITING_BACK)
            m.d.sync += [
                named.eq(here & (r.word.place == frame)),
                fetching.eq(r.word.state == PageState.FETCHING),
            ]
        return named, fetching

    def _offered(self, m, at, frame):
        """PEEK, of page `at` and of `frame`, and FRAME_RECOVERED, unless a state says otherwise."""
        op = self.o_op.payload
        m.d.comb += [
            op.kind.eq(Op.PEEK),
            op.squeue.eq(at.squeue),
            op.page.eq(at.page),
            op.frame.eq(frame),
            op.slot.eq(self.layouts.recover_token),
            op.pool.eq(self._pool_of(m, frame)),
            self.o_event.p.code.eq(Event.FRAME_RECOVERED),
            self.o_event.p.squeue.eq(at.squeue),
            self.o_event.p.page.eq(at.page),
        ]
        return op

    def elaborate(self, platform):
        m = Module()
        self._free_flushed(m)
        search = _Search(self.layouts, self.WAIT)
        self._lost(m, search)
        certain, moved, wait_for_holders = search.certain, search.moved, Signal()
        pending, given = self._holders(m, wait=wait_for_holders)
        named, fetching = self._peeked(m, search.frame)
        op = self._offered(m, search.at, search.frame)
        with m.FSM():
            self._begin(m, search)
            self._ask(m, search, named, fetching)
            with m.State("HOLDERS"):
                m.d.comb += wait_for_holders.eq(1)
                m.d.sync += [certain.eq(1), moved.eq(0)]
                m.next = "MISSES"
            with m.State("MISSES"):
                with m.If(~pending.any()):
                    m.next = "EVICTION"
            with m.State("EVICTION"):
                with m.If(~self.check.working):
                    m.next = "PEEK_AGAIN"
            self._recover(m, search, op)
        r = self.i_result.p
        claimed = self.i_result.valid & (r.op.kind == Op.CLAIM) & (r.outcome == Outcome.DONE)
        with m.If((given | claimed) & (r.frame == search.frame)):
            m.d.sync += moved.eq(1)
        return m

    def _lost(self, m: Module, search: _Search) -> None:
        """Lost words wait in a FIFO. One that finds no place there makes a sweep due, and one
        event."""
        r, where = self.i_result.p, self.layouts.page
        m.submodules.lost = lost = fifo.SyncFIFO(
            width=self.config.squeue_bits + self.config.page_bits, depth=self.LOST
        )
        new = Signal(where)
        m.d.comb += [
            new.squeue.eq(r.op.squeue),
            new.page.eq(r.op.page),
            lost.w_data.eq(new),
            lost.w_en.eq(self.i_result.valid & r.uncorrected),
            self.check.page.eq(search.at),
        ]
        full = Signal()
        m.d.comb += [full.eq(~lost.w_rdy), search.overflows.eq(lost.w_en & full)]
        with m.If(search.overflows):
            m.d.sync += [search.due.eq(1), search.untold.eq(1), search.unplaced.eq(new)]

    def _begin(self, m: Module, search: _Search) -> None:
        """States until the first PEEK of a search or a sweep."""
        lost, due, frame, wait = m.submodules.lost, search.due, search.frame, search.wait
        untold = search.untold
        with m.State("IDLE"):
            m.d.comb += self.idle.eq(~lost.r_rdy & ~due & ~self.i_flushed.valid)
            m.d.sync += [frame.eq(0), search.sweeping.eq(0), wait.eq(self.WAIT)]
            # Not without a word: what the FIFO's memory holds is from before a reset.
            with m.If(lost.r_rdy):
                m.d.sync += search.at.eq(lost.r_data)
            with m.If(due):
                m.next = "GATHER"
                with m.If(untold):
                    m.next = "TELL"
            with m.Elif(lost.r_rdy):
                m.d.comb += lost.r_en.eq(1)
                m.next = "PEEK"
        with m.State("TELL"):
            m.d.comb += [
                self.o_event.valid.eq(1),
                self.o_event.p.code.eq(Event.FRAME_SWEEP),
                self.o_event.p.squeue.eq(search.unplaced.squeue),
                self.o_event.p.page.eq(search.unplaced.page),
            ]
            # The sweep finds the frames of those that wait, too. So one more word at most finds no
            # place from here on.
            m.d.comb += lost.r_en.eq(1)
            with m.If(self.event_taken):
                m.d.sync += untold.eq(search.overflows)
                with m.If(~search.overflows):
                    m.next = "GATHER"
        with m.State("GATHER"):
            m.d.comb += lost.r_en.eq(1)
            with m.If(untold):
                m.next = "TELL"
            with m.Else():
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.d.sync += [search.sweeping.eq(1), due.eq(search.overflows)]
                    m.next = "PEEK"

    def _ask(self, m: Module, search: _Search, named: Signal, fetching: Signal) -> None:
        """States that ask the frame's owner, and its page, for the first time and again when the
        frame is `certain`."""
        at, certain, owner = search.at, search.certain, self.i_owner.p
        owned, answered = Signal(), Signal()
        m.d.comb += [
            answered.eq(self.i_owner.valid & (owner.slot == self.layouts.recover_token)),
            owned.eq(owner.in_use & (owner.squeue == at.squeue) & (owner.page == at.page)),
        ]
        # Of one PEEK, M3's word and then the frame table's: no answer stands for another frame.
        r, told, started = self.i_result.p, Signal(), Signal()
        m.d.sync += [
            started.eq(1),  # before the first clock edge inputs mean nothing
            told.eq(
                ~(self.o_op.valid & self.o_op.ready & (self.o_op.p.kind == Op.PEEK))
                & (
                    told
                    | (
                        self.i_result.valid
                        & (r.op.kind == Op.PEEK)
                        & (r.op.slot == self.layouts.recover_token)
                    )
                )
            ),
            Assert(
                ~started | ~answered | (told & (owner.frame == search.frame)),
                "an owner is told that was not asked for",
            ),
        ]
        with m.State("PEEK"):
            m.d.comb += self.o_op.valid.eq(1)
            m.d.sync += certain.eq(0)
            with m.If(self.o_op.ready):
                m.next = "OWNER"
        with m.State("OWNER"):
            with m.If(answered):
                m.next = "NEXT"
                with m.If(search.sweeping & owner.in_use):
                    m.d.sync += [at.squeue.eq(owner.squeue), at.page.eq(owner.page)]
                    m.next = "PEEK_AGAIN"
                with m.Elif(owned & ~named):
                    m.next = "HOLDERS"
        with m.State("PEEK_AGAIN"):
            m.d.comb += self.o_op.valid.eq(1)
            with m.If(self.o_op.ready):
                m.next = "OWNER_AGAIN"
        with m.State("OWNER_AGAIN"):
            with m.If(answered):
                m.next = "NEXT"
                with m.If(owned & ~named & (fetching | (certain & search.moved))):
                    m.d.sync += search.due.eq(1)
                with m.Elif(owned & ~named):
                    m.next = "HOLDERS"
                    with m.If(certain):
                        m.next = "RECOVER"

    def _recover(self, m: Module, search: _Search, op) -> None:
        """States that take the frame, tell of it, and go on to the next one."""
        r = self.i_result.p
        with m.State("RECOVER"):
            m.d.comb += [op.kind.eq(Op.RECOVER), self.o_op.valid.eq(1)]
            with m.If(self.o_op.ready):
                m.next = "RECOVERED"
        with m.State("RECOVERED"):
            with m.If(self.i_result.valid & (r.op.kind == Op.RECOVER)):
                m.next = "NEXT"
                with m.If(r.outcome == Outcome.ORPHAN):
                    m.next = "EVENT"
                with m.Elif(r.outcome == Outcome.RETRY):
                    m.d.sync += search.due.eq(1)
        with m.State("NEXT"):
            m.d.sync += search.frame.eq(search.frame + 1)
            m.next = "PEEK"
            with m.If(search.frame == self.config.total_frames - 1):
                m.next = "IDLE"
        with m.State("EVENT"):
            m.d.comb += self.o_event.valid.eq(1)
            with m.If(self.event_taken):
                m.next = "IDLE"
                with m.If(search.sweeping):
                    m.next = "NEXT"
