# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryStore, on the chip and in memory: lines come back as they were written; a summary holds
until it is cleared, or lost by memory."""

import pytest
from flips import opened
from simulation import simulate
from streams import Ends, pump
from summary_port import CHIP, MEMORY, PAGES, SQUEUE, TWICE, SummaryBench, codes, told

from kelp_hw.select.summary_store import SummaryStore

CONFIGS = pytest.mark.parametrize("config", [CHIP, MEMORY], ids=["chip", "memory"])


class Bench(SummaryBench):
    """A store, whose summaries are set and cleared."""

    def __init__(self, config, **memory):
        super().__init__(SummaryStore(config=config), **memory)

    async def holds(self, ctx, dut, page):
        """Whether it does, and the row of its bits."""
        ctx.set(dut.look, 1)
        ctx.set(dut.look_row, page // dut.ROW)
        await self.tick(ctx)
        ctx.set(dut.look, 0)
        row = ctx.get(dut.holds)
        return row >> page % dut.ROW & 1, row

    async def change(self, ctx, dut, sets=None, clears=None):
        ctx.set(dut.set, sets is not None)
        ctx.set(dut.set_page, sets or 0)
        ctx.set(dut.i_clear.valid, clears is not None)
        ctx.set(dut.i_clear.p, {"squeue": SQUEUE, "page": clears or 0})
        await self.tick(ctx)
        ctx.set(dut.set, 0)
        ctx.set(dut.i_clear.valid, 0)


@CONFIGS
def test_lines(config):
    bench = Bench(config, latency=9, stall=0.3)
    assert told(bench.lines(offer=0.5, take=0.6, cycles=150)) == TWICE
    assert not bench.failed


@CONFIGS
def test_a_summary_holds_until_it_is_cleared(config):
    found, bench = [], Bench(config)

    async def steps(ctx, dut):
        await bench.ready(ctx, dut)

        async def holds(page):
            found.append(await bench.holds(ctx, dut, page))

        async def change(**what):
            await bench.change(ctx, dut, **what)

        await holds(3)
        await change(sets=3)
        await holds(3)
        await change(clears=3)
        await holds(3)
        await holds(9)
        await change(sets=9)
        ctx.set(dut.token_lines, 0)  # a line of it is no summary of tokens of one line
        await holds(9)
        await change(sets=9)
        await holds(9)
        ctx.set(dut.token_lines, 1)
        await holds(9)

    pump(bench.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    # Each page of a row has its own: 3 is in the first, 9 in the second.
    assert found == [(0, 0), (1, 8), (0, 0), (0, 0), (0, 0), (1, 2), (0, 0)]


@pytest.mark.parametrize("hammered", [0, 1])
def test_what_memory_did_not_write_does_not_hold(hammered):
    """Nor does it settle before, however long keys are written in each cycle."""
    # The last line of a page: what settles it is that error.
    bench = Bench(MEMORY, errs=lambda write, address: write and address // 64 % 128 == 19)

    async def steps(ctx, dut):
        await bench.ready(ctx, dut)
        for page in PAGES:
            await bench.change(ctx, dut, sets=page)
        if hammered:
            ctx.set(dut.i_clear.valid, 1)
            ctx.set(dut.i_clear.p, {"squeue": 0, "page": 1})
        for page in (3, 63):
            await bench.write(ctx, dut, [page])
        if hammered:
            with pytest.raises(AssertionError, match="settled"):
                await bench.write(ctx, dut, [9])
            ctx.set(dut.i_clear.valid, 0)
            await bench.tick(ctx)
            assert ctx.get(dut.settled)
        else:
            await bench.write(ctx, dut, [9])
        assert [(await bench.holds(ctx, dut, page))[0] for page in PAGES] == [1, 0, 1]
        assert await bench.read(ctx, dut) == [(p, n, [0] * 16) for p in PAGES for n in (0, 1)]
        ctx.set(dut.begins, 1)
        await bench.tick(ctx)
        ctx.set(dut.begins, 0)
        pages = (3, 63)
        assert await bench.read(ctx, dut, pages) == [
            (p, n, codes(p, n)) for p in pages for n in (0, 1)
        ]

    pump(bench.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    assert bench.failed == [(SQUEUE, 9, 1)]


@pytest.mark.parametrize("hammered", [0, 1])
def test_what_memory_does_not_read_is_zeros_and_made_anew(hammered):
    """Keys that are written in each cycle put that off, and nothing waits for it."""
    lost = 9, 0
    bench = Bench(MEMORY, errs=lambda write, at: not write and at == (SQUEUE * 64 + lost[0]) * 128)
    held = []

    async def steps(ctx, dut):
        await bench.ready(ctx, dut)
        for page in PAGES:
            await bench.change(ctx, dut, sets=page)
        await bench.write(ctx, dut)
        ctx.set(dut.i_clear.valid, hammered)
        ctx.set(dut.i_clear.p, {"squeue": 0, "page": 1})
        got = await bench.read(ctx, dut)
        assert got == [
            (page, line, [0] * 16 if (page, line) == lost else codes(page, line))
            for page in PAGES
            for line in range(2)
        ]
        held.append([(await bench.holds(ctx, dut, page))[0] for page in PAGES])
        ctx.set(dut.i_clear.valid, 0)
        await bench.tick(ctx)
        held.append([(await bench.holds(ctx, dut, page))[0] for page in PAGES])
        await bench.change(ctx, dut, sets=9)
        await bench.tick(ctx)
        held.append([(await bench.holds(ctx, dut, page))[0] for page in PAGES])

    pump(bench.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    assert bench.failed == [(SQUEUE, 9, 0)]
    assert held == [[1, hammered, 1], [1, 0, 1], [1, 1, 1]]


@CONFIGS
def test_it_is_ready_when_no_row_holds(config):
    """Whatever the memories held before: the last row is scrubbed in the cycle before `ready`."""
    dut = SummaryStore(config=config)
    top, memories = opened(dut)
    rows = config.page_words // dut.ROW
    held = [memory for path, memory in memories.items() if "lines_" in path]
    assert len(held) == dut.ROW

    async def bench(ctx):
        for memory in held:
            for row in range(rows):
                ctx.set(memory[row], 2)
        await ctx.tick().repeat(rows - 1)
        assert not ctx.get(dut.ready)
        await ctx.tick()
        assert ctx.get(dut.ready)
        assert not any(ctx.get(memory[row]) for memory in held for row in range(rows))

    simulate(top, bench)
