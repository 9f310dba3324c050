# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Chooses victims: which pool needs a frame, which queue gives it, which page of the queue (spec
§7, docs/design.md §6, docs/policy.md)."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import SCORE_BITS, Event, Op, Outcome, PageState, PrefetchSource
from kelp_spec.policy import GIVEN_BITS, SWEEPS, SWEEPS_MOST, Policy

from ..layouts import POOL_BITS
from .signatures import (
    CLASS_BITS,
    EvictionLayouts,
    EvictionsUnderWay,
    PageCheck,
    PolicyState,
    PoolCounts,
    QueueView,
    SweepControl,
    SweepList,
)

__all__ = ["Evictor"]


class Job(enum.Enum, shape=2):
    """What the block is at: a victim, or what policy `kelp` asks for (a queue's value anew, a look
    ahead)."""

    EVICT = 0
    REFRESH = 1
    AHEAD = 2


class Phase(enum.Enum, shape=3):
    """Policy `kelp`: a queue that the tree names; the queue that asks; one after another; a page
    was given, or none."""

    OFFERED = 0
    ASKED = 1
    SEARCH = 2
    GIVEN = 3
    FAILED = 4


class Evictor(wiring.Component):
    """One choice at a time, by the rules of docs/design.md §6; each is a function of M3's decisions
    so far.

    Time: a choice from the list takes about 60 cycles, of them 45 to let the queue state absorb the
    last eviction; a new queue costs a sweep besides. A queue that is passed over costs about 8
    cycles. Under policy `kelp` every choice sweeps, mostly once, and ends with an offer (a walk of
    the tree).

    Between choices it does what `kelp` asks for: a queue is swept so that its offer is true again;
    another is looked at for pages to prefetch, and those are fetched one by one while there is
    credit and a frame above `prefetch_water`.

    Parameters
    ----------
    config : Config

    Members
    -------
    pools : in, PoolCounts; low_water : in
        A pool is served while used > 0 and free + under way < max(1, low_water).
    hold : in
        No choice begins.
    sessions : in
    i_result : in, always-ready stream of result
    queues : in, QueueView
    sweep : out, SweepControl; list : in, SweepList
    policy : in, PolicyState
    prefetch_on, prefetch_water : in
        Prefetch by `kelp` is switched on; frames that it leaves free.
    slots : in, EvictionsUnderWay; check : out, PageCheck
    o_op : out, stream of op (CLAIM)
    o_prefetch : out, stream of op (PREFETCH)
    o_event : out, always-ready stream
        NO_VICTIM, once until an eviction of the pool succeeds; `argument` is the pool, `squeue` the
        first that was tried.
    busy : out
        A choice is being made, or will be without further input.
    """

    SETTLE = 4  #: cycles in which a result and what it did to the pools reach this block

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__(
            {
                "pools": In(PoolCounts(config)),
                "low_water": In(16),
                "hold": In(1),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "queues": In(QueueView(config)),
                "sweep": Out(SweepControl(config)),
                "list": In(SweepList(config)),
                "policy": In(PolicyState(config)),
                "prefetch_on": In(1),
                "prefetch_water": In(16),
                "slots": In(EvictionsUnderWay(config)),
                "check": Out(PageCheck(config)),
                "o_op": Out(stream.Signature(layouts.op)),
                "o_prefetch": Out(stream.Signature(layouts.op)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        pools = range(len(POOLS))
        queues, sweep, found, policy = self.queues, self.sweep, self.list, self.policy
        look, best, other = queues.lookup.answer.p, found.best, found.other
        under_way, free_slot = self.slots.count, self.slots.free

        # --- which pool ---
        need, resting, reported = Signal(len(POOLS)), Signal(len(POOLS)), Signal(len(POOLS))
        target = Signal(16)
        m.d.sync += target.eq(Mux(self.low_water == 0, 1, self.low_water))
        for p in pools:
            m.d.sync += need[p].eq(
                (self.pools.used[p] != 0)
                & (self.pools.free[p] + under_way[p] < target)
                & ~resting[p]
            )
        next_pool, pool, turn = Signal(POOL_BITS), Signal(POOL_BITS), Signal(POOL_BITS)
        for k in reversed(pools):
            candidate = Signal(POOL_BITS, name=f"turn{k}")
            m.d.comb += candidate.eq(next_pool + k)
            with m.If(need.bit_select(candidate, 1)):
                m.d.comb += turn.eq(candidate)

        # A pool without a victim rests until one may have appeared; what appears during an attempt
        # counts too.
        r, appeared = self.i_result.p, Signal()
        wakes = Signal()
        m.d.comb += wakes.eq(
            self.i_result.valid
            & (
                (r.changed & (r.word.state == PageState.RESIDENT) & ~r.word.pinned)
                | (r.op.kind == Op.RELEASE)
            )
        )
        with m.If(wakes):
            m.d.sync += [resting.eq(0), appeared.eq(1)]

        # --- the queue at hand and its session ---
        squeue, first = Signal(c.squeue_bits), Signal(c.squeue_bits)
        session, closing, step = Signal(range(c.sessions)), Signal(), Signal.like(sweep.step)
        fetch_session = Signal(c.session_bits)
        above = [squeue >= k * c.queues for k in range(1, c.sessions)]
        sessions = Array(self.sessions[k] for k in range(c.sessions))
        m.d.sync += [
            session.eq(sum(above, start=Const(0))),
            closing.eq(sessions[session].closing),
            step.eq(sessions[session].step),
        ]
        roots, requester = (
            Array(queues.roots[p] for p in pools),
            Array(queues.requester[p] for p in pools),
        )

        # --- whose list it is ---
        list_squeue, list_session, outlived = (
            Signal(c.squeue_bits),
            Signal(range(c.sessions)),
            Signal(),
        )
        with m.If(sessions[list_session].closing):
            m.d.sync += outlived.eq(1)
        old_list, usable, eligible, kelp = Signal(), Signal(), Signal(), Signal()
        # The list has stood still for longer when it is asked for.
        m.d.sync += usable.eq(
            old_list & best.valid & ~outlived & ~closing & ((best.kind == 0) | (found.step == step))
        )
        m.d.comb += [
            # Also of a session that is closing: its own fetches may wait for these frames.
            eligible.eq(look.listed & (look.pool == pool)),
            kelp.eq(look.policy == Policy.KELP),
            queues.lookup.request.p.eq(squeue),
            queues.offer.request.p.squeue.eq(squeue),
            sweep.watch.p.squeue.eq(squeue),
            sweep.start.p.look.eq(look),
            sweep.start.p.session.eq(session),
            self.check.page.squeue.eq(squeue),
            # The sweep is given the step of its own session as M3 has it now; `step` above is a
            # cycle late.
            sweep.step.eq(sessions[session].step),
        ]
        op = self.o_op.payload
        claim_page, claim_step, claim_slot = (
            Signal(c.page_bits),
            Signal.like(sweep.step),
            Signal.like(free_slot.slot),
        )
        m.d.comb += [
            op.kind.eq(Op.CLAIM),
            op.squeue.eq(squeue),
            op.page.eq(claim_page),
            op.delta.eq(claim_step),
            op.slot.eq(claim_slot),
        ]

        # --- policy `kelp`: what is being done, and how far the search has come ---
        job, phase = Signal(Job), Signal(Phase)
        sweeps, worthy, chosen_squeue = (
            Signal(range(SWEEPS_MOST + 1)),
            Signal(range(SWEEPS + 1)),
            Signal(c.squeue_bits),
        )
        # Whether this is the first page that is taken after a sweep, whom that page's loss will be
        # put down to, and what the page was worth.
        fresh_take, differs, other_turn, given_by = Signal(), Signal(), Signal(), Signal(GIVEN_BITS)
        claim_kind, claim_priority, has_page = Signal(CLASS_BITS), Signal(SCORE_BITS), Signal()
        # Of the pool, a cycle late: the root stands longer than that before it is known to be
        # absorbed.
        root_squeue, over, gladly, asking = (
            Signal(c.squeue_bits),
            Signal(),
            Signal(),
            Signal(c.squeue_bits),
        )
        m.d.sync += [
            root_squeue.eq(roots[pool].squeue),
            over.eq(roots[pool].excess != 0),
            gladly.eq(roots[pool].excess > 1),
            asking.eq(requester[pool]),
        ]
        m.d.comb += [
            differs.eq(
                fresh_take & best.valid & (best.kind == 0) & other.valid & (other.page != best.page)
            ),
            other_turn.eq(differs & policy.explore),
            self.check.page.page.eq(Mux(other_turn, other.page, best.page)),
            has_page.eq(best.valid & (best.kind == 0)),
            policy.gave.p.eq(~claim_priority),
            op.mass.eq(given_by),
            # A queue with nothing but pages in use offers next to nothing; after its turn, what it
            # will be able to offer in the next step.
            queues.offer.request.p.excess.eq(
                Mux(
                    ~best.valid,
                    0,
                    Mux(
                        (best.kind == 0) | ((job == Job.REFRESH) & (best.kind == 1)),
                        best.priority,
                        1,
                    ),
                )
            ),
        ]
        fetch, fetching = self.o_prefetch.payload, Signal(c.squeue_bits)
        m.d.comb += [
            fetch.kind.eq(Op.PREFETCH),
            fetch.session.eq(fetch_session),
            fetch.squeue.eq(fetching),
            fetch.page.eq(found.wanted.p),
            fetch.source.eq(PrefetchSource.POLICY),
        ]

        wait, awaited, looked = (
            Signal(range(self.SETTLE + 1)),
            Signal.like(queues.entered),
            Signal(),
        )
        fresh, absorbed, caught_up = Signal(), Signal.like(queues.entered), Signal()
        m.d.comb += [absorbed.eq(queues.done - awaited), self.busy.eq(1)]
        can_fetch, fetch_pool, coming, list_kelp = Signal(), Signal(POOL_BITS), Signal(), Signal()
        m.d.comb += [
            sweep.watch.p.ahead.eq(job == Job.AHEAD),
            coming.eq(Cat(under_way[p] != 0 for p in pools).any()),
        ]
        free = Array(self.pools.free[p] for p in pools)
        m.d.sync += can_fetch.eq(policy.in_credit & (free[fetch_pool] > self.prefetch_water))
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.busy.eq(
                    (
                        (need.any() & free_slot.valid)
                        | policy.refresh.valid
                        | policy.ahead.valid
                        | found.wanted.valid
                    )
                    & ~self.hold
                )
                m.d.sync += [
                    wait.eq(self.SETTLE),
                    looked.eq(0),
                    phase.eq(Phase.OFFERED),
                    sweeps.eq(0),
                    worthy.eq(0),
                ]
                with m.If(self.hold):
                    pass
                with m.Elif(need.any() & free_slot.valid):
                    m.d.sync += [
                        pool.eq(turn),
                        next_pool.eq(turn + 1),
                        appeared.eq(0),
                        job.eq(Job.EVICT),
                    ]
                    m.next = "SETTLE"
                with m.Elif(policy.refresh.valid):
                    m.d.comb += policy.refreshed.eq(1)
                    m.d.sync += [
                        job.eq(Job.REFRESH),
                        squeue.eq(policy.refresh.squeue),
                        old_list.eq(0),
                    ]
                    m.next = "SETTLE"
                with m.Elif(found.wanted.valid):
                    with m.If(can_fetch):
                        m.next = "FETCH"
                    with m.Elif(~policy.in_credit | (~need.any() & ~coming)):
                        m.next = "DROP"
                with m.Elif(policy.ahead.valid):
                    m.d.comb += policy.looked.eq(1)
                    with m.If(self.prefetch_on & policy.in_credit):
                        m.d.sync += [
                            job.eq(Job.AHEAD),
                            squeue.eq(policy.ahead.squeue),
                            fetching.eq(policy.ahead.squeue),
                            fetch_session.eq(policy.ahead.session),
                            old_list.eq(0),
                        ]
                        m.next = "SETTLE"
            with m.State("SETTLE"):
                # All results up to now have become events; then all of these are absorbed.
                m.d.sync += [wait.eq(wait - 1), awaited.eq(queues.entered), caught_up.eq(0)]
                with m.If(wait == 0):
                    m.next = "ABSORB"
            with m.State("ABSORB"):
                # `done` may have gone past, so it is the sign of the difference that counts; and
                # while all is refreshed, so far past that the sign turns.
                with m.If(~absorbed[-1]):
                    m.d.sync += caught_up.eq(1)
                with m.If((caught_up | ~absorbed[-1]) & ~queues.refreshing):
                    m.next = "LOOK"
                    with m.If(~looked & (job == Job.EVICT)):
                        m.next = "CHOOSE"
            with m.State("CHOOSE"):
                chosen = Signal(c.squeue_bits)
                m.d.comb += chosen.eq(Mux(over, root_squeue, asking))
                m.d.sync += [
                    squeue.eq(chosen),
                    first.eq(chosen),
                    chosen_squeue.eq(chosen),
                    old_list.eq(chosen == list_squeue),
                    fresh.eq(0),
                ]
                m.next = "LOOK"
            with m.State("LOOK"):
                # `session`, `closing` and `step` follow `squeue` by three cycles, the answer by
                # four.
                m.d.comb += queues.lookup.request.valid.eq(1)
                with m.If(queues.lookup.request.ready):
                    m.next = "LOOKING"
            with m.State("LOOKING"):
                with m.If(queues.lookup.answer.valid):
                    m.next = "JUDGE"
                    with m.If(looked):
                        m.next = "START"
            with m.State("JUDGE"):
                with m.If(job != Job.EVICT):
                    m.d.sync += fetch_pool.eq(look.pool)
                    m.next = "IDLE"
                    with m.If(kelp & Mux(job == Job.AHEAD, look.newest.valid, look.listed)):
                        m.next = "WATCH"
                with m.Elif(kelp & ~eligible & (phase == Phase.OFFERED)):
                    m.d.comb += found.clear.eq(1)
                    m.d.sync += [fresh.eq(1), list_kelp.eq(1)]
                    m.next = "OFFER"
                with m.Elif((phase == Phase.ASKED) & ~(kelp & eligible)):
                    # The queue that asks has nothing: what was found before it goes.
                    m.d.sync += [squeue.eq(chosen_squeue), fresh_take.eq(1)]
                    m.next = "TAKE"
                with m.Elif(usable & ~kelp):
                    m.next = "TAKE"
                with m.Elif(eligible):
                    m.next = "WATCH"
                with m.Else():
                    m.next = "NEXT"
            with m.State("WATCH"):
                m.d.comb += sweep.watch.valid.eq(1)
                m.d.sync += [wait.eq(self.SETTLE), looked.eq(1), fresh.eq(1), old_list.eq(0)]
                with m.If(job != Job.AHEAD):
                    m.d.sync += [
                        list_squeue.eq(squeue),
                        list_session.eq(session),
                        list_kelp.eq(kelp),
                    ]
                m.next = "SETTLE"
            with m.State("START"):
                m.d.comb += sweep.start.valid.eq(1)
                m.d.sync += [looked.eq(0), fresh_take.eq(kelp)]
                with m.If(job != Job.AHEAD):
                    m.d.sync += outlived.eq(0)
                m.next = "SWEEPING"
            with m.State("SWEEPING"):
                with m.If(~sweep.busy):
                    m.next = "TAKE"
                    with m.If(job == Job.AHEAD):
                        m.next = "IDLE"
                    with m.Elif(kelp & (phase == Phase.OFFERED)):
                        m.next = "OFFER"
            with m.State("OFFER"):
                # `squeue` is still the queue of the list, or the one that has none.
                m.d.comb += queues.offer.request.valid.eq(1)
                with m.If(queues.offer.request.ready):
                    m.next = "OFFERING"
            with m.State("OFFERING"):
                with m.If(queues.offer.done):
                    m.next = "OFFERED"
            with m.State("OFFERED"):
                with m.Switch(phase):
                    with m.Case(Phase.OFFERED):
                        m.d.sync += [sweeps.eq(sweeps + 1), worthy.eq(worthy + has_page)]
                        m.next = "IDLE"
                        with m.If(job == Job.EVICT):
                            m.next = "AGAIN"
                    with m.Case(Phase.GIVEN):
                        m.d.sync += wait.eq(self.SETTLE)
                        m.next = "FOUND"
                    with m.Default():
                        m.next = "NEXT"
            with m.State("AGAIN"):
                # What the tree said may not have been so any more: then another queue has more to
                # offer, up to a limit.
                m.d.sync += [chosen_squeue.eq(squeue), first.eq(squeue)]
                with m.If(
                    (worthy != SWEEPS) & (sweeps != SWEEPS_MOST) & (root_squeue != squeue) & gladly
                ):
                    m.d.sync += [
                        squeue.eq(root_squeue),
                        chosen_squeue.eq(root_squeue),
                        first.eq(root_squeue),
                        old_list.eq(root_squeue == list_squeue),
                        fresh.eq(0),
                    ]
                    m.next = "LOOK"
                with m.Elif(has_page | (asking == squeue)):
                    m.next = "TAKE"
                with m.Else():
                    # Nothing but pages in use: then the queue that asks gives.
                    m.d.sync += [squeue.eq(asking), phase.eq(Phase.ASKED)]
                    m.next = "LOOK"
            with m.State("TAKE"):
                m.d.sync += [
                    claim_page.eq(self.check.page.page),
                    claim_step.eq(Mux(other_turn, other.last_step, best.last_step)),
                    claim_slot.eq(free_slot.slot),
                    claim_kind.eq(best.kind),
                    claim_priority.eq(Mux(other_turn, other.priority, best.priority)),
                    given_by.eq(Mux(differs, 1 + (found.followed ^ other_turn), 0)),
                    fresh_take.eq(0),
                    first.eq(Mux(phase == Phase.ASKED, squeue, first)),
                ]
                m.d.comb += policy.disputed.eq(differs)
                with m.If(~best.valid & list_kelp):
                    m.d.sync += phase.eq(Phase.FAILED)
                    m.next = "OFFER"
                with m.Elif(~best.valid):
                    # A list of an earlier sweep is used up: the same queue may have more.
                    m.d.sync += old_list.eq(0)
                    m.next = "NEXT"
                    with m.If(~fresh):
                        m.next = "LOOK"
                with m.Else():
                    m.d.comb += found.take.eq(~other_turn)
                    with m.If(~self.check.working):
                        m.next = "CLAIM"
            with m.State("CLAIM"):
                m.d.comb += self.o_op.valid.eq(1)
                with m.If(self.o_op.ready):
                    m.next = "CLAIMING"
            with m.State("CLAIMING"):
                with m.If(self.i_result.valid & (r.op.kind == Op.CLAIM)):
                    m.d.sync += [Assert(r.op.squeue == squeue), Assert(r.op.page == claim_page)]
                    m.d.sync += wait.eq(self.SETTLE)
                    m.next = "TAKE"
                    with m.If(r.outcome == Outcome.DONE):
                        m.d.sync += reported.bit_select(pool, 1).eq(0)
                        m.next = "FOUND"
                        with m.If(list_kelp):
                            m.d.comb += policy.gave.valid.eq(claim_kind == 0)
                            m.d.sync += phase.eq(Phase.GIVEN)
                            m.next = "OFFER"
            with m.State("FOUND"):
                # Until `under_way` has reached `need`.
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.next = "IDLE"
            with m.State("NEXT"):
                following = Signal(c.squeue_bits)
                m.d.comb += following.eq(Mux(squeue == c.squeues - 1, 0, squeue + 1))
                m.d.sync += [
                    squeue.eq(following),
                    fresh.eq(0),
                    old_list.eq(0),
                    wait.eq(self.SETTLE),
                    phase.eq(Phase.SEARCH),
                ]
                m.next = "LOOK"
                with m.If(following == first):
                    m.d.comb += self.o_event.valid.eq(~reported.bit_select(pool, 1))
                    m.d.sync += reported.bit_select(pool, 1).eq(1)
                    with m.If(~appeared & ~wakes):
                        m.d.sync += resting.bit_select(pool, 1).eq(1)
                    m.next = "FOUND"
            with m.State("DROP"):
                # A state of its own: the wishes lie far from what decides on them.
                m.d.comb += found.wanted.ready.eq(1)
                m.next = "IDLE"
            with m.State("FETCH"):
                m.d.comb += self.o_prefetch.valid.eq(1)
                with m.If(self.o_prefetch.ready):
                    m.d.comb += found.wanted.ready.eq(1)
                    m.next = "FETCHING"
            with m.State("FETCHING"):
                m.d.sync += wait.eq(self.SETTLE)
                with m.If(
                    self.i_result.valid
                    & (r.op.kind == Op.PREFETCH)
                    & (r.op.source == PrefetchSource.POLICY)
                ):
                    m.next = "FOUND"
        m.d.comb += [
            self.o_event.p.code.eq(Event.NO_VICTIM),
            self.o_event.p.squeue.eq(first),
            self.o_event.p.argument.eq(pool),
        ]
        return m
