# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""FreeList: how fast it gives numbers and counts them; a proof says that each is given once. What
it says of flipped bits, and of a number too many."""

import pytest
from flips import fields, flip, opened
from simulation import simulate
from timing import check_fifo, check_pace

from kelp_hw.lib.free_list import FreeList


def test_latency_and_interval():
    check_fifo(FreeList(count=4, first=1))


def test_level_latency_and_interval():
    check_pace(FreeList(count=4), "LEVEL_LATENCY", "level", [{"o.ready": 1}] * 3)


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize("flips", [0, 1, 2])
def test_a_flip_in_a_returned_number_is_told(flips, protect):
    """As its number stands at the output, beyond repair; as it leaves, corrected."""
    dut = FreeList(count=3, protect=protect)
    top, memories = opened(dut)
    (memory,) = memories.values()

    async def bench(ctx):
        ctx.set(dut.o.ready, 1)
        await ctx.tick().repeat(3)
        ctx.set(dut.o.ready, 0)
        for number in (2, 0):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p, number)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        for row in range(dut.count):
            # The first has left the rows for the output.
            flip(ctx, memory, row, *range(flips))
        await ctx.tick().repeat(2)
        leaves = []
        for ready in (0, 1, 0, 0, 1, 0):
            ctx.set(dut.o.ready, ready)
            assert fields(ctx, dut.fault) == {
                "corrected": len(leaves) == 1 and ready and protect and flips == 1,
                "uncorrected": len(leaves) == 1 and protect and flips == 2,
            }
            if ready:
                leaves.append(ctx.get(dut.o.p))
            await ctx.tick()
        assert leaves[0] == 2 and (leaves[1] == 0) == (not flips or protect and flips == 1)

    simulate(top, bench)


def test_a_number_too_many_is_an_assertion():
    dut = FreeList(count=3)

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        for _ in range(3):
            await ctx.tick()

    with pytest.raises(AssertionError):
        simulate(dut, bench)


def test_an_empty_list_is_refused():
    with pytest.raises(ValueError, match="count = 0 is refused"):
        FreeList(count=0)
