# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""WritePath: a line a cycle."""

from data_speed import ITEMS
from simulation import simulate

from kelp_hw.datapath.write_path import WritePath
from kelp_spec.config import named

UNIT = named("unit")


def test_it_quantises_a_line_a_cycle():
    block = WritePath(config=UNIT)
    accepted, ready = [], []

    async def bench(ctx):
        ctx.set(block.i_data.valid, 1)
        ctx.set(block.i_data.p.byte_enable, (1 << 64) - 1)
        await ctx.tick()
        ctx.set(block.i.valid, 1)
        for cycle in range(ITEMS + block.LATENCY + 2):
            if ctx.get(block.i.ready):
                accepted.append(cycle)
            ctx.set(block.head.consume, ctx.get(block.head.ready))
            if ctx.get(block.head.ready):
                ready.append(cycle)
            await ctx.tick()

    simulate(block, bench)
    pairs = list(zip(accepted, ready, strict=False))[:ITEMS]
    assert len(pairs) == ITEMS
    assert {out - into for into, out in pairs} == {block.LATENCY}
    assert {b - a for (_, a), (_, b) in zip(pairs, pairs[1:], strict=False)} == {block.INTERVAL}
