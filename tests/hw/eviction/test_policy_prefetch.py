# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PolicyPrefetch: one page at a time, while there is credit and room; how fast."""

from simulation import cycles_until, simulate

from kelp_hw.eviction.policy_prefetch import PolicyPrefetch
from kelp_spec.config import named
from kelp_spec.metadata import Op, PrefetchSource

UNIT = named("unit")


def test_prefetches_one_page_at_a_time_while_there_is_credit_and_room():
    dut = PolicyPrefetch(config=UNIT)
    fetch = dut.o_prefetch

    async def bench(ctx):
        ctx.set(dut.pools.spare, [0, 3, 0, 0])
        ctx.set(dut.water, 2)
        ctx.set(dut.in_credit, 1)
        ctx.set(dut.pool.p, 1)
        ctx.set(dut.pool.valid, 1)
        ctx.set(dut.queue.p, {"squeue": 2})
        ctx.set(dut.queue.valid, 1)
        await ctx.tick().repeat(3)
        ctx.set(dut.wanted.p, 5)
        ctx.set(dut.wanted.valid, 1)
        ctx.set(fetch.ready, 1)
        ctx.set(dut.i_result.p.op, {"kind": Op.PREFETCH, "source": PrefetchSource.POLICY})
        ctx.set(dut.i_result.valid, 1)
        ctx.set(dut.turn, 1)
        assert await cycles_until(ctx, fetch.valid) == dut.LATENCY
        assert (ctx.get(fetch.p.page), ctx.get(fetch.p.squeue)) == (5, 2)
        assert ctx.get(dut.wanted.ready)
        await ctx.tick()
        assert ctx.get(dut.busy)
        assert 1 + await cycles_until(ctx, fetch.valid) == dut.INTERVAL
        await ctx.tick()
        ctx.set(dut.pools.spare, [3, 2, 3, 3])  # at the mark, and nothing makes room
        await cycles_until(ctx, ~dut.busy)
        await cycles_until(ctx, dut.wanted.ready)
        assert not ctx.get(fetch.valid)
        ctx.set(dut.room_comes, 1)
        await ctx.tick().repeat(3)
        assert not ctx.get(dut.busy) and not ctx.get(dut.wanted.ready)

    simulate(dut, bench)
