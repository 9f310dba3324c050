# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CandidateList: the best in order, and how fast it has a new one."""

import random

import pytest
from simulation import simulate

from kelp_hw.eviction.candidates import CandidateList
from kelp_spec.config import named


def test_list_has_a_new_best_after_its_latency():
    dut = CandidateList(config=named("unit"))

    async def bench(ctx):
        for n in range(3):  # each better than the one before, one a cycle
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p, {"priority": n + 1, "page": n})
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        assert dut.INTERVAL == 1
        assert ctx.get(dut.best.page) == 1
        await ctx.tick().repeat(dut.LATENCY - 1)
        assert ctx.get(dut.best.page) == 2 and ctx.get(dut.best.valid)

    simulate(dut, bench)


@pytest.mark.parametrize("keep", [1, 4, 8])
def test_list_keeps_the_best_in_order(keep):
    """Random sweeps with many ties: what is taken is the sorted front, with idles between
    insertions."""
    rng = random.Random(keep)
    config = named("unit").with_(candidates=keep, pages=64)
    dut = CandidateList(config=config)
    sweeps = [
        [
            (rng.randrange(3), rng.choice([0, 7, 65535, rng.getrandbits(16)]), page)
            for page in range(64)
            if rng.random() < density
        ]
        for density in (0, 0.05, 0.1, 0.5, 1, 1)
    ]
    taken = []

    async def bench(ctx):
        for pages in sweeps:
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            for kind, priority, page in pages:
                for value in (1, 0)[: rng.randint(1, 2)]:
                    ctx.set(dut.i.valid, value)
                    ctx.set(
                        dut.i.p,
                        {"kind": kind, "priority": priority, "page": page, "last_step": page * 3},
                    )
                    await ctx.tick()
            ctx.set(dut.i.valid, 0)
            await ctx.tick()
            got = []
            while ctx.get(dut.best.valid):
                best = dut.best
                got.append((ctx.get(best.kind), ctx.get(best.priority), ctx.get(best.page)))
                assert ctx.get(best.last_step) == got[-1][2] * 3
                ctx.set(dut.take, 1)
                await ctx.tick()
            ctx.set(dut.take, 0)
            taken.append(got)

    simulate(dut, bench)
    assert taken == [sorted(pages, key=lambda c: (c[0], -c[1], c[2]))[:keep] for pages in sweeps]
