# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KelpState: what policy `kelp` learns from accesses is what its golden model learns
(docs/policy.md)."""

import random

import pytest
from simulation import simulate

from kelp_golden.kelp_policy import SECOND, KelpPolicy
from kelp_golden.ops import Session
from kelp_hw.eviction.kelp_state import KelpState
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome, PageState

SMALL = named("trace").with_(queues=16, pages=64)


def test_state_follows_a_result_after_its_latency():
    """A read that the first opinion is to blame for turns the duel; then one of the second's."""
    dut = KelpState(config=SMALL)

    async def bench(ctx):
        ctx.set(dut.i_result.p.op.kind, Op.PREFETCH)
        ctx.set(dut.i_result.p.outcome, Outcome.MISSED)
        ctx.set(dut.i_result.p.policy, 1)
        ctx.set(dut.i_result.p.old.state, PageState.COLD)
        ctx.set(dut.i_result.valid, 1)
        seen = []
        for given in (1, 2, 0, 0, 0):
            ctx.set(dut.i_result.p.old.place, given)
            await ctx.tick().repeat(dut.INTERVAL)
            seen.append(ctx.get(dut.opinion.second))
        assert seen.index(1) == dut.LATENCY - 1

    simulate(dut, bench)


def state_of(ctx, dut, session):
    """What the golden policy calls near, followed second, credit left, marginal, refresh, ahead."""
    waiting, looking = dut.state.refresh, dut.state.ahead
    refresh = (session, ctx.get(waiting.squeue)) if ctx.get(waiting.valid) else None
    ahead = (ctx.get(looking.session), ctx.get(looking.squeue)) if ctx.get(looking.valid) else None
    opinion, credit = dut.opinion, dut.state.in_credit
    values = (ctx.get(x) for x in (opinion.near, opinion.second, credit, opinion.marginal))
    return (*values, refresh, ahead)


@pytest.mark.parametrize("seed", [1, 2])
def test_state_in_hardware_is_the_golden_one(seed):
    """Miss rate, duel, credit, marginal value, and which queues are to be looked at, over random
    results."""
    rng = random.Random(seed)
    dut, golden = KelpState(config=SMALL), KelpPolicy(SMALL)
    queues, heads, session = 12, 2, rng.randrange(2)
    base = session * SMALL.queues
    outcomes = {
        PageState.RESIDENT: Outcome.HIT,
        PageState.COLD: Outcome.MISSED,
        PageState.FETCHING: Outcome.PARKED,
        PageState.ABSENT: Outcome.ALLOCATED,
    }

    async def bench(ctx):
        ctx.set(dut.frames, 191)
        ctx.set(dut.sessions[session].used_queues, queues)
        ctx.set(dut.sessions[session].kv_heads, heads)
        last, step = {}, 1

        async def send(**result):
            ctx.set(dut.i_result.p, result)
            ctx.set(dut.i_result.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_result.valid, 0)
            await ctx.tick()
            while not ctx.get(dut.idle):
                await ctx.tick()

        await send(op={"kind": Op.OPEN, "session": session}, outcome=Outcome.DONE)
        golden.opened(session)
        for _ in range(1200):
            step += rng.random() < 0.02
            queue, page = base + rng.randrange(queues), rng.randrange(60)
            before, given = last.get((queue, page)), rng.randrange(3)
            if before == step:
                continue
            last[queue, page] = step
            state = (
                PageState.ABSENT
                if before is None
                else rng.choice(
                    [PageState.RESIDENT, PageState.RESIDENT, PageState.COLD, PageState.FETCHING]
                )
            )
            golden.refresh = golden.ahead = None
            golden.access(
                session,
                queue,
                Session(used_queues=queues, kv_heads=heads, step=step),
                last=before,
                missed=state in (PageState.COLD, PageState.FETCHING),
                given_by=given if state == PageState.COLD else None,
                frames=191,
            )
            access = dict(
                op={"kind": Op.READ, "session": session, "squeue": queue, "page": page},
                outcome=outcomes[state],
                first=1,
                old={"state": state, "place": given, "last_step": before or 0},
                word={"last_step": step},
            )
            await send(policy=0, **access)  # another policy's access teaches nothing
            await send(policy=1, **access)
            if rng.random() < 0.2:
                given = rng.randrange(3)
                golden.read(given)
                await send(
                    op={"kind": Op.PREFETCH, "session": session, "squeue": queue, "page": page},
                    outcome=Outcome.MISSED,
                    policy=1,
                    old={"state": PageState.COLD, "place": given},
                )
            if rng.random() < 0.3:
                value = rng.randrange(16000)
                golden.gave(value)
                ctx.set(dut.state.gave.p, value)
                ctx.set(dut.state.gave.valid, 1)
                await ctx.tick()
                ctx.set(dut.state.gave.valid, 0)
            assert state_of(ctx, dut, session) == (
                golden.near,
                golden.followed == SECOND,
                golden.credit > 0,
                golden.marginal,
                golden.refresh,
                golden.ahead,
            )
            ctx.set(dut.state.refreshed, 1)
            ctx.set(dut.state.looked, 1)
            await ctx.tick()
            ctx.set(dut.state.refreshed, 0)
            ctx.set(dut.state.looked, 0)

    simulate(dut, bench)
