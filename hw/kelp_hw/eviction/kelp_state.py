# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy `kelp`: which queue is to be valued anew (docs/policy.md). One result a cycle, heeded
after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import STEP_BITS, Op, Outcome

from .signatures import EvictionLayouts, PolicyState

__all__ = ["KelpState"]


class KelpState(wiring.Component):
    """Follows M3's results on queues whose policy is `kelp`. The first access of a queue in a step
    asks for the queue that its session's access before went to: that one's turn is over.

    Latency: `LATENCY` cycles from a result to `state`. Interval: `INTERVAL`, one result per cycle.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_result : in, always-ready stream of result
    state : out, PolicyState
    idle : out
        No access is on its way to `state`; `state.refresh` may wait.
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
        c, state, r, op = self.config, self.state, self.i_result.p, self.i_result.p.op

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
        with m.If(state.refreshed):
            m.d.sync += state.refresh.valid.eq(0)
        with m.If(access):
            m.d.sync += [
                turns[session].valid.eq(1),
                turns[session].squeue.eq(squeue),
                turns[session].step.eq(step),
            ]
            with m.If(at.valid & ((at.squeue != squeue) | (at.step != step))):
                m.d.sync += [state.refresh.valid.eq(1), state.refresh.squeue.eq(at.squeue)]
        with m.If(opened):
            m.d.sync += turns[session].valid.eq(0)
        return m
