# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryMemory: lines come back as they were written, in order, as many on their way as there are
places; memory's errors are told, and what it answers with them is not."""

from collections import Counter

import pytest
from flips import Opened, fields, flip
from simulation import simulate
from streams import Ends, pump
from summary_port import MEMORY, PAGES, SQUEUE, SummaryBench, codes, told, twice

from kelp_hw.select.summary_memory import SummaryMemory
from kelp_spec.select import CODED_LINES


def bench(**memory):
    return SummaryBench(SummaryMemory(config=MEMORY), **memory)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 17])
def test_lines(rows):
    """Also of a page with more of them than a slow memory may leave unconfirmed."""
    most, latency = (4, 9) if rows <= 4 else (32, 60)
    assert rows <= 4 or rows > SummaryMemory.WRITES
    dut = SummaryMemory(config=MEMORY.with_(half_lines=CODED_LINES * most))
    b = SummaryBench(dut, rows=rows, latency=latency, stall=0.3, seed=rows)
    assert told(b.lines(offer=0.5, take=0.6, cycles=300)) == twice(rows)
    assert not b.failed
    first = {page: (SQUEUE * dut.config.pages + page) * dut.config.select_rows for page in PAGES}
    assert {*b.memory.lines} == {64 * (first[page] + n) for page in PAGES for n in range(rows)}


@pytest.mark.parametrize(("bits", "kind"), [(1, "corrected"), (2, "fatal")])
def test_flipped_bits_of_lines_on_their_way_are_told(bits, kind):
    """One in a row changes nothing; of two nobody knows which line comes."""
    dut, faults, flipped = Opened(SummaryMemory(config=MEMORY)), Counter(), []
    b, kept = SummaryBench(dut, latency=9, stall=0.3), {}
    ((_, memory),) = dut.memories.items()
    watch = b.watch

    def watched(ctx):
        watch(ctx)
        faults.update(name for name, on in fields(ctx, dut.fault).items() if on)
        for row in range(memory.depth):
            if ctx.get(memory[row]) != kept.get(row, 0):
                flip(ctx, memory, row, *range(bits))
                kept[row] = ctx.get(memory[row])
                flipped.append(row)

    b.watch = watched
    seen = b.lines(offer=0.5, take=0.6, cycles=300)
    assert len(flipped) > 4 and {*faults} == {kind}
    if bits == 1:
        assert told(seen) == twice() and faults[kind] == len(flipped)


def test_latency_and_interval():
    seen = bench().lines()
    assert told(seen) == twice()
    # Memory answers in the next cycle; the page's name stands a cycle later than that.
    assert seen["o"][0].offered - seen["i"][0].offered == SummaryMemory.LATENCY + 1
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {SummaryMemory.INTERVAL}


def test_many_lines_are_on_their_way():
    """As many as there are places, whatever memory's latency."""
    looks, b = MEMORY.select_looks, bench()
    b.memory._due = lambda: b.memory.now + 3 * looks
    ends = Ends(sends={"i": list(range(looks))}, takes=("o",), before=b.ready, watch=b.watch)
    seen = pump(b.dut, ends, cycles=3 * looks)
    assert len(seen["i"]) == looks // 2 and len(seen["o"]) < looks
    assert seen["i"][-1].taken <= looks + 1
    assert len(b.memory.reads) == looks


def test_writes_wait_for_a_memory_that_confirms_none():
    b = bench()
    b.memory._due = lambda: b.memory.now + 200
    taken = []

    async def steps(ctx, dut):
        await b.ready(ctx, dut)
        ctx.set(dut.i_line.valid, 1)
        for _ in range(100):
            b.watch(ctx)
            taken.append(ctx.get(dut.i_line.ready))
            assert not ctx.get(dut.settled)
            await ctx.tick()

    pump(b.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    assert taken == [1] * SummaryMemory.WRITES + [0] * (100 - SummaryMemory.WRITES)


def test_errors():
    """A line that is not read is zeros, as is every line while it is `blank`."""
    lost = {(0, 9, 0), (1, 63, 1)}  # write, page, line

    def errs(write, address):
        row = address // 64
        return (write, row // 2 - SQUEUE * 64, row % 2) in lost

    b, got = bench(errs=errs), {}

    async def steps(ctx, dut):
        await b.ready(ctx, dut)
        await b.write(ctx, dut)
        for blank in (0, 1):
            ctx.set(dut.blank, blank)
            got[blank] = await b.read(ctx, dut)

    pump(b.dut, Ends(sends={}, takes=(), before=steps), cycles=1)
    zeros = {(9, 0), (63, 1)}  # what was not written was zeros before
    assert got[0] == [
        (page, line, [0] * 16 if (page, line) in zeros else codes(page, line))
        for page in PAGES
        for line in range(2)
    ]
    assert got[1] == [(page, line, [0] * 16) for page in PAGES for line in range(2)]
    assert b.failed == [(SQUEUE, 63, 1), (SQUEUE, 9, 0), (SQUEUE, 9, 0)]


def test_errors_of_a_read_and_a_write_in_one_cycle_are_both_told():
    """What is written is not settled before."""
    dut, seen = SummaryMemory(config=MEMORY), []
    r, b = dut.axi.r, dut.axi.b

    async def bench(ctx):
        async def cycle():
            if ctx.get(dut.o_failed.valid):
                told = ctx.get(dut.o_failed.p)
                seen.append((told.squeue, told.page, told.write))
            await ctx.tick()

        ctx.set(dut.squeue, SQUEUE)
        ctx.set(dut.o.ready, 1)
        for name in ("ar", "aw", "w"):
            ctx.set(getattr(dut.axi, name).ready, 1)
        ctx.set(dut.i.p, 3)
        ctx.set(dut.i.valid, 1)
        await cycle()
        ctx.set(dut.i.valid, 0)
        ctx.set(dut.i_line.p, {"id": 9})
        ctx.set(dut.i_line.valid, 1)
        await cycle()
        ctx.set(dut.i_line.valid, 0)
        await cycle()
        assert ctx.get(r.ready) and ctx.get(b.ready) and not ctx.get(dut.settled)
        for channel in (r, b):
            ctx.set(channel.p, {"resp": 2})
            ctx.set(channel.valid, 1)
        await cycle()
        for channel in (r, b):
            ctx.set(channel.valid, 0)
        assert not ctx.get(dut.settled)
        for _ in range(3):
            await cycle()
        assert ctx.get(dut.settled)

    simulate(dut, bench)
    assert seen == [(SQUEUE, 3, 0), (SQUEUE, 9, 1)]
