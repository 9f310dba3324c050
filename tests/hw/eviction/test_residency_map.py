# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ResidencyMap: what is written is read, and how fast; a read waits for an update."""

from simulation import cycles_until, simulate

from kelp_hw.eviction.residency_map import ResidencyMap
from kelp_spec.config import named


def test_latency_and_interval():
    dut = ResidencyMap(config=named("unit"))
    pages = {0: 1, 1: 4, 2: 6}  # squeue → its page

    async def bench(ctx):
        await cycles_until(ctx, dut.ready, limit=1000)
        ctx.set(dut.value, 1)
        for was in (0, 1):
            for squeue, page in pages.items():
                ctx.set(dut.squeue, squeue)
                ctx.set(dut.page, page)
                ctx.set(dut.update, 1)
                ctx.set(dut.read.request.valid, 1)
                assert not ctx.get(dut.read.granted)
                await ctx.tick()
                ctx.set(dut.update, 0)
                await ctx.tick()
                assert ctx.get(dut.was) == was
        await ctx.tick().repeat(2)
        seen = []
        for squeue in pages:  # one a cycle
            ctx.set(dut.read.request.squeue, squeue)
            assert ctx.get(dut.read.granted)
            await ctx.tick()
            seen.append(ctx.get(dut.read.word))
        assert (dut.LATENCY, dut.INTERVAL) == (1, 1)
        assert seen == [1 << page for page in pages.values()]

    simulate(dut, bench)
