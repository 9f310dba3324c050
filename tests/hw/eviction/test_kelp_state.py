# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KelpState: it asks for the queues that its golden model asks for (docs/policy.md)."""

import random

import pytest
from simulation import simulate

from kelp_golden.kelp_policy import KelpPolicy
from kelp_hw.eviction.kelp_state import KelpState
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome
from kelp_spec.policy import Policy

SMALL = named("trace").with_(queues=16, pages=64)
ACCESS = Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED


def test_a_queue_is_asked_for_after_its_latency():
    """Results on queues 1, 2, 3, one a cycle: 1 and then 2 are left behind."""
    dut, seen = KelpState(config=SMALL), []

    async def bench(ctx):
        for cycle in range(6):
            ctx.set(dut.i_result.valid, cycle < 3)
            ctx.set(
                dut.i_result.p,
                {
                    "op": {"kind": Op.READ, "squeue": cycle + 1},
                    "outcome": Outcome.HIT,
                    "first": 1,
                    "policy": Policy.KELP,
                },
            )
            await ctx.tick().repeat(dut.INTERVAL)
            seen.append((ctx.get(dut.state.refresh.valid), ctx.get(dut.state.refresh.squeue)))

    simulate(dut, bench)
    assert seen.index((1, 1)) == 1 + dut.LATENCY - 1 and seen[1 + dut.LATENCY] == (1, 2)


@pytest.mark.parametrize("seed", [1, 2])
def test_queues_asked_for_are_the_golden_ones(seed):
    """Random results of two sessions, among them such as are no access of the policy; requests that
    are taken, and such as wait for the next."""
    rng = random.Random(seed)
    dut, golden = KelpState(config=SMALL), KelpPolicy(SMALL)
    steps, asked = [1] * SMALL.sessions, 0

    async def bench(ctx):
        nonlocal asked

        async def send(*, counts=True, **result):
            ctx.set(dut.i_result.p, result)
            ctx.set(dut.i_result.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_result.valid, 0)
            assert ctx.get(dut.idle) != counts, result
            await ctx.tick()
            assert ctx.get(dut.idle)

        def asks():
            refresh = dut.state.refresh
            return ctx.get(refresh.squeue) if ctx.get(refresh.valid) else None

        async def opens(session):
            await send(op={"kind": Op.OPEN, "session": session}, outcome=Outcome.DONE)
            golden.opened(session)

        for session in range(SMALL.sessions):
            await opens(session)
        for _ in range(1500):
            session = rng.randrange(SMALL.sessions)
            steps[session] += rng.random() < 0.1
            squeue = session * SMALL.queues + rng.randrange(3)
            access = dict(
                op={"kind": rng.choice([Op.READ, Op.WRITE]), "session": session, "squeue": squeue},
                outcome=rng.choice(ACCESS),
                first=1,
                policy=Policy.KELP,
                word={"last_step": steps[session]},
            )
            others = (
                {"policy": Policy.EMA},
                {"first": 0},
                {"outcome": Outcome.REFUSED},
                {"kind": Op.MASS},
                {"kind": Op.OPEN, "outcome": Outcome.REFUSED},
            )
            other = rng.choice(others)
            elsewhere = session * SMALL.queues + rng.randrange(3)
            op = {"kind": other.get("kind", Op.READ), "session": session, "squeue": elsewhere}
            other = {name: value for name, value in other.items() if name != "kind"}
            await send(counts=False, **access | other | {"op": op})
            assert asks() == golden.refresh, other
            golden.access(session, squeue, steps[session])
            await send(**access)
            assert asks() == golden.refresh
            if rng.random() < 0.01:
                await opens(session)
            if rng.random() < 0.5:
                asked += golden.refresh is not None
                golden.refresh = None
                ctx.set(dut.state.refreshed, 1)
                await ctx.tick()
                ctx.set(dut.state.refreshed, 0)

    simulate(dut, bench)
    assert asked > 100
