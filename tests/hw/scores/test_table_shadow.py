# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LRU's shadow: how long its parts take. `test_table_scores.py` compares whole turns."""

import pytest
from flips import flip, simulate_memory
from simulation import cycles_until, simulate
from timing import changes

from kelp_hw.scores.table_shadow import TableShadow
from kelp_spec.config import named

UNIT = named("unit")


def made():
    return TableShadow(config=UNIT)


async def turn(ctx, dut, step, pages, frames=99):
    """A turn in which so many new pages are read; cycles to `ready` and to `idle`."""
    ctx.set(dut.step, step)
    ctx.set(dut.frames, frames)
    ctx.set(dut.begins, 1)
    await ctx.tick()
    ctx.set(dut.begins, 0)
    begun = 1 + await cycles_until(ctx, dut.ready, limit=2000)
    for _ in range(pages):
        ctx.set(dut.i.p.read, 1)
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick()
    await ctx.tick().repeat(dut.SETTLED)
    ctx.set(dut.ends, 1)
    await ctx.tick()
    ctx.set(dut.ends, 0)
    ended = 1 + await cycles_until(ctx, dut.idle, limit=2000)
    await ctx.tick()
    return begun, ended


def test_a_turn_begins_and_ends_as_late_as_it_says():
    dut, times = made(), []

    async def bench(ctx):
        times.append(await turn(ctx, dut, 10, 1))
        for step in (11, 12, 13):
            times.append(await turn(ctx, dut, step, 2))
        # Of 7 pages 1 leaves, then 2, and 2 more with the next; then all, which are old.
        times.append(await turn(ctx, dut, 14, 0, frames=6))
        times.append(await turn(ctx, dut, 14, 1, frames=3))
        times.append(await turn(ctx, dut, 14 + 300, 1))

    simulate(dut, bench)
    begin, end, leave = dut.BEGIN_LATENCY, dut.END_LATENCY, dut.LEAVE_INTERVAL
    assert times == [
        (begin + 256, end),
        *[(begin, end)] * 3,
        (begin + leave, end),
        (begin + leave, end + leave),
        # steps 13 and 14
        (begin + 2 * leave, end),
    ]


def test_no_more_pages_leave_a_cohort_than_it_has():
    """Pages that lay beyond the newest one for long may name a cohort that was reused."""
    dut, times = made(), []

    async def bench(ctx):
        await turn(ctx, dut, 10, 1)
        ctx.set(dut.i.p.cohort, {"step": 10, "held": 1})
        ctx.set(dut.last_turn, 10)
        ctx.set(dut.passed, 1)
        await turn(ctx, dut, 11, 2)  # of the one page that is there
        times.append(await turn(ctx, dut, 12, 0, frames=0))

    simulate(dut, bench)
    assert times == [(dut.BEGIN_LATENCY + 2 * dut.LEAVE_INTERVAL, dut.END_LATENCY)]


def test_a_count_that_is_lost_is_not_waited_for():
    """A flipped bit makes a cohort smaller than its share of the shadow; then steps go far on."""
    dut, times = made(), []

    async def bench(ctx, counts):
        await turn(ctx, dut, 10, 3)
        flip(ctx, counts, 10, 0)
        for step in (1 << 20, (1 << 20) + 1):
            times.append(await turn(ctx, dut, step, 1))

    simulate_memory(dut, bench)
    all_leave = dut.BEGIN_LATENCY + 256 * dut.LEAVE_INTERVAL
    assert times == [(all_leave, dut.END_LATENCY), (dut.BEGIN_LATENCY, dut.END_LATENCY)]


def test_kept_latency_and_interval():
    def bench_of(interval):
        stimuli = [{"i.valid": 1, "i.p.cohort.step": step} for step in (1, 2, 3)]
        before = [{"begins": 1}, *[{}] * 300]
        return changes(made(), "kept", stimuli, before=before, interval=interval, within=4)

    assert bench_of(2)[0] == made().LATENCY
    with pytest.raises(AssertionError, match="too close"):
        bench_of(1)
