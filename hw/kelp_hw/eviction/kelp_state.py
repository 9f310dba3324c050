# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What policy `kelp` learns from accesses: the few numbers of the whole pool, and when to look at a
queue anew (docs/policy.md). One result a cycle, learnt after 2 cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import STEP_BITS, Op, Outcome, PageState
from kelp_spec.policy import (
    DUEL_MOST,
    EXPLORE,
    FIRST_REGRET,
    GIVEN_BITS,
    MARGINAL_SHIFT,
    MISS_RATE_SHIFT,
    NEAR_LEAST,
    NEAR_MOST,
    NEAR_SHIFT,
    OCTILE_BITS,
    SECOND_REGRET,
)

from .lru_shadow import LruShadow
from .signatures import EvictionLayouts, PolicyState

__all__ = ["KelpState"]


class KelpState(wiring.Component):
    """Follows M3's results on queues whose policy is `kelp`. `opinion` is, a cycle after a result
    is shown, as of all results before it.

    Latency: `LATENCY` cycles from a result to `opinion`. Interval: `INTERVAL`, one result per
    cycle; the LRU shadow behind it takes about 13 cycles an event.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result : in, always-ready stream of result
    sessions : in
        As M3 has them in the cycle in which `i_result` shows an op.
    frames : in
        Of all pools.
    opinion : out, opinion
    state : out, PolicyState
    idle : out
        Nothing is on its way; `state.refresh` and `state.ahead` may wait.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        self.shadow = LruShadow(config=config)
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "frames": In(self.shadow.count_bits),
                "opinion": Out(layouts.opinion),
                "state": Out(PolicyState(config)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        r, op = self.i_result.p, self.i_result.p.op
        m.submodules.shadow = shadow = self.shadow
        opinion, state = self.opinion, self.state
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.r, s.op, s.shadow, s.opinion, s.state = r, op, shadow, opinion, state
        self._results(m, s)
        self._duel(m, s)
        self._victims(m, s)
        self._turn(m, s)
        return m

    def _results(self, m: Module, s: SimpleNamespace) -> None:
        """What of a result matters, registered."""
        c = self.config
        r, op = s.r, s.op
        served = Signal()
        with m.Switch(r.outcome):
            with m.Case(Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED):
                m.d.comb += served.eq(1)
        demand = ((op.kind == Op.READ) | (op.kind == Op.WRITE)) & r.first & served
        was = {
            s: r.old.state == s
            for s in (PageState.ABSENT, PageState.LOST, PageState.COLD, PageState.FETCHING)
        }
        prefetched = (op.kind == Op.PREFETCH) & (r.outcome == Outcome.MISSED)
        access, read, opened = Signal(), Signal(), Signal()
        new, missed, given = Signal(), Signal(), Signal(GIVEN_BITS)
        squeue, last, session_id = Signal(c.squeue_bits), Signal(STEP_BITS), Signal(c.session_bits)
        used_queues, kv_heads, step = (
            Signal(c.queue_bits + 1),
            Signal(c.queue_bits + 1),
            Signal(STEP_BITS),
        )
        regs = self.sessions[op.session]
        valid = self.i_result.valid & r.policy
        m.d.sync += [
            access.eq(valid & demand),
            read.eq(valid & ((demand & was[PageState.COLD]) | prefetched)),
            opened.eq(self.i_result.valid & (op.kind == Op.OPEN) & (r.outcome == Outcome.DONE)),
            new.eq(was[PageState.ABSENT] | was[PageState.LOST]),
            missed.eq(was[PageState.COLD] | was[PageState.FETCHING]),
            given.eq(r.old.place),
            squeue.eq(op.squeue),
            last.eq(r.old.last_step),
            session_id.eq(op.session),
            used_queues.eq(regs.used_queues),
            kv_heads.eq(regs.kv_heads),
            step.eq(r.word.last_step),
        ]
        s.access, s.read, s.opened, s.new, s.missed = access, read, opened, new, missed
        s.given, s.squeue, s.last, s.session_id = given, squeue, last, session_id
        s.used_queues, s.kv_heads, s.step = used_queues, kv_heads, step

    def _duel(self, m: Module, s: SimpleNamespace) -> None:
        """Miss rate and duel."""
        missed, access, opinion, read, given = s.missed, s.access, s.opinion, s.read, s.given
        rate, change = Signal(16), Signal(signed(18))
        m.d.comb += change.eq((Mux(missed, 65535, 0) - rate) >> MISS_RATE_SHIFT)
        with m.If(access):
            m.d.sync += rate.eq(rate + change)
        lower = Signal(16)
        m.d.comb += [
            lower.eq(rate >> NEAR_SHIFT),
            opinion.near.eq(Mux(lower > NEAR_MOST - NEAR_LEAST, NEAR_LEAST, NEAR_MOST - lower)),
        ]
        # `second` stands beside `duel` and says whether that is more than 0: it decides what is
        # added to it. Whether the sum is, or where it ends, is known from `duel` for each regret,
        # beside the addition.
        rare = EXPLORE - 1
        cases = (
            (1, 0, FIRST_REGRET),
            (1, 1, FIRST_REGRET * rare),
            (2, 1, -SECOND_REGRET),
            (2, 0, -SECOND_REGRET * rare),
        )
        regret = Signal(signed(max(abs(counts) for *_, counts in cases).bit_length() + 1))
        duel, most, least, leads = (
            Signal(signed(DUEL_MOST.bit_length() + 1)),
            Signal(),
            Signal(),
            Signal(),
        )
        m.d.comb += leads.eq(opinion.second)
        for who, follows, counts in cases:
            with m.If(read & (given == who) & (opinion.second == follows)):
                m.d.comb += [
                    regret.eq(counts),
                    most.eq(duel >= DUEL_MOST - counts),
                    least.eq(duel <= -DUEL_MOST - counts),
                    leads.eq(duel > -counts),
                ]
        m.d.sync += [
            duel.eq(Mux(most, DUEL_MOST, Mux(least, -DUEL_MOST, duel + regret))),
            opinion.second.eq(leads),
            Assert(opinion.second == (duel > 0)),
        ]

    def _victims(self, m: Module, s: SimpleNamespace) -> None:
        """Victims, and LRU's reads a cycle later."""
        c = self.config
        state, opinion, squeue, session_id = s.state, s.opinion, s.squeue, s.session_id
        used_queues, shadow, access, read = s.used_queues, s.shadow, s.access, s.read
        opened, step, last, new = s.opened, s.step, s.last, s.new
        disputes = Signal(range(EXPLORE))
        m.d.comb += state.explore.eq(disputes == EXPLORE - 1)
        with m.If(state.disputed):
            m.d.sync += disputes.eq(disputes + 1)
        with m.If(state.gave.valid):
            m.d.sync += opinion.marginal.eq(
                opinion.marginal + ((state.gave.p - opinion.marginal) >> MARGINAL_SHIFT)
            )

        # --- LRU's reads, a cycle later: the octile takes the session's shape ---
        first = Array([Const(k * c.queues, c.squeue_bits) for k in range(c.sessions)])
        queue, octile = Signal(c.queue_bits), Signal(OCTILE_BITS)
        m.d.comb += queue.eq(squeue - first[session_id])
        highest = Signal(c.queue_bits)  # bits of the last queue's number say how far to shift
        m.d.comb += [highest.eq(used_queues - 1), octile.eq(queue)]
        for shift in range(1, c.queue_bits - OCTILE_BITS + 1):
            with m.If(highest[shift + OCTILE_BITS - 1 :].any()):
                m.d.comb += octile.eq(queue >> shift)
        m.d.sync += [
            shadow.i.valid.eq(access | read | opened),
            shadow.i.p.access.eq(access),
            shadow.i.p.read.eq(read),
            shadow.i.p.opened.eq(opened),
            shadow.i.p.session.eq(session_id),
            shadow.i.p.octile.eq(octile),
            shadow.i.p.step.eq(step),
            shadow.i.p.last.eq(last),
            shadow.i.p.new.eq(new),
        ]
        m.d.comb += shadow.frames.eq(self.frames)
        # Before the shadow is idle: it counts some cycles earlier.
        m.d.sync += state.in_credit.eq(shadow.credit > 0)
        s.first = first

    def _turn(self, m: Module, s: SimpleNamespace) -> None:
        """A queue's turn begins: revalue the one before, look at the next layer's."""
        c = self.config
        session_id, access, squeue, step = s.session_id, s.access, s.squeue, s.step
        kv_heads, first, used_queues, state = s.kv_heads, s.first, s.used_queues, s.state
        opened, read, shadow = s.opened, s.read, s.shadow
        turn = data.StructLayout({"valid": 1, "squeue": c.squeue_bits, "step": STEP_BITS})
        turns = Array([Signal(turn, name=f"turn{k}") for k in range(c.sessions)])
        at, begins = Signal(turn), Signal()
        following, around, end = (
            Signal(c.squeue_bits + 2),
            Signal(c.squeue_bits + 2),
            Signal(c.squeue_bits + 2),
        )
        m.d.comb += [
            at.eq(turns[session_id]),
            begins.eq(access & ~(at.valid & (at.squeue == squeue) & (at.step == step))),
            following.eq(squeue + kv_heads),
            end.eq(first[session_id] + used_queues),
            around.eq(following - used_queues),
        ]
        with m.If(state.refreshed):
            m.d.sync += state.refresh.valid.eq(0)
        with m.If(state.looked):
            m.d.sync += state.ahead.valid.eq(0)
        with m.If(access):
            m.d.sync += [
                turns[session_id].valid.eq(1),
                turns[session_id].squeue.eq(squeue),
                turns[session_id].step.eq(step),
            ]
        with m.If(begins):
            m.d.sync += [
                state.refresh.valid.eq(at.valid),
                state.refresh.squeue.eq(at.squeue),
                state.ahead.session.eq(session_id),
                state.ahead.squeue.eq(Mux(following >= end, around, following)),
                state.ahead.valid.eq(used_queues != kv_heads),
            ]
        with m.If(opened):
            m.d.sync += turns[session_id].valid.eq(0)

        m.d.comb += self.idle.eq(~Cat(access, read, opened, shadow.i.valid).any() & shadow.idle)
