# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A memory written by bytes: against a list, with and without check bits; flips in its rows."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.lib.byte_memory import ByteMemory

DEPTH = 5


@pytest.mark.parametrize("protect", [False, True])
def test_random_writes_of_bytes(protect):
    rng = random.Random(3)
    dut, rows = ByteMemory(depth=DEPTH, words=2, protect=protect, look=True), [0] * DEPTH

    async def bench(ctx):
        shown = None
        for _ in range(1500):
            at, looked = rng.randrange(DEPTH), rng.randrange(DEPTH)
            strobe, value = rng.getrandbits(8) * rng.randrange(2), rng.getrandbits(64)
            ctx.set(dut.address, at)
            ctx.set(dut.write, strobe)
            ctx.set(dut.write_data, value)
            looks = rng.random() < 0.7
            ctx.set(dut.look_en, looks)
            ctx.set(dut.look_address, looked)
            before = rows[looked]
            mask = sum(0xFF << 8 * i for i in range(8) if strobe >> i & 1)
            rows[at] = rows[at] & ~mask | value & mask
            await ctx.tick()
            assert ctx.get(dut.read_data) == rows[at]
            shown = (before, rows[looked]) if looks else shown
            assert shown is None or ctx.get(dut.look_data) in shown
            assert not ctx.get(dut.fault.corrected) and not ctx.get(dut.fault.uncorrected)

    simulate(dut, bench)


def flipped(bits, *steps):
    """(row, corrected, uncorrected) after each step (write strobe, value) on a row of
    0x2222222211111111 of which `bits` have been turned over."""
    dut, seen = ByteMemory(depth=2, words=2, protect=True), []

    async def bench(ctx):
        async def step(strobe, value):
            ctx.set(dut.write, strobe)
            ctx.set(dut.write_data, value)
            await ctx.tick()

        await step(0xFF, 0x2222222211111111)
        await step(0, 0)
        row = dut.memory_rows.data[0]
        ctx.set(row, ctx.get(row) ^ sum(1 << bit for bit in bits))
        for strobe, value in steps:
            await step(strobe, value)
            seen.append(
                (
                    ctx.get(dut.read_data),
                    ctx.get(dut.fault.corrected),
                    ctx.get(dut.fault.uncorrected),
                )
            )

    simulate(dut, bench)
    return seen


@pytest.mark.parametrize(("bits", "told"), [((), (0, 0)), ((3,), (1, 0)), ((3, 9), (0, 1))])
def test_who_looks_is_told_of_flips(bits, told):
    dut = ByteMemory(depth=2, words=2, protect=True, look=True)

    async def bench(ctx):
        row = dut.memory_rows.data[1]
        ctx.set(row, sum(1 << bit for bit in bits))
        ctx.set(dut.look_en, 1)
        ctx.set(dut.look_address, 1)
        await ctx.tick()
        fault = dut.look_fault
        assert (ctx.get(fault.corrected), ctx.get(fault.uncorrected)) == told

    simulate(dut, bench)


def test_one_flip_is_corrected_and_leaves_with_a_write():
    read, byte = (0, 0), (1, 0x33)
    whole = 0x2222222211111111
    assert flipped([3], read, read) == [(whole, 1, 0)] * 2
    changed = whole & ~0xFF | 0x33
    assert flipped([3], byte, read) == [(changed, 1, 0), (changed, 0, 0)]
    # In a check bit, too.
    assert flipped([35], read, byte, read)[-1] == (changed, 0, 0)


def test_two_flips_stay_until_the_word_is_written_whole():
    read, byte, word = (0, 0), (1, 0x33), (0x0F, 0x44444444)
    assert flipped([3, 9], read)[0][1:] == (0, 1)
    # A byte written does not make a good word of a bad one; a write of the other word has no part
    # in it.
    seen = flipped([3, 9], byte, read, (0x10, 0x55 << 32), read, word, read)
    assert [each[2] for each in seen] == [1, 1, 0, 1, 0, 0]
    assert seen[3][0] >> 32 == 0x22222255
    assert seen[-1] == (0x2222225544444444, 0, 0)


@pytest.mark.parametrize("protect", [False, True])
def test_clear_makes_every_row_zero(protect):
    """Whatever power-up left there, and whatever is written meanwhile."""
    rng, dut = random.Random(4), ByteMemory(depth=DEPTH, words=2, protect=protect)

    async def bench(ctx):
        for row in range(DEPTH):
            ctx.set(dut.memory_rows.data[row], rng.getrandbits(dut.word.code_bits))
        ctx.set(dut.clear, 1)
        for cycle in range(DEPTH):
            ctx.set(dut.address, (cycle + 1) % DEPTH)
            ctx.set(dut.write, 0xFF)
            ctx.set(dut.write_data, rng.getrandbits(64))
            await ctx.tick()
        ctx.set(dut.clear, 0)
        ctx.set(dut.write, 0)
        for row in range(DEPTH):
            ctx.set(dut.address, row)
            await ctx.tick()
            assert not ctx.get(dut.read_data)
            assert not ctx.get(dut.fault.corrected) and not ctx.get(dut.fault.uncorrected)
        ctx.set(dut.write, 0x01)
        ctx.set(dut.write_data, 0x77)
        await ctx.tick()
        assert ctx.get(dut.read_data) == 0x77

    simulate(dut, bench)


def test_latency_and_interval():
    write = [{"address": i, "write": 255, "write_data": i} for i in range(4)]
    reads = [{"address": i} for i in (1, 2, 3)]
    dut = ByteMemory(depth=4, words=2, protect=True)
    seen = changes(dut, "read_data", reads, before=write)
    assert seen == [dut.LATENCY + i * dut.INTERVAL for i in range(3)]
