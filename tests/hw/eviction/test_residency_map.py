# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ResidencyMap: what is written is read, of one word a queue and of several, and how fast; a read
waits for an update."""

import random

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


def test_words_of_all_queues_are_apart():
    """Of three queues, each of four words, bits are set and cleared in any order."""
    config, rng = named("unit").with_(sessions=3, queues=1, pages=256), random.Random(1)
    dut, words = ResidencyMap(config=config), {}
    assert dut.words == 4

    async def bench(ctx):
        await cycles_until(ctx, dut.ready, limit=1000)
        for _ in range(600):
            squeue, page = rng.randrange(config.squeues), rng.randrange(config.pages)
            index, bit = divmod(page, dut.word_pages)
            before = words.get((squeue, index), 0)
            value = rng.randrange(2)
            ctx.set(dut.squeue, squeue)
            ctx.set(dut.page, page)
            ctx.set(dut.value, value)
            ctx.set(dut.update, 1)
            await ctx.tick()
            ctx.set(dut.update, 0)
            await ctx.tick()
            assert ctx.get(dut.was) == before >> bit & 1
            words[squeue, index] = before & ~(1 << bit) | value << bit
            await ctx.tick()
            asked = rng.randrange(config.squeues), rng.randrange(dut.words)
            ctx.set(dut.read.request.squeue, asked[0])
            ctx.set(dut.read.request.index, asked[1])
            assert ctx.get(dut.read.granted)
            await ctx.tick()
            assert ctx.get(dut.read.word) == words.get(asked, 0), asked

    simulate(dut, bench)
