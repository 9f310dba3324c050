# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A memory that nobody writes: its contents, and flips in them."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.lib.constant_memory import ConstantMemory

CONTENT = [random.Random(1).getrandbits(32) for _ in range(40)]


@pytest.mark.parametrize("protect", [False, True])
def test_contents(protect):
    dut, seen = ConstantMemory(content=CONTENT, protect=protect), []

    async def bench(ctx):
        for at in range(len(CONTENT)):
            ctx.set(dut.address, at)
            await ctx.tick()
            seen.append(ctx.get(dut.read_data))
            assert not ctx.get(dut.fault.as_value())

    simulate(dut, bench)
    assert seen == CONTENT


@pytest.mark.parametrize("bits", [(0,), (31,), (32,), (38,), (0, 1), (5, 33), (32, 38)])
def test_flips(bits):
    dut = ConstantMemory(content=CONTENT, protect=True)

    async def bench(ctx):
        row = dut.memory_rows.data[7]
        ctx.set(row, ctx.get(row) ^ sum(1 << bit for bit in bits))
        ctx.set(dut.address, 7)
        await ctx.tick()
        assert ctx.get(dut.fault.corrected) == (len(bits) == 1)
        assert ctx.get(dut.fault.uncorrected) == (len(bits) == 2)
        if len(bits) == 1:
            assert ctx.get(dut.read_data) == CONTENT[7]

    simulate(dut, bench)


def test_latency_and_interval():
    dut = ConstantMemory(content=[1, 2, 3, 4], protect=True)
    given = [{"address": i} for i in (1, 2, 3)]
    seen = changes(dut, "read_data", given)
    assert seen == [dut.LATENCY + i * dut.INTERVAL for i in range(3)]
