# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryStore, on the chip and in memory: lines come back as they were written; a summary holds
until it is cleared, or lost by memory."""

from itertools import combinations

import pytest
from flips import NO_FAULT, Opened, fields, flip, opened
from simulation import simulate
from streams import Ends, pump
from summary_port import CHIP, MEMORY, PAGES, SQUEUE, SummaryBench, codes, told, twice

from kelp_hw.lib.secded import Secded
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

    async def change(self, ctx, dut, sets=None, clears=None, made=1):
        ctx.set(dut.set, sets is not None)
        ctx.set(dut.set_holds, made)
        ctx.set(dut.set_page, sets or 0)
        ctx.set(dut.i_clear.valid, clears is not None)
        ctx.set(dut.i_clear.p, {"squeue": SQUEUE, "page": clears or 0})
        await self.tick(ctx)
        ctx.set(dut.set, 0)
        ctx.set(dut.i_clear.valid, 0)


@CONFIGS
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_lines(config, rows):
    bench = Bench(config.with_(half_lines=64), rows=rows, latency=9, stall=0.3)
    assert told(bench.lines(offer=0.5, take=0.6, cycles=300)) == twice(rows)
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
        await change(sets=9, made=0)
        ctx.set(dut.token_lines, 0)
        await holds(9)

    pump(bench.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    # Each page of a row has its own: 3 is in the first, 9 in the second.
    assert found == [(0, 0), (1, 8), (0, 0), (0, 0), (0, 0), (1, 2), (0, 0), (0, 0)]


#: A page whose keys are written in each cycle: none, one beside page 9 (equal modulo ROW), another.
HAMMERED = pytest.mark.parametrize("hammered", [None, 1, 2])


def hammer(ctx, dut, page):
    ctx.set(dut.i_clear.valid, page is not None)
    ctx.set(dut.i_clear.p, {"squeue": 0, "page": page or 0})


@HAMMERED
def test_what_memory_did_not_write_does_not_hold(hammered):
    """Nor does it settle before, however long keys of a page beside it are written in each
    cycle."""
    # The last line of a page: what settles it is that error.
    bench = Bench(MEMORY, errs=lambda write, address: write and address // 64 % 128 == 19)

    async def steps(ctx, dut):
        await bench.ready(ctx, dut)
        for page in PAGES:
            await bench.change(ctx, dut, sets=page)
        hammer(ctx, dut, hammered)
        for page in (3, 63):
            await bench.write(ctx, dut, [page])
        if hammered == 1:
            with pytest.raises(AssertionError, match="settled"):
                await bench.write(ctx, dut, [9])
            hammer(ctx, dut, None)
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


def test_what_was_not_written_stops_keys_that_keep_it_waiting():
    """After `PATIENCE` cycles, until it is cleared; no sooner, and not for a page elsewhere."""
    bench = Bench(MEMORY, errs=lambda write, address: write)
    starved = []

    async def steps(ctx, dut):
        await bench.ready(ctx, dut)
        for page in (2, 1):
            hammer(ctx, dut, page)
            for line in (0, 1):
                ctx.set(dut.i_line.p, {"id": 9, "line": line})
                ctx.set(dut.i_line.valid, 1)
                await bench.tick(ctx)
            ctx.set(dut.i_line.valid, 0)
            for _ in range(dut.PATIENCE + 9):
                await bench.tick(ctx)
                starved.append(ctx.get(dut.starves))
        hammer(ctx, dut, None)
        await bench.tick(ctx)
        assert ctx.get(dut.settled) and not ctx.get(dut.starves)

    pump(bench.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    assert len(bench.failed) == 4
    count = SummaryStore.PATIENCE + 9
    assert not any(starved[:count])
    assert starved[-1] and SummaryStore.PATIENCE - 3 <= starved[count:].index(1) < count


@HAMMERED
def test_what_memory_does_not_read_is_zeros_and_made_anew(hammered):
    """Keys that are written beside it in each cycle put that off, and nothing waits for it."""
    lost = 9, 0
    bench = Bench(MEMORY, errs=lambda write, at: not write and at == (SQUEUE * 64 + lost[0]) * 128)
    held = []

    async def steps(ctx, dut):
        await bench.ready(ctx, dut)
        for page in PAGES:
            await bench.change(ctx, dut, sets=page)
        await bench.write(ctx, dut)
        hammer(ctx, dut, hammered)
        got = await bench.read(ctx, dut)
        assert got == [
            (page, line, [0] * 16 if (page, line) == lost else codes(page, line))
            for page in PAGES
            for line in range(2)
        ]
        held.append([(await bench.holds(ctx, dut, page))[0] for page in PAGES])
        hammer(ctx, dut, None)
        await bench.tick(ctx)
        held.append([(await bench.holds(ctx, dut, page))[0] for page in PAGES])
        await bench.change(ctx, dut, sets=9)
        await bench.tick(ctx)
        held.append([(await bench.holds(ctx, dut, page))[0] for page in PAGES])

    pump(bench.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    assert bench.failed == [(SQUEUE, 9, 0)]
    assert held == [[1, hammered == 1, 1], [1, 0, 1], [1, 1, 1]]


@pytest.mark.parametrize(("bits", "kind"), [((3,), "corrected"), ((3, 4), "fatal")])
def test_flips_in_what_waits_for_memory_are_told(bits, kind):
    """Of the second line, since the first has left its row: once, when memory has answered, and
    all the time where nothing is to go on."""
    dut, told_of = Opened(SummaryStore(config=MEMORY)), []
    (asked,) = (memory for path, memory in dut.memories.items() if "asked" in path)
    bench = SummaryBench(dut, latency=1)

    async def steps(ctx, dut):
        await bench.ready(ctx, dut)
        await bench.write(ctx, dut)
        ctx.set(dut.i.p, 9)
        ctx.set(dut.i.valid, 1)
        bench.memory.latency = 1000
        while not ctx.get(dut.i.ready):
            await bench.tick(ctx)
        await bench.tick(ctx)
        ctx.set(dut.i.valid, 0)
        rows = [row for row in range(asked.depth) if ctx.get(asked[row])][:2]
        for row in rows:
            flip(ctx, asked, row, *bits)
        ctx.set(dut.o.ready, 1)
        for _ in range(2000):
            await bench.tick(ctx)
            told_of.append(fields(ctx, dut.fault))

    pump(dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    found = [each for each in told_of if each != NO_FAULT]
    assert found == [NO_FAULT | {kind: 1}] * (1 if kind == "corrected" else len(found) or 1)


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


@CONFIGS
def test_flipped_bits_let_no_summary_hold(config):
    """Neither that of a former owner, which was cleared, nor one of another number of lines: one
    to three bits of any code word, in each bank."""
    dut = SummaryStore(config=config)
    top, memories = opened(dut)
    pages = range(16, 16 + dut.ROW)
    row = SQUEUE << config.page_bits - dut.row_bits | 2
    banks = [memories[path] for path in sorted(memories) if "lines_" in path]
    width = Secded(4).code_bits
    flips = [sum(1 << k for k in bits) for n in (1, 2, 3) for bits in combinations(range(width), n)]

    async def bench(ctx):
        async def holds():
            ctx.set(dut.look, 1)
            ctx.set(dut.look_row, 2)
            await ctx.tick()
            return ctx.get(dut.holds)

        ctx.set(dut.squeue, SQUEUE)
        await ctx.tick().repeat(config.page_words // dut.ROW)
        assert ctx.get(dut.ready)
        for written in (0, 1, None):  # lines of a token, less one; None: cleared
            for page in pages:
                ctx.set(dut.token_lines, written or 0)
                ctx.set(dut.set, written is not None)
                ctx.set(dut.set_holds, 1)
                ctx.set(dut.set_page, page)
                ctx.set(dut.i_clear.valid, written is None)
                ctx.set(dut.i_clear.p, {"squeue": SQUEUE, "page": page})
                await ctx.tick()
            ctx.set(dut.set, 0)
            ctx.set(dut.i_clear.valid, 0)
            words = [ctx.get(bank[row]) for bank in banks]
            for bit in (0, *flips):
                for bank, word in zip(banks, words, strict=True):
                    ctx.set(bank[row], word ^ bit)
                for token_lines in (0, 1):
                    ctx.set(dut.token_lines, token_lines)
                    sound = not bit and token_lines == written
                    assert await holds() == (255 if sound else 0), (written, bit, token_lines)

    simulate(top, bench)
