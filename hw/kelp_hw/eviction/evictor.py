# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Chooses victims: which pool needs a frame, which queue gives it, which page of the queue (spec
§7, docs/design.md §6, docs/policy.md). About 60 cycles a page from a sweep's list; a sweep besides
for a new queue."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Const, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Op, Outcome
from kelp_spec.policy import Policy

from ..pipeline import RELEASE_TO_FREE, RESULT_TO_NEED
from ..tracker.signatures import PoolCounts
from .kelp_search import KelpSearch
from .plain_search import PlainSearch
from .pool_need import PoolNeed
from .signatures import (
    EvictionLayouts,
    EvictionsUnderWay,
    Moment,
    PageCheck,
    PolicyState,
    QueueView,
    SweepControl,
    SweepList,
    Verdict,
)

__all__ = ["Evictor"]


class Job(enum.Enum, shape=1):
    """What the block is at: a victim, or a queue's offer anew, as policy `kelp` asks."""

    EVICT = 0
    REFRESH = 1


class Evictor(wiring.Component):
    """One choice at a time, by the rules of docs/design.md §6; each is a function of M3's decisions
    so far.

    The steps of a search, which both policies share, are here: wait until the queue state has
    absorbed all results, and has worked out anew what configurations written by then change, look a
    queue up, sweep it, CLAIM a page of its list. Configurations that are written meanwhile are
    waited for as well, but no longer than it takes to work out all queues once: their writer, who
    may be a tenant, keeps no choice waiting by writing without pause. What comes next is
    said by the policy of the queue at hand: `PlainSearch` or `KelpSearch`. Between choices a queue
    is swept where policy `kelp` asks, so that its offer is true again.

    Latency: a choice from the list takes about 60 cycles, of them 45 to let the queue state absorb
    the last eviction; a new queue costs a sweep besides, a queue that is passed over about 8
    cycles. Under policy `kelp` every choice sweeps, mostly once, and ends with an offer. Interval:
    the same; one choice at a time.

    Parameters
    ----------
    config : Config

    Members
    -------
    pools : in, PoolCounts; low_water : in
        Which pools are served follows from these (`PoolNeed`).
    hold : in
        No choice begins.
    sessions : in, array of session
        As M3 has them.
    i_result : in, always-ready stream of result
    queues : in, QueueView
    sweep : out, SweepControl
    list : in, SweepList
    policy : in, PolicyState
    slots : in, EvictionsUnderWay
    check : out, PageCheck
        Of the page that would be claimed.
    o_op : out, stream of op (CLAIM)
    o_event : out, always-ready stream
        NO_VICTIM, once until an eviction of the pool succeeds; `argument` is the pool, `squeue` the
        first that was tried.
    busy : out
        A choice is being made, or will be without further input.
    """

    SETTLE = RESULT_TO_NEED
    CALM = 2 * RELEASE_TO_FREE  # cycles without a need, the count of free frames ever so early
    ROUNDS = 1  # of all queues whose excess is worked out anew, before a choice waits no more

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
                "slots": In(EvictionsUnderWay(config)),
                "check": Out(PageCheck(config)),
                "o_op": Out(stream.Signature(layouts.op)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.need = need = PoolNeed(config=c)
        m.submodules.plain = self._plain = PlainSearch(config=c)
        m.submodules.kelp = self._kelp = KelpSearch(config=c)
        self._need = need
        connect(m, flipped(self.pools), need.pools)
        connect(m, flipped(self.slots), need.slots)
        connect(m, flipped(self.i_result), need.i_result)
        connect(m, self._kelp.offer, flipped(self.queues.offer))
        self._state()
        self._queue_at_hand(m)
        self._claim(m)
        self._policies(m)
        self._steps(m)
        return m

    def _state(self):
        """Registers that the steps share."""
        c = self.config
        self._job = Signal(Job, name="job")
        # the queue at hand, the first one since the last move, and facts of the first
        self._squeue, self._first = Signal(c.squeue_bits), Signal(c.squeue_bits)
        self._session = Signal(range(c.sessions))
        self._usable, self._eligible, self._kelp_queue = Signal(), Signal(), Signal()
        # the queue whose list stands in the sweep, and its policy
        self._list_squeue, self._list_session = Signal(c.squeue_bits), Signal(range(c.sessions))
        self._list_kelp, self._outlived = Signal(), Signal()
        # the list was there before this search; it was made in it
        self._old_list, self._fresh = Signal(), Signal()
        # the first queue gave nothing: the root is tried, then one queue after another
        self._in_order = Signal()
        # cycles until a result has reached all that is asked; the queue has been looked up and
        # waits for its sweep
        self._wait, self._looked = Signal(range(self.SETTLE + 1)), Signal()

    def _queue_at_hand(self, m):
        """What is known of it: session, list, look."""
        c, squeue, session = self.config, self._squeue, self._session
        look, best = self.queues.lookup.answer.p, self.list.best
        closing, step = Signal(), Signal.like(self.sweep.step)
        sessions = Array(self.sessions[k] for k in range(c.sessions))
        m.d.sync += [
            session.eq(sum((squeue >= k * c.queues for k in range(1, c.sessions)), start=Const(0))),
            closing.eq(sessions[session].closing),
            step.eq(sessions[session].step),
            # The list has stood still for longer when it is asked for.
            self._usable.eq(
                self._old_list
                & best.valid
                & ~self._outlived
                & ~closing
                & ((best.kind == 0) | (self.list.step == step))
            ),
        ]
        with m.If(sessions[self._list_session].closing):
            m.d.sync += self._outlived.eq(1)
        m.d.comb += [
            # Also of a session that is closing: its own fetches may wait for these frames.
            self._eligible.eq(look.listed & (look.pool == self._need.pool)),
            self._kelp_queue.eq(look.policy == Policy.KELP),
            self.queues.lookup.request.p.eq(squeue),
            self.sweep.watch.p.eq(squeue),
            self.sweep.start.p.look.eq(look),
            self.sweep.start.p.session.eq(session),
            # The sweep is given the step of its own session as M3 has it now; `step` here is a
            # cycle behind.
            self.sweep.step.eq(sessions[session].step),
        ]

    def _claim(self, m):
        """The page to take, and its CLAIM out of registers."""
        op, best = self.o_op.p, self.list.best
        m.d.comb += [
            self.check.page.squeue.eq(self._squeue),
            self.check.page.page.eq(best.page),
            op.kind.eq(Op.CLAIM),
            op.squeue.eq(self._squeue),
        ]
        page, step, slot = (
            Signal.like(op.page),
            Signal.like(op.delta),
            Signal.like(self.slots.free.slot),
        )
        m.d.comb += [op.page.eq(page), op.delta.eq(step), op.slot.eq(slot)]
        self._keep_claim = [
            page.eq(best.page),
            step.eq(best.last_step),
            slot.eq(self.slots.free.slot),
        ]

    def _policies(self, m):
        """Both policies get the facts."""
        c, kelp, plain = self.config, self._kelp, self._plain
        pools = range(len(POOLS))
        roots, requester = (
            Array(self.queues.roots[p] for p in pools),
            Array(self.queues.requester[p] for p in pools),
        )
        # A cycle behind: the root stands longer than that before it is known to be absorbed.
        root, offered, asking = Signal(c.squeue_bits), Signal(), Signal(c.squeue_bits)
        self._root, self._asking = root, asking
        self._gives, self._over = Signal(), Signal()  # the root: at all, beyond its budget
        at = self._need.pool
        excess, at_budget = roots[at].excess, self.layouts.at_budget
        m.d.sync += [
            root.eq(roots[at].squeue),
            self._gives.eq(excess != 0),
            self._over.eq(excess > at_budget),
            offered.eq(excess > at_budget + 1),
            asking.eq(requester[at]),
        ]
        for facts in (plain.search.facts, kelp.search.facts):
            m.d.comb += [
                facts.squeue.eq(self._squeue),
                facts.kelp.eq(self._kelp_queue),
                facts.eligible.eq(self._eligible),
                facts.usable.eq(self._usable),
                facts.fresh.eq(self._fresh),
                facts.evict.eq(self._job == Job.EVICT),
                facts.root.eq(root),
                facts.offered.eq(offered),
                facts.asking.eq(asking),
            ]
        m.d.comb += [
            kelp.best.eq(self.list.best),
            self.list.clear.eq(kelp.clear),
            self._need.low_water.eq(self.low_water),
        ]

    def _move(self, squeue):
        """Search from another queue."""
        return [
            self._squeue.eq(squeue),
            self._first.eq(squeue),
            self._old_list.eq(squeue == self._list_squeue),
            self._fresh.eq(0),
        ]

    def _go(self, m, verdict):
        """In a state of the steps: what the verdict says comes next."""
        with m.Switch(verdict):
            with m.Case(Verdict.WAIT):
                # Only `kelp` lets wait, and only of a list of its own.
                m.d.sync += self._list_kelp.eq(1)
                m.next = "POLICY"
            with m.Case(Verdict.TAKE):
                m.next = "TAKE"
                with m.If(self._job == Job.REFRESH):
                    # No pool asked, and no slot may be free: the queue's policy was changed
                    # between the look-up that began this and the one before the sweep.
                    m.next = "IDLE"
            with m.Case(Verdict.SWEEP):
                m.next = "WATCH"
            with m.Case(Verdict.LOOK):
                m.d.sync += self._old_list.eq(0)
                m.next = "LOOK"
            with m.Case(Verdict.NEXT):
                m.next = "NEXT"
            with m.Case(Verdict.DONE):
                m.d.sync += self._wait.eq(self.SETTLE)
                m.next = "FOUND"
            with m.Case(Verdict.REST):
                m.next = "IDLE"

    def _ask(self, m, moment, by_kelp):
        """In a state of the steps: what comes next, by the one policy or the other."""
        kelp, plain, verdict = self._kelp.search, self._plain.search, Signal(Verdict)
        m.d.comb += verdict.eq(Mux(by_kelp, kelp.verdict, plain.verdict))
        with m.If(by_kelp):
            m.d.comb += kelp.moment.eq(moment)
        with m.Else():
            m.d.comb += plain.moment.eq(moment)
        self._go(m, verdict)
        with m.If(by_kelp & kelp.move.valid):
            m.d.sync += self._move(kelp.move.squeue)

    def _steps(self, m):
        """The states that both policies share."""
        with m.FSM() as fsm:
            self._idle(m)
            self._look_up(m)
            self._sweep(m)
            self._take(m)
        claimed, started = Signal(), Signal()
        m.d.comb += claimed.eq(self.i_result.valid & (self.i_result.p.op.kind == Op.CLAIM))
        m.d.sync += [
            started.eq(1),  # before the first clock edge inputs mean nothing
            Assert(
                ~started | ~claimed | fsm.ongoing("CLAIMING"), "a page is claimed by somebody else"
            ),
            Assert(
                ~started | ~self.queues.lookup.answer.valid | fsm.ongoing("LOOKING"),
                "a queue is told that was not asked for",
            ),
        ]
        m.d.comb += [
            self.o_event.p.code.eq(Event.NO_VICTIM),
            self.o_event.p.squeue.eq(self._first),
            self.o_event.p.argument.eq(self._need.pool),
        ]

    def _idle(self, m):
        """What is begun next."""
        job, squeue, policy = self._job, self._squeue, self.policy
        kelp, need, evicts = self._kelp.search, self._need, Signal()
        m.d.comb += [
            evicts.eq(need.need.valid & self.slots.free.valid),
            self.busy.eq(1),
        ]
        # A frame on its way back counts twice for some cycles. A need that it hides goes before a
        # queue that is to be valued anew, so that this order does not depend on the flash.
        hidden = Signal(range(self.CALM + 1), init=self.CALM)
        m.d.sync += hidden.eq(Mux(need.need.valid, self.CALM, hidden - (hidden != 0)))
        with m.State("IDLE"):
            m.d.comb += [
                self.busy.eq((evicts | policy.refresh.valid) & ~self.hold),
                kelp.moment.eq(Moment.BEGIN),
            ]
            m.d.sync += [
                self._wait.eq(self.SETTLE),
                self._looked.eq(0),
                self._in_order.eq(0),
            ]
            with m.If(self.hold):
                pass
            with m.Elif(evicts):
                m.d.comb += need.begin.eq(1)
                m.d.sync += job.eq(Job.EVICT)
                m.next = "SETTLE"
            with m.Elif(policy.refresh.valid & (need.need.valid | (hidden == 0))):
                m.d.comb += policy.refreshed.eq(1)
                m.d.sync += [
                    job.eq(Job.REFRESH),
                    squeue.eq(policy.refresh.squeue),
                    self._old_list.eq(0),
                ]
                m.next = "SETTLE"
        with m.State("FOUND"):
            # Until the count of evictions under way has reached `need`.
            m.d.sync += self._wait.eq(self._wait - 1)
            with m.If(self._wait == 0):
                m.next = "IDLE"

    def _look_up(self, m):
        """Wait until the queue state has absorbed all results, choose a queue, look it up, judge
        it."""
        c, job, squeue, queues = self.config, self._job, self._squeue, self.queues
        kelp, need = self._kelp.search, self._need
        awaited, absorbed, caught_up = (
            Signal.like(queues.entered),
            Signal.like(queues.entered),
            Signal(),
        )
        # Queues that are to be begun with until every one is as it was configured before: the last
        # of a round is done when one more is begun with. Sweeps do not ask the tree.
        to_refresh, chooses = Signal(range(self.ROUNDS * c.squeues + 2)), Signal()
        m.d.comb += [
            absorbed.eq(queues.done - awaited),
            chooses.eq(~self._looked & (job == Job.EVICT)),
        ]
        with m.State("SETTLE"):
            # All results up to now have become events; then all of these are absorbed.
            m.d.sync += [self._wait.eq(self._wait - 1), awaited.eq(queues.entered), caught_up.eq(0)]
            m.d.sync += to_refresh.eq(self.ROUNDS * c.squeues + 1)
            with m.If(self._wait == 0):
                m.next = "ABSORB"
        with m.State("ABSORB"):
            # `done` may have gone past, so it is the sign of the difference that counts; and
            # while all is refreshed, so far past that the sign turns.
            with m.If(~absorbed[-1]):
                m.d.sync += caught_up.eq(1)
            with m.If(queues.refreshed & (to_refresh != 0)):
                m.d.sync += to_refresh.eq(to_refresh - 1)
            as_configured = ~queues.refreshing | (to_refresh == 0) | ~chooses
            with m.If((caught_up | ~absorbed[-1]) & as_configured):
                m.next = "LOOK"
                with m.If(chooses):
                    m.next = "CHOOSE"
        with m.State("CHOOSE"):
            m.next = "LOOK"
            with m.If(~self._in_order):
                m.d.sync += self._move(Mux(self._over, self._root, self._asking))
            with m.Elif(self._gives & (self._root != self._first)):
                m.d.sync += self._move(self._root)
            with m.Else():
                m.next = "NEXT"
        with m.State("LOOK"):
            # `session`, `closing` and `step` follow `squeue` by three cycles, the answer by
            # four or more.
            m.d.comb += queues.lookup.request.valid.eq(1)
            with m.If(queues.lookup.request.ready):
                m.next = "LOOKING"
        with m.State("LOOKING"):
            with m.If(queues.lookup.answer.valid):
                m.next = "JUDGE"
                with m.If(self._looked):
                    m.next = "START"
        with m.State("JUDGE"):
            with m.If(job == Job.REFRESH):
                m.next = "IDLE"
                with m.If(self._kelp_queue & queues.lookup.answer.p.listed):
                    m.next = "WATCH"
            with m.Else():
                by_kelp = self._kelp_queue | self._kelp.asked
                self._ask(m, Moment.JUDGE, by_kelp)
                with m.If(~by_kelp):
                    # Whichever policy the queue had when its list was made.
                    m.d.sync += self._list_kelp.eq(0)
        with m.State("NEXT"):
            following = Signal(c.squeue_bits)
            m.d.comb += [
                following.eq(Mux(squeue == c.squeues - 1, 0, squeue + 1)),
                kelp.moment.eq(Moment.NEXT),
            ]
            m.d.sync += [
                self._fresh.eq(0),
                self._old_list.eq(0),
                self._wait.eq(self.SETTLE),
                self._in_order.eq(1),
            ]
            with m.If(~self._in_order):
                # The pool's root comes before the others, as it is after all that was tried.
                m.next = "SETTLE"
            with m.Else():
                m.d.sync += squeue.eq(following)
                m.next = "LOOK"
                with m.If(following == self._first):
                    m.d.comb += [self.o_event.valid.eq(need.unreported), need.failed.eq(1)]
                    m.next = "FOUND"

    def _sweep(self, m):
        """Sweep the queue at hand; then the policy may wait with its verdict."""
        squeue, sweep, kelp = self._squeue, self.sweep, self._kelp.search
        with m.State("WATCH"):
            m.d.comb += sweep.watch.valid.eq(1)
            m.d.sync += [
                self._wait.eq(self.SETTLE),
                self._looked.eq(1),
                self._fresh.eq(1),
                self._old_list.eq(0),
                self._list_squeue.eq(squeue),
                self._list_session.eq(self._session),
                self._list_kelp.eq(self._kelp_queue),
            ]
            m.next = "SETTLE"
        with m.State("START"):
            m.d.comb += sweep.start.valid.eq(1)
            m.d.sync += [self._looked.eq(0), self._outlived.eq(0)]
            m.next = "SWEEPING"
        with m.State("SWEEPING"):
            with m.If(~sweep.busy):
                self._ask(m, Moment.SWEPT, self._kelp_queue)
        with m.State("POLICY"):
            self._go(m, kelp.verdict)
            with m.If(kelp.move.valid):
                m.d.sync += self._move(kelp.move.squeue)

    def _take(self, m):
        """CLAIM a page of the list."""
        r, squeue = self.i_result.p, self._squeue
        need = self._need
        with m.State("TAKE"):
            m.d.comb += Assert(self._job == Job.EVICT)
            m.d.sync += self._keep_claim
            with m.If(self.list.best.valid):
                m.d.comb += self.list.take.eq(1)
                with m.If(~self.check.working):
                    m.next = "CLAIM"
            with m.Else():
                self._ask(m, Moment.EMPTY, self._list_kelp)
        with m.State("CLAIM"):
            m.d.comb += Assert(self._job == Job.EVICT)
            m.d.comb += self.o_op.valid.eq(1)
            with m.If(self.o_op.ready):
                m.next = "CLAIMING"
        with m.State("CLAIMING"):
            m.d.comb += Assert(self._job == Job.EVICT)
            with m.If(self.i_result.valid & (r.op.kind == Op.CLAIM)):
                m.d.sync += [
                    Assert(r.op.squeue == squeue),
                    Assert(r.op.page == self.o_op.p.page),
                ]
                with m.If(r.outcome == Outcome.DONE):
                    m.d.comb += need.given.eq(1)
                    with m.If(self._list_kelp):
                        # Its list serves once, also where the queue has the other policy next.
                        m.d.sync += self._outlived.eq(1)
                    self._ask(m, Moment.GIVEN, self._list_kelp)
                with m.Else():
                    m.next = "TAKE"
