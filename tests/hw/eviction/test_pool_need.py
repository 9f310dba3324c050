# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PoolNeed: which pool needs a frame, and how fast it says so."""

import pytest
from simulation import cycles_until, simulate

from kelp_hw.eviction.pool_need import PoolNeed
from kelp_spec.config import named
from kelp_spec.metadata import Op, PageState

UNIT = named("unit")


def test_pools_below_the_mark_take_turns():
    dut = PoolNeed(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.low_water, 2)
        await ctx.tick().repeat(3)
        ctx.set(dut.pools.used, [1, 1, 0, 1])
        ctx.set(dut.pools.spare, [1, 2, 0, 0])
        assert await cycles_until(ctx, dut.need.valid) == dut.LATENCY
        served = []
        ctx.set(dut.begin, 1)
        for _ in range(4):
            served.append(ctx.get(dut.need.pool))
            await ctx.tick().repeat(dut.INTERVAL)
        assert served == [0, 3, 0, 3]  # pool 1 has enough, pool 2 gives nothing

    simulate(dut, bench)


def test_evictions_run_ahead_for_every_entry_that_waits():
    """As many side by side as entries wait and as are to be kept free."""
    dut = PoolNeed(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.low_water, 1)
        ctx.set(dut.pools.used, [8, 0, 0, 0])
        ctx.set(dut.pools.spare, [-2, 0, 0, 0])
        await ctx.tick().repeat(3)
        for under_way in range(4):
            ctx.set(dut.slots.count, [under_way, 0, 0, 0])
            await ctx.tick()
            assert ctx.get(dut.need.valid) == (under_way < 3)

    simulate(dut, bench)


def test_a_pool_without_a_victim_rests_until_one_may_have_appeared():
    dut = PoolNeed(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.pools.used, [1, 0, 0, 0])
        await cycles_until(ctx, dut.need.valid)
        for appears in (0, 1):  # a page that becomes resident during a search counts
            ctx.set(dut.begin, 1)
            await ctx.tick()
            ctx.set(dut.begin, 0)
            ctx.set(dut.i_result.valid, appears)
            ctx.set(dut.i_result.p.changed, 1)
            ctx.set(dut.i_result.p.word.state, PageState.RESIDENT)
            await ctx.tick()
            ctx.set(dut.i_result.valid, 0)
            assert ctx.get(dut.unreported) == 1 - appears
            ctx.set(dut.failed, 1)
            await ctx.tick()
            ctx.set(dut.failed, 0)
            await ctx.tick().repeat(2)
            assert ctx.get(dut.need.valid) == appears and not ctx.get(dut.unreported)
            if not appears:
                ctx.set(dut.i_result.p.op.kind, Op.RELEASE)
                ctx.set(dut.i_result.valid, 1)
                await ctx.tick()
                ctx.set(dut.i_result.valid, 0)
                await cycles_until(ctx, dut.need.valid)

    simulate(dut, bench)


@pytest.mark.parametrize(
    ("result", "wakes"),
    [
        ({"word.state": PageState.RESIDENT, "changed": 1}, True),
        ({"word.state": PageState.RESIDENT}, False),
        ({"word.state": PageState.FETCHING, "changed": 1}, False),
        ({"word.state": PageState.RESIDENT, "changed": 1, "word.pinned": 1}, False),
        ({"word.state": PageState.ABSENT, "op.kind": Op.RELEASE}, True),
        ({"word.state": PageState.ABSENT, "op.kind": Op.CLAIM}, False),
    ],
)
def test_what_may_have_made_a_victim_ends_the_rest(result, wakes):
    dut = PoolNeed(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.pools.used, [1, 0, 0, 0])
        await cycles_until(ctx, dut.need.valid)
        for port in (dut.begin, dut.failed):
            ctx.set(port, 1)
            await ctx.tick()
            ctx.set(port, 0)
        await ctx.tick()
        assert not ctx.get(dut.need.valid)
        for path, value in result.items():
            field = dut.i_result.p
            for name in path.split("."):
                field = field[name]
            ctx.set(field, value)
        ctx.set(dut.i_result.valid, 1)
        await ctx.tick()
        ctx.set(dut.i_result.valid, 0)
        await ctx.tick().repeat(3)
        assert ctx.get(dut.need.valid) == wakes

    simulate(dut, bench)
