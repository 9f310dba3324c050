# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LruShadow: the golden shadow, and what finds it full (docs/policy.md)."""

import random

import pytest
from simulation import simulate

from kelp_golden.kelp_policy import Shadow
from kelp_hw.eviction.lru_shadow import LruShadow
from kelp_spec import policy
from kelp_spec.config import named

SMALL = named("trace").with_(queues=16, pages=64)


@pytest.mark.parametrize("seed", [1, 2])
def test_shadow_in_hardware_is_the_golden_one(seed):
    """Two sessions, steps that leap and wrap, sessions that open anew."""
    rng = random.Random(seed)
    dut = LruShadow(config=SMALL)
    golden, credit, leaps = [Shadow(), Shadow()], 0, 0

    async def bench(ctx):
        nonlocal credit, leaps
        frames = rng.choice([40, 100, 200])
        ctx.set(dut.frames, frames)
        last, step = {}, [0, 0]

        async def send(**event):
            ctx.set(dut.i.p, event)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            while not ctx.get(dut.idle):
                await ctx.tick()

        for _ in range(2500):
            session = rng.randrange(2)
            if rng.random() < 0.04:
                leap = rng.choice([1, 1, 1, 1, 2, 7, 60] * 5 + [300])
                leaps += leap > 255
                step[session] += leap
            if rng.random() < 0.001:
                golden[session], step[session] = Shadow(), 0
                last = {key: value for key, value in last.items() if key[0] != session}
                await send(opened=1, session=session)
            key = session, rng.randrange(8), rng.randrange(30)
            before, now = last.get(key), step[session]
            if before == now:
                continue
            read = rng.randrange(2)
            if golden[session].access(now, before, key[1], frames):
                credit = min(policy.CREDIT_MOST, credit + 1)
            if read:
                credit = max(-policy.CREDIT_MOST, credit - 1)
            last[key] = now
            await send(
                access=1,
                read=read,
                session=session,
                octile=key[1],
                step=now,
                last=before or 0,
                new=int(before is None),
            )
            assert ctx.get(dut.credit) == credit
        assert leaps

    simulate(dut, bench)


def test_shadow_loses_what_finds_it_full_and_goes_on():
    dut = LruShadow(config=SMALL)
    lost = 0

    async def bench(ctx):
        nonlocal lost
        ctx.set(dut.frames, 5)
        ctx.set(dut.i.valid, 1)
        for n in range(200):
            ctx.set(dut.i.p, {"access": 1, "step": 1, "octile": n % 8, "new": 1})
            lost += ctx.get(dut.lost)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        for _ in range(600):
            await ctx.tick()
        assert ctx.get(dut.idle)

    simulate(dut, bench)
    assert 100 < lost < 200
