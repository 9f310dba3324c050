# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Miss buffer: every page that is being fetched or waits for a frame, the requests parked on it,
and the ops that bring it home (docs/design.md §5). One op a cycle; FILL follows `i_fetched` after 5
cycles when no other entry is brought home."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import MissKind, Op, Outcome, PageState, PrefetchSource

from ..layouts import POOL_BITS, TIME_BITS, Layouts, code_shape
from ..lib.free_list import FreeList
from ..lib.protected import BlockFault, Fault, ProtectedFifo, ProtectedMemory, gather, used
from ..pipeline import RESERVE
from ..tracker.signatures import count_bits
from .grants import MissGrants
from .park_lists import ParkLists

__all__ = ["MissBuffer"]

#: Fields of a request that wait with it for its page.
_PARKED = ("kv_line", "write", "partial", "poison", "has_write", "write_slot", "origin")


class MissBuffer(wiring.Component):
    """Watches what M3 decides and answers with GRANT, FILL, REPLAY and FLIP until no request is
    parked and no page fetching (spec §4).

    Latency: `LATENCY` cycles from `i_fetched` to FILL when no other entry is brought home. One op
    in each cycle (`INTERVAL`); a visit costs its replays and about twelve cycles (the pipeline's
    latency is waited for once per FLIP).

    An entry lives from the MISSED that takes its id to the FLIP that is DONE (or ORPHAN: its page
    was lost meanwhile, the frame is flushed under `orphan_token`):

    - DEMAND: GRANT → `o_fetch` → `i_fetched` → FILL → REPLAY of each parked request in order →
      FLIP; RETRY of the FLIP means that more have parked, which are replayed before the next FLIP.
      PREFETCH starts with its frame at `o_fetch`; each request that parks raises it (`o_raise`).
      ALLOCATE skips the fetch.
    - An entry that gets no frame in `starve_limit` cycles: GRANT, REPLAY and FLIP with `failed`. A
      read is answered with poison; a write is dropped and answered with Cmp. FLIP has `lost` too
      when a write was dropped or the page was lost before.

    While an entry is drained that has had a page's worth of replays or a RETRY, `ready` is low, so
    that requests cannot park faster than they leave.

    Errors: a MISSED under an id that is not free, a FLIP of another entry than the one that is
    brought home (asserted).

    Parameters
    ----------
    config : Config
    margin : int
        Park places that `ready` promises: as many as requests can pass M0 before the first of them
        is counted here, which takes seven cycles.

    Members
    -------
    i_result : in, always-ready stream of result
    o_miss_free : out, stream of miss ids
        M3 uses one with each MISSED, in this order.
    ready : out
        `margin` park places are free, and no drained entry holds requests back.
    pool_free : in, four counts
        Free frames of each pool.
    o_op : out, stream of op
    line_mask_address : in, miss id
    line_mask_data : out, a cycle later
        The line masks that came with that entry's page; zeros when nothing was fetched.
    o_fetch : out, always-ready stream of fetch
        To the cold-tier scheduler, as are the next two.
    o_raise : out, always-ready stream of miss id
        A request waits for a page that is prefetched.
    i_fetched : in, stream of fetched
    now, starve_limit : in
        The time base; cycles after which an entry that has no frame is given up.
    idle : out
        No entry is alive and no op is waiting.
    quiet : out
        Nothing here will change but by time, a free frame or the cold tier.
    starving : out
        An entry waits for a frame, and no entry that waits can have one.
    fault : out, BlockFault
        Of every memory here. What is beyond repair cannot be rebuilt: nobody else knows which page
        an entry is, which frame it has, who waits for it.
    """

    LATENCY = 5
    INTERVAL = 1

    def __init__(self, *, config: Config, margin: int = RESERVE):
        if (
            not isinstance(margin, int)
            or isinstance(margin, bool)
            or not 1 <= margin <= config.parked
        ):
            raise ValueError(f"margin = {margin!r} is refused; legal: 1 … {config.parked} (parked)")
        c = self.config = config
        self.margin = margin
        layouts = self.layouts = Layouts(config)
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "o_miss_free": Out(stream.Signature(c.miss_bits)),
                "ready": Out(1),
                "pool_free": In(data.ArrayLayout(count_bits(c), len(POOLS))),
                "o_op": Out(stream.Signature(layouts.op)),
                "line_mask_address": In(c.miss_bits),
                "line_mask_data": Out(layouts.line_mask),
                "o_fetch": Out(stream.Signature(layouts.fetch, always_ready=True)),
                "o_raise": Out(stream.Signature(c.miss_bits, always_ready=True)),
                "i_fetched": In(stream.Signature(layouts.fetched)),
                "now": In(TIME_BITS),
                "starve_limit": In(TIME_BITS),
                "idle": Out(1),
                "quiet": Out(1),
                "starving": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, S = self.config, data.StructLayout
        row_layout = S(
            {
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "pool": POOL_BITS,
                "kind": code_shape(MissKind),
                "lost": 1,
                "source": code_shape(PrefetchSource),
            }
        )
        parked_layout = S({name: self.layouts.op[name].shape for name in _PARKED})
        done_layout = S({"miss": c.miss_bits, "failed": 1, "starved": 1})

        m.submodules.ids = ids = FreeList(count=c.misses, protect=c.protect)
        m.submodules.lists = lists = ParkLists(
            lists=c.misses, nodes=c.parked, shape=parked_layout, protect=c.protect
        )
        m.submodules.grants = grants = MissGrants(config=c)
        memory = {"depth": c.misses, "protect": c.protect}
        m.submodules.rows = ProtectedMemory(shape=row_layout, **memory)
        m.submodules.frames = ProtectedMemory(shape=c.frame_bits, **memory)
        m.submodules.line_masks = line_masks = ProtectedMemory(
            shape=self.layouts.line_mask, **memory
        )
        # Entries ready to be filled; each at most once, one more place because a buffered FIFO is
        # full for a cycle while a word moves to its output.
        m.submodules.landed = landed = ProtectedFifo(
            shape=done_layout, depth=c.misses + 1, protect=c.protect
        )

        m.d.comb += self.starving.eq(grants.starving)
        decided = self.i_result.p.op
        created, granted = self._hear(m)
        # Entries land by a completion, or without one: M3's result cannot wait, the completion can.
        clear = Signal()
        at_once, arrival = Signal(), Signal(done_layout)
        m.d.comb += [
            at_once.eq(granted & (decided.failed | (decided.miss_kind == MissKind.ALLOCATE))),
            self.i_fetched.ready.eq(~at_once & ~clear),
            arrival.miss.eq(Mux(at_once, decided.miss, self.i_fetched.payload.miss)),
            arrival.failed.eq(~at_once & self.i_fetched.payload.failed),
            arrival.starved.eq(at_once & decided.failed),
            landed.w_data.eq(arrival),
            landed.w_en.eq(at_once | (self.i_fetched.valid & self.i_fetched.ready)),
            line_masks.read_en.eq(1),
            line_masks.read_address.eq(self.line_mask_address),
            self.line_mask_data.eq(line_masks.read_data),
        ]

        done = landed.r_data
        op, op_valid, op_taken = Signal(self.layouts.op), Signal(), Signal()
        draining, resting, begins, opens = self._bring_home(m, done, op, op_valid, op_taken, clear)
        self._faults(m, done, begins, opens)

        # GRANT first: it starts 25 µs of waiting, a replay ends them.
        free_output = ~self.o_op.valid | self.o_op.ready
        m.d.comb += [
            grants.o_op.ready.eq(free_output),
            op_taken.eq(op_valid & free_output & ~grants.o_op.valid),
        ]
        with m.If(free_output):
            m.d.sync += [
                self.o_op.valid.eq(grants.o_op.valid | op_valid),
                self.o_op.payload.eq(Mux(grants.o_op.valid, grants.o_op.payload, op)),
            ]

        just_decided, alive = Signal(), Signal(range(c.misses + 1))
        m.d.sync += just_decided.eq(self.i_result.valid)
        m.d.comb += [
            self.ready.eq((lists.level >= self.margin) & ~draining),
            self.idle.eq((alive == 0) & ~self.o_op.valid & ~self.i_result.valid & ~just_decided),
            self.quiet.eq(
                resting
                & grants.quiet
                & ~self.o_op.valid
                & ~self.i_fetched.valid
                & ~self.i_result.valid
                & ~just_decided
            ),
        ]

        flipped = self.i_result.valid & (decided.kind == Op.FLIP)
        wrong_flip = Signal()
        m.d.sync += [
            alive.eq(alive + created - (flipped & ids.i.valid)),
            wrong_flip.eq(flipped & (decided.miss != done.miss)),
        ]
        m.d.comb += [
            Assert(landed.w_rdy | ~landed.w_en),
            Assert(~wrong_flip),
        ]
        lost = Signal()  # a row beyond repair: what it says of an entry is no longer to be trusted
        m.d.sync += lost.eq(lost | self.fault.fatal)
        self._lives(m, created, lost | self.fault.fatal)
        self._left(m, lost)
        return m

    def _lives(self, m, created, lost):
        """Whoever names an entry names one that lives, and who makes one takes an id that nobody
        has."""
        r, decided, ids = self.i_result.p, self.i_result.p.op, m.submodules.ids
        lives, mine, started = Signal(self.config.misses), Signal(), Signal()
        kinds = (Op.GRANT, Op.FILL, Op.REPLAY, Op.FLIP)
        m.d.comb += mine.eq(self.i_result.valid & Cat(decided.kind == kind for kind in kinds).any())
        with m.If(created):
            m.d.sync += lives.bit_select(r.miss, 1).eq(1)
        with m.If(ids.i.valid):
            m.d.sync += lives.bit_select(ids.i.p, 1).eq(0)

        def one(miss):
            return lives.bit_select(miss, 1)

        parks = self.i_result.valid & (r.outcome == Outcome.PARKED)
        m.d.sync += [
            started.eq(1),  # before the first clock edge inputs mean nothing
            *(
                Assert(~started | lost | holds, what)
                for holds, what in (
                    (~created | ~one(r.miss), "a page misses under an id in use"),
                    (~parks | one(r.miss), "a request parks on no entry"),
                    (~mine | one(decided.miss), "an op of no entry"),
                )
            ),
        ]

    def _left(self, m, lost):
        """Of what has come home nothing stays. A node counts as free two cycles after it left its
        list; a lost row keeps some."""
        rests = Signal(2)
        all_free = m.submodules.lists.level == self.config.parked
        m.d.sync += [
            rests.eq(Cat(self.idle, rests)),
            Assert(
                ~(self.idle & rests.all()) | lost | all_free,
                "a place of a request that waited is not given back",
            ),
        ]

    def _faults(self, m, done, begins, opens):
        """Gathers `fault`. `begins`: the entry `done` is not visited yet; `opens`: its row has just
        been read."""
        ids, lists, grants = m.submodules.ids, m.submodules.lists, m.submodules.grants
        rows, frames, line_masks = m.submodules.rows, m.submodules.frames, m.submodules.line_masks
        own, line_mask_fault = Signal(BlockFault), Signal(Fault)
        # The frame stage reads the visited entry's line mask with each of its ops and takes it from
        # the FILL: the row counts as soon as there may be one, and is counted once. Before, it may
        # be another entry's, and an entry that has no FILL has none.
        visited, counted = Signal(), Signal()
        m.d.sync += [
            visited.eq(~(begins | opens | done.starved) & (self.line_mask_address == done.miss)),
            counted.eq(~begins & (counted | (visited & line_masks.fault.corrected))),
        ]
        m.d.comb += [
            line_mask_fault.corrected.eq(visited & line_masks.fault.corrected & ~counted),
            line_mask_fault.uncorrected.eq(visited & line_masks.fault.uncorrected),
        ]
        gather(
            m,
            own,
            ids.fault,
            lists.fault,
            m.submodules.landed.fault,
            used(rows.fault, opens),
            used(frames.fault, opens),
            line_mask_fault,
        )
        m.d.comb += [
            self.fault.corrected.eq(own.corrected | grants.fault.corrected),
            self.fault.fatal.eq(own.fatal | grants.fault.fatal),
        ]

    def _hear(self, m):
        """What M3 decided: an entry, a parked request, a frame. Returns the first and the last."""
        ids, lists, grants = m.submodules.ids, m.submodules.lists, m.submodules.grants
        rows, frames = m.submodules.rows, m.submodules.frames
        r, decided = self.i_result.p, self.i_result.p.op
        demand = (decided.kind == Op.READ) | (decided.kind == Op.WRITE)
        created, parked, granted, given = Signal(), Signal(), Signal(), Signal()
        row = rows.write_data
        m.d.comb += [
            created.eq(self.i_result.valid & (r.outcome == Outcome.MISSED)),
            parked.eq(
                self.i_result.valid
                & demand
                & ((r.outcome == Outcome.MISSED) | (r.outcome == Outcome.PARKED))
            ),
            granted.eq(
                self.i_result.valid & (decided.kind == Op.GRANT) & (r.outcome == Outcome.DONE)
            ),
            given.eq(granted & ~decided.failed),
            self.o_miss_free.valid.eq(ids.o.valid),
            self.o_miss_free.payload.eq(ids.o.payload),
            ids.o.ready.eq(self.o_miss_free.ready),
            rows.write_en.eq(created),
            rows.write_address.eq(r.miss),
            row.session.eq(decided.session),
            row.squeue.eq(decided.squeue),
            row.page.eq(decided.page),
            row.pool.eq(r.pool),
            row.kind.eq(
                Mux(
                    ~demand,
                    MissKind.PREFETCH,
                    Mux(r.old.state == PageState.COLD, MissKind.DEMAND, MissKind.ALLOCATE),
                )
            ),
            row.lost.eq(r.old.state == PageState.LOST),
            row.source.eq(Mux(demand, PrefetchSource.NONE, decided.source)),
            frames.write_en.eq(created | given),
            frames.write_address.eq(Mux(created, r.miss, decided.miss)),
            frames.write_data.eq(r.frame),
            lists.i.valid.eq(created | parked),
            lists.i.p.list.eq(r.miss),
            lists.i.p.create.eq(created),
            lists.i.p.park.eq(parked),
            *(lists.i.p.data[name].eq(decided[name]) for name in _PARKED),
            grants.i.valid.eq(created & demand),
            grants.i.p.miss.eq(r.miss),
            grants.i.p.pool.eq(r.pool),
            grants.i.p.session.eq(decided.session),
            grants.i.p.squeue.eq(decided.squeue),
            grants.i.p.page.eq(decided.page),
            grants.i.p.kind.eq(row.kind),
            grants.i_outcome.p.eq(r.outcome),
            grants.i_outcome.valid.eq(self.i_result.valid & (decided.kind == Op.GRANT)),
            grants.pool_free.eq(self.pool_free),
            grants.now.eq(self.now),
            grants.starve_limit.eq(self.starve_limit),
            self.o_fetch.valid.eq(
                Mux(created, ~demand, given & (decided.miss_kind == MissKind.DEMAND))
            ),
            self.o_fetch.p.miss.eq(Mux(created, r.miss, decided.miss)),
            self.o_fetch.p.squeue.eq(decided.squeue),
            self.o_fetch.p.page.eq(decided.page),
            self.o_fetch.p.frame.eq(r.frame),
            self.o_fetch.p.demand.eq(~created),
            self.o_raise.valid.eq(parked & ~created),
            self.o_raise.p.eq(r.miss),
        ]
        return created, granted

    def _bring_home(self, m, done, op, op_valid, op_taken, clear):
        """Brings the entry `done` home, whose row and frame are read once and held. Returns whether
        it holds requests back, whether there is none, whether none is visited, and whether its row
        has just been read."""
        ids, lists, landed = m.submodules.ids, m.submodules.lists, m.submodules.landed
        rows, frames, line_masks = m.submodules.rows, m.submodules.frames, m.submodules.line_masks
        r, decided = self.i_result.p, self.i_result.p.op
        flipped = self.i_result.valid & (decided.kind == Op.FLIP)
        entry, waiter = rows.read_data, lists.o.payload
        replays, retried, dropped = Signal(range(self.config.page_lines + 1)), Signal(), Signal()
        resting, begins, opens = Signal(), Signal(), Signal()
        m.d.comb += [
            rows.read_address.eq(done.miss),
            frames.read_address.eq(done.miss),
            lists.visit.eq(done.miss),
            op.session.eq(entry.session),
            op.squeue.eq(entry.squeue),
            op.page.eq(entry.page),
            op.pool.eq(entry.pool),
            op.miss.eq(done.miss),
            op.frame.eq(frames.read_data),
            op.miss_kind.eq(entry.kind),
            op.source.eq(entry.source),
            op.slot.eq(self.layouts.orphan_token),
            op.failed.eq(done.failed | done.starved),
            ids.i.p.eq(done.miss),
        ]
        m.d.comb += [
            line_masks.write_en.eq(clear | (self.i_fetched.valid & self.i_fetched.ready)),
            line_masks.write_address.eq(Mux(clear, done.miss, self.i_fetched.payload.miss)),
            line_masks.write_data.eq(Mux(clear, 0, self.i_fetched.payload.line_mask)),
        ]
        with m.FSM():
            with m.State("REST"):
                m.d.sync += [replays.eq(0), retried.eq(0), dropped.eq(0)]
                m.d.comb += [begins.eq(1), resting.eq(~landed.r_rdy)]
                with m.If(landed.r_rdy):
                    m.d.comb += [rows.read_en.eq(1), frames.read_en.eq(1), lists.visit_start.eq(1)]
                    m.next = "OPEN"
            with m.State("OPEN"):
                m.d.comb += [opens.eq(1), clear.eq(entry.kind == MissKind.ALLOCATE)]
                m.next = "FILL"
                with m.If(done.starved):
                    m.next = "REPLAY"
            with m.State("FILL"):
                m.d.comb += [op_valid.eq(1), op.kind.eq(Op.FILL), op.lost.eq(entry.lost)]
                with m.If(op_taken):
                    m.next = "REPLAY"
            with m.State("REPLAY"):
                m.d.comb += [
                    op_valid.eq(lists.o.valid),
                    lists.o.ready.eq(op_taken),
                    op.kind.eq(Op.REPLAY),
                    op.failed.eq(done.starved),
                    *(op[name].eq(waiter[name]) for name in _PARKED),
                    op.origin.missed.eq(1),
                ]
                with m.If(lists.o.valid & op_taken):
                    m.d.sync += [
                        dropped.eq(dropped | waiter.write),
                        replays.eq(Mux(replays == self.config.page_lines, replays, replays + 1)),
                    ]
                with m.If(lists.empty):
                    m.next = "FLIP"
            with m.State("FLIP"):
                m.d.comb += [
                    op_valid.eq(1),
                    op.kind.eq(Op.FLIP),
                    op.failed.eq(done.starved),
                    op.lost.eq(entry.lost | dropped),
                ]
                with m.If(op_taken):
                    m.next = "DECIDED"
            with m.State("DECIDED"):
                with m.If(flipped):
                    with m.If(r.outcome == Outcome.RETRY):
                        m.d.sync += retried.eq(1)
                        m.next = "REPLAY"
                    with m.Else():
                        m.d.comb += [landed.r_en.eq(1), ids.i.valid.eq(1), lists.visit_end.eq(1)]
                        m.next = "REST"
        return retried | (replays == self.config.page_lines), resting, begins, opens
