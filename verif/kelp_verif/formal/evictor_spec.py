# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The evictor's contract: every search for a victim, and every queue that is valued anew, ends
(docs/design.md §6, §11). By induction."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cat, Cover, Module, Mux, Signal, Value
from amaranth.lib import wiring

from kelp_hw.eviction.evictor import Evictor, Job
from kelp_hw.eviction.kelp_search import Phase
from kelp_spec.metadata import Op
from kelp_spec.policy import SWEEPS_MOST

from .fifo_specs import SMALL
from .inside import ends, ongoing, open_up, register

__all__ = ["EvictorEnds"]


class EvictorEnds(wiring.Component):
    """From the moment at which the evictor begins until it is idle: at most SWEEPS_MOST + 2 queues
    that the tree names or that ask, then each queue once, and for each a bounded number of steps,
    two sweeps at most among them. It waits for the queue state (to absorb what was decided, to
    answer a look-up, to take an offer and have it in the tree), for a sweep, for M0 to take a CLAIM
    and for its result; for nothing else.

    It relies on a list that has at most `candidates` pages after a sweep, and on answers of the
    queue state that stay until the next one. What the queue state says may change at any time.
    """

    def __init__(self, block=Evictor):
        self.block = block(config=SMALL)
        self.block.SETTLE = 1  # any number is as good, and what must be possible comes sooner
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.evictor = a = self.block
        open_up(a)
        self._drive(m)
        here, most_here = self._left_here(m)
        queues, again = self._left_queues()
        rank = Mux(
            self._at("FOUND"),
            a._wait,
            a.SETTLE + 1 + (2 * queues + again) * most_here + here,
        )
        most = a.SETTLE + 1 + (2 * (SMALL.squeues + 1 + SWEEPS_MOST + 3) + 2) * most_here
        ends(m, a, busy=~self._at("IDLE"), waits=self._waits(), rank=rank, most=most)
        self._inside(m)
        phase = register(a._kelp, "phase")
        m.d.comb += [
            Cover(self._at("NEXT") & a._in_order),
            Cover(self._at("JUDGE") & (phase == Phase.ASKED)),
        ]
        return m

    def _at(self, *states):
        return ongoing(self.block, *states)

    def _waits(self):
        """The evictor cannot go on by itself."""
        a, kelp, at = self.block, self.block._kelp, self._at
        r, look = a.i_result.p, a.queues.lookup
        claimed = a.i_result.valid & (r.op.kind == Op.CLAIM)
        absorbed, caught_up = register(a, "absorbed"), register(a, "caught_up")
        as_configured = (
            ~a.queues.refreshing | (register(a, "to_refresh") == 0) | ~register(a, "chooses")
        )
        return Cat(
            at("ABSORB") & ~((caught_up | ~absorbed[-1]) & as_configured),
            at("LOOK") & ~look.request.ready,
            at("LOOKING") & ~look.answer.valid,
            at("SWEEPING") & a.sweep.busy,
            at("CLAIM") & ~a.o_op.ready,
            at("CLAIMING") & ~claimed,
            at("POLICY") & ongoing(kelp, "OFFER") & ~a.queues.offer.request.ready,
            at("POLICY") & ongoing(kelp, "OFFERING") & ~a.queues.offer.done,
        ).any()

    def _left_here(self, m):
        """Steps that are left to do with the queue at hand, at most, and the most of them."""
        a, kelp, at = self.block, self.block._kelp, self._at
        phase = register(kelp, "phase")
        count, candidates = self.count, SMALL.candidates
        take = 8
        policy = take + 3 * candidates + 3
        settle = policy + 10
        look_up = settle + a.SETTLE + 1
        offers = Mux(
            phase == Phase.OFFERED,
            policy
            + Mux(ongoing(kelp, "OFFER"), 4, 0)
            + Mux(ongoing(kelp, "OFFERING"), 3, 0)
            + Mux(ongoing(kelp, "OFFERED"), 2, 0)
            + Mux(ongoing(kelp, "AGAIN"), 1, 0),
            4 + Mux(ongoing(kelp, "OFFER"), 2, 0) + ongoing(kelp, "OFFERING"),
        )
        looked = a._looked
        here = Signal(range(look_up + 40))
        for condition, steps in (
            (at("NEXT"), 3),
            (at("TAKE"), take + 3 * count),
            (at("CLAIMING"), take + 3 * count + 1),
            (at("CLAIM"), take + 3 * count + 2),
            (at("POLICY"), offers),
            (at("SWEEPING"), policy + 5),
            (at("START"), policy + 6),
            (at("LOOKING") & looked, policy + 7),
            (at("LOOK") & looked, policy + 8),
            (at("ABSORB") & looked, policy + 9),
            (at("SETTLE") & looked, settle + a._wait),
            (at("WATCH"), look_up),
            (at("JUDGE"), look_up + 1),
            (at("LOOKING") & ~looked, look_up + 2),
            (at("LOOK") & ~looked, look_up + 3),
            (at("CHOOSE"), look_up + 4),
            (at("ABSORB") & ~looked, look_up + 5),
            (at("SETTLE") & ~looked, look_up + 6 + a._wait),
        ):
            with m.If(condition):
                m.d.comb += here.eq(steps)
        return here, look_up + 7 + a.SETTLE

    def _left_queues(self):
        """Queues that are left, at most; and whether the one at hand may be swept again."""
        a, kelp, at = self.block, self.block._kelp, self._at
        phase, sweeps = register(kelp, "phase"), register(kelp, "sweeps")
        c = SMALL
        between = (at("SETTLE", "ABSORB") & ~a._looked) | at("CHOOSE")
        ahead = (a._first - a._squeue - 1)[: c.squeue_bits]
        named = Mux(
            phase == Phase.OFFERED,
            SWEEPS_MOST + 2 - sweeps + (at("POLICY") & ongoing(kelp, "AGAIN")),
            phase == Phase.ASKED,
        )
        queues = Mux(a._in_order, Mux(between, c.squeues, ahead), c.squeues + 1 + named)
        again = a._old_list | between | (~a._in_order & (phase == Phase.ASKED))
        return queues, again

    def _inside(self, m):
        """What holds of the steps and of the two policies."""
        a, kelp, at = self.block, self.block._kelp, self._at
        phase, sweeps = register(kelp, "phase"), register(kelp, "sweeps")
        looked = a._looked
        policies = (Phase.OFFERED, Phase.ASKED, Phase.FAILED, Phase.GIVEN)
        m.d.comb += [
            Assert(~at("SETTLE", "FOUND") | (a._wait <= a.SETTLE)),
            Assert(ongoing(kelp, *kelp._machine.encoding)),
            Assert(sweeps <= SWEEPS_MOST),
            Assert(at("POLICY") == ~ongoing(kelp, "DECIDE")),
            Assert(~at("POLICY") | Cat(phase == p for p in policies).any()),
            Assert(~at("POLICY") | a._list_kelp),
            Assert(~ongoing(kelp, "AGAIN") | ((phase == Phase.OFFERED) & (a._job == Job.EVICT))),
            Assert(~a._in_order | ((phase != Phase.OFFERED) & (phase != Phase.ASKED))),
            Assert(
                (phase != Phase.OFFERED)
                | (sweeps < SWEEPS_MOST)
                | ongoing(kelp, "AGAIN")
                | at("IDLE")
                | (at("TAKE", "CLAIM", "CLAIMING") & a._list_kelp)
            ),
            Assert(~at("TAKE", "CLAIM", "CLAIMING") | a._fresh | a._old_list | a._list_kelp),
            Assert(~at("JUDGE") | ~a._usable | a._old_list),
            Assert((phase != Phase.ASKED) | a._list_kelp),
            Assert(~at("WATCH") | (phase != Phase.ASKED) | a._kelp_queue),
            Assert(~at("START", "SWEEPING") | a._fresh),
            Assert(~looked | at("SETTLE", "ABSORB", "LOOK", "LOOKING", "START")),
            Assert(~(at("SETTLE", "ABSORB", "LOOK", "LOOKING") & a._looked) | a._fresh),
        ]

    def _drive(self, m):
        """Inputs, any."""
        a, c = self.block, SMALL
        r = a.i_result.p
        self.count = Signal(range(c.candidates + 1))
        free = (
            a.pools.spare,
            a.pools.used,
            a.low_water,
            a.hold,
            a.sessions,
            a.i_result.p,
            a.i_result.valid,
            a.queues.roots,
            a.queues.requester,
            a.queues.entered,
            a.queues.done,
            a.queues.refreshing,
            a.queues.refreshed,
            a.queues.lookup.request.ready,
            a.queues.lookup.answer.valid,
            a.queues.offer.request.ready,
            a.queues.offer.done,
            a.sweep.busy,
            a.list.step,
            a.policy.refresh,
            a.slots.free,
            a.slots.count,
            a.check.working,
            a.o_op.ready,
        )
        for value in free:
            value = Value.cast(value)
            m.d.comb += value.eq(AnySeq(len(value)))
        answer, kept = (
            Value.cast(a.queues.lookup.answer.p),
            Signal(a.queues.lookup.answer.p.shape()),
        )
        kept = Value.cast(kept)
        m.d.comb += answer.eq(Mux(a.queues.lookup.answer.valid, AnySeq(len(answer)), kept))
        m.d.sync += kept.eq(answer)
        best = Value.cast(a.list.best)
        head, changes = Signal(len(best)), Signal()
        m.d.comb += best.eq(Mux(changes, AnySeq(len(best)), head))
        m.d.sync += [
            head.eq(best),
            changes.eq(a.list.take | a.list.clear | ongoing(a, "SWEEPING", "START")),
        ]
        found = Signal.like(self.count)
        m.d.comb += [
            found.eq(AnySeq(len(found))),
            Assume(found <= c.candidates),
            Assume(~a.queues.lookup.answer.valid | ongoing(a, "LOOKING")),
            Assume(a.list.best.valid == (self.count != 0)),
            Assume(
                ~(a.i_result.valid & (r.op.kind == Op.CLAIM))
                | (
                    ongoing(a, "CLAIMING")
                    & (r.op.squeue == a._squeue)
                    & (r.op.page == a.o_op.p.page)
                )
            ),
            Assert(self.count <= c.candidates),
        ]
        with m.If(ongoing(a, "SWEEPING") & a.sweep.busy):
            m.d.sync += self.count.eq(found)
        with m.Elif(a.list.clear):
            m.d.sync += self.count.eq(0)
        with m.Elif(a.list.take & (self.count != 0)):
            m.d.sync += self.count.eq(self.count - 1)
