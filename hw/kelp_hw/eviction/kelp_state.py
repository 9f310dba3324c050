# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy `kelp`: which queues are to be valued anew (docs/policy.md). One result a cycle, heeded
after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import STEP_BITS, Op, Outcome
from kelp_spec.policy import LEFT

from ..lib.power_of_two import power_of_two
from .signatures import EvictionLayouts, PolicyState

__all__ = ["KelpState"]


class KelpState(wiring.Component):
    """Follows M3's results on queues whose policy is `kelp`. The first access of a queue in a step
    asks for the queue that its session's access before went to: that one's turn is over. The latest
    `LEFT` of them wait, and are served in the order in which they were left: a layer's requests
    come faster than its victims are found, and evictions go first.

    Latency: `LATENCY` cycles from a result to `state`. Interval: `INTERVAL`, one result per cycle.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result : in, always-ready stream of result
    state : out, PolicyState
    idle : out
        No access is on its way to `state`; queues may wait there.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = EvictionLayouts(config)
        super().__init__(
            {
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "state": Out(PolicyState(config)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, r, op = self.config, self.i_result.p, self.i_result.p.op

        # What of a result matters, registered.
        served, access, opened = Signal(), Signal(), Signal()
        squeue, session, step = Signal(c.squeue_bits), Signal(c.session_bits), Signal(STEP_BITS)
        with m.Switch(r.outcome):
            with m.Case(Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED):
                m.d.comb += served.eq(1)
        demand = ((op.kind == Op.READ) | (op.kind == Op.WRITE)) & r.first & served
        m.d.sync += [
            access.eq(self.i_result.valid & r.policy & demand),
            opened.eq(self.i_result.valid & (op.kind == Op.OPEN) & (r.outcome == Outcome.DONE)),
            squeue.eq(op.squeue),
            session.eq(op.session),
            step.eq(r.word.last_step),
        ]

        turn = data.StructLayout({"valid": 1, "squeue": c.squeue_bits, "step": STEP_BITS})
        turns = Array([Signal(turn, name=f"turn{k}") for k in range(c.sessions)])
        at = Signal(turn)
        m.d.comb += [at.eq(turns[session]), self.idle.eq(~(access | opened))]
        left = Signal()
        with m.If(access):
            m.d.sync += [
                turns[session].valid.eq(1),
                turns[session].squeue.eq(squeue),
                turns[session].step.eq(step),
            ]
            with m.If(at.valid & ((at.squeue != squeue) | (at.step != step))):
                m.d.comb += left.eq(1)
        with m.If(opened):
            m.d.sync += turns[session].valid.eq(0)
        self._wait(m, left, at.squeue)
        return m

    def _wait(self, m: Module, left: Signal, squeue) -> None:
        """A queue that is `left` waits behind those before it; when all places are taken, the
        oldest one's is taken."""
        state = self.state
        waiting = Array([Signal(self.config.squeue_bits, name=f"left{k}") for k in range(LEFT)])
        first, count = Signal(range(power_of_two("LEFT", LEFT))), Signal(range(LEFT + 1))
        full = count == LEFT
        gone = state.refreshed | (left & full)
        m.d.comb += [
            state.refresh.valid.eq(count != 0),
            state.refresh.squeue.eq(waiting[first]),
        ]
        with m.If(left):
            m.d.sync += waiting[(first + count)[: len(first)]].eq(squeue)
        m.d.sync += [
            first.eq(first + gone),
            count.eq(count + left - gone),
            Assert(~state.refreshed | (count != 0), "a queue was valued that did not wait"),
        ]
