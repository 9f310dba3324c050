# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ExcessTree: how long a walk takes, and that its root is the largest; the bench of the queue state
compares the roots."""

from simulation import cycles_until, simulate

from kelp_hw.eviction.excess_tree import ExcessTree
from kelp_spec.config import named


def test_latency_and_interval():
    dut = ExcessTree(config=named("unit"))
    given = [(5, 7), (3, 9), (1, 9), (3, 0)]  # squeue, its excess
    largest = [(5, 7), (3, 9), (1, 9), (1, 9)]  # the lower of equals

    async def bench(ctx):
        cleared = await cycles_until(ctx, ~dut.busy, limit=1000)
        assert cleared
        ctx.set(dut.pool, 2)
        for (squeue, excess), root in zip(given, largest, strict=True):
            ctx.set(dut.squeue, squeue)
            ctx.set(dut.excess, excess)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            assert ctx.get(dut.busy)
            # The walk ends with the root, and the next may start in that cycle.
            assert await cycles_until(ctx, ~dut.busy, limit=100) == dut.LATENCY
            assert dut.INTERVAL == dut.LATENCY + 1
            found = dut.roots[2]
            assert (ctx.get(found.squeue), ctx.get(found.excess)) == root

    simulate(dut, bench)
