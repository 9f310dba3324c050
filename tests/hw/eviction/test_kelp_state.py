# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KelpState: it asks for the queues that its golden model asks for (docs/policy.md)."""

import random
from collections import deque

import pytest
from simulation import simulate

from kelp_golden.kelp_policy import KelpPolicy
from kelp_hw.eviction.kelp_state import KelpState
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome
from kelp_spec.policy import LEFT, Policy

SMALL = named("trace").with_(queues=16, pages=64)
ACCESS = Outcome.HIT, Outcome.MISSED, Outcome.PARKED, Outcome.ALLOCATED


def test_a_queue_is_asked_for_after_its_latency():
    """Results on queues 1, 2, 3, one a cycle: 1 and then 2 are left behind, and 1 waits first."""
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
    assert seen.index((1, 1)) == 1 + dut.LATENCY - 1 and seen[-1] == (1, 1)


def access(squeue, step=0):
    """A result of policy `kelp`, of session 0."""
    return {
        "op": {"kind": Op.READ, "squeue": squeue},
        "outcome": Outcome.HIT,
        "first": 1,
        "policy": Policy.KELP,
        "word": {"last_step": step},
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.sampled
def test_the_latest_queues_left_wait_in_their_order(seed):
    """Accesses at any pace against an evictor of any pace: who waits is what a bounded queue holds
    whose oldest entry gives way. Both it and its end are met, also in one cycle."""
    rng, dut = random.Random(seed), KelpState(config=SMALL)
    print(f"seed {seed}")
    met = dict.fromkeys(("dropped", "both", "empty"), 0)

    async def bench(ctx):
        waiting, before, pipe = deque(), None, deque([None] * (dut.LATENCY - 1))
        for cycle in range(4000):
            busy = cycle // 200 % 2
            comes = rng.random() < (0.7 if busy else 0.1)
            squeue = rng.randrange(SMALL.queues)
            ctx.set(dut.i_result.valid, comes)
            ctx.set(dut.i_result.p, access(squeue))
            left = before if comes and before not in (None, squeue) else None
            before = squeue if comes else before
            refresh = dut.state.refresh
            assert ctx.get(refresh.valid) == bool(waiting), cycle
            if waiting:
                assert ctx.get(refresh.squeue) == waiting[0], cycle
            serves = bool(waiting) and rng.random() < (0.2 if busy else 0.5)
            ctx.set(dut.state.refreshed, serves)
            met["empty"] += not waiting
            pipe.append(left)
            left = pipe.popleft()
            met["both"] += serves and left is not None and len(waiting) == LEFT
            if serves:
                waiting.popleft()
            if left is not None:
                met["dropped"] += len(waiting) == LEFT
                waiting = deque([*waiting, left], maxlen=LEFT)
            await ctx.tick()

    simulate(dut, bench)
    assert min(met.values()) > 20, met


@pytest.mark.parametrize("seed", [1, 2])
def test_queues_asked_for_are_the_golden_ones(seed):
    """Random results of two sessions, among them such as are no access of the policy; requests that
    are taken, and such as wait for the next."""
    rng = random.Random(seed)
    dut, golden = KelpState(config=SMALL), KelpPolicy(SMALL)
    steps, asked, waiting = [1] * SMALL.sessions, 0, deque(maxlen=LEFT)

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

        def check(after):
            if golden.refresh is not None:
                waiting.append(golden.refresh)
                golden.refresh = None
            refresh = dut.state.refresh
            assert ctx.get(refresh.valid) == bool(waiting), after
            assert not waiting or ctx.get(refresh.squeue) == waiting[0], after

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
            check(other)
            golden.access(session, squeue, steps[session])
            await send(**access)
            check(access)
            if rng.random() < 0.01:
                await opens(session)
            if waiting and rng.random() < 0.5:
                asked += 1
                waiting.popleft()
                ctx.set(dut.state.refreshed, 1)
                await ctx.tick()
                ctx.set(dut.state.refreshed, 0)

    simulate(dut, bench)
    assert asked > 100
