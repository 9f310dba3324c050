# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`ByteMask`: how fast its two masks follow; beside a list of integers, from rows of any content;
with bits flipped in its rows."""

import random

import pytest
from amaranth.sim import Simulator
from flips import opened
from timing import check_pace, varied

from kelp_hw.lib.byte_mask import ByteMask

SLOTS = 4
SETS = varied("set_bytes", (1, 2, 4), set_en=1)


def run(protect, flips, seed, steps=150):
    """What the faults of a mask in use said: (corrected, uncorrected) counts. Every `flips`-th step
    turns over one bit of a row, of those slots that are in use."""
    rng = random.Random(seed)
    dut = ByteMask(slots=SLOTS, protect=protect)
    top, memories = opened(dut)
    expected, seen = {}, [0, 0]
    bits = dut.word.code_bits

    async def bench(ctx):
        for memory in memories.values():
            for row in range(SLOTS):
                ctx.set(memory[row], rng.getrandbits(bits))
        for step in range(steps):
            clear, slot, look = (rng.randrange(SLOTS) for _ in range(3))
            sets = slot in expected and slot != clear
            if flips and step % flips == 0 and expected:
                victim = rng.choice(sorted(expected))
                row = rng.choice(list(memories.values()))[victim]
                ctx.set(row, ctx.get(row) ^ 1 << rng.randrange(bits))
                # It is used before another one is flipped.
                slot, sets, clear = victim, True, (victim + 1) % SLOTS
            clears = rng.random() < 0.3 or not expected
            ctx.set(dut.clear_en, clears)
            ctx.set(dut.clear_slot, clear)
            ctx.set(dut.set_en, sets)
            ctx.set(dut.set_slot, slot)
            chosen = rng.getrandbits(64) & rng.getrandbits(64) & rng.getrandbits(64)
            ctx.set(dut.set_bytes, chosen)
            ctx.set(dut.look_slot, look)
            ctx.set(dut.read_slot, look)
            assert ctx.get(dut.look_set) == (sets and slot == look)
            if look in expected:
                assert ctx.get(dut.look_mask) == expected[look]
                after = expected[look] | (chosen if sets and slot == look else 0)
                assert ctx.get(dut.read_mask) == after
            if protect:
                seen[0] += ctx.get(dut.set_fault.corrected)
                seen[1] += ctx.get(dut.set_fault.uncorrected)
            if sets:
                expected[slot] |= chosen
            if clears:
                expected[clear] = 0
            await ctx.tick()

    sim = Simulator(top)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
    return tuple(seen)


@pytest.mark.parametrize("protect", (False, True))
def test_masks_whatever_the_rows_were(protect):
    assert run(protect, flips=0, seed=1) == (0, 0)


def test_flipped_bits_are_corrected():
    corrected, uncorrected = run(True, flips=7, seed=2)
    assert corrected > 10 and not uncorrected


def test_two_flips_are_told():
    dut = ByteMask(slots=SLOTS, protect=True)
    top, memories = opened(dut)
    told = []

    async def bench(ctx):
        ctx.set(dut.clear_en, 1)
        ctx.set(dut.clear_slot, 1)
        await ctx.tick()
        ctx.set(dut.clear_en, 0)
        ctx.set(dut.look_slot, 1)
        ctx.set(dut.read_slot, 1)
        ctx.set(dut.set_slot, 1)
        ctx.set(dut.set_en, 1)
        for memory in memories.values():
            ctx.set(memory[1], ctx.get(memory[1]) ^ 0b101)
            told.append(
                [
                    ctx.get(fault.uncorrected)
                    for fault in (dut.look_fault, dut.read_fault, dut.set_fault)
                ]
            )
            ctx.set(memory[1], ctx.get(memory[1]) ^ 0b101)

    sim = Simulator(top)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
    assert told == [[1, 1, 1], [1, 1, 1]]


def test_look_latency_and_interval():
    stimuli = [SETS[0], {"clear_en": 1}, SETS[1]]
    check_pace(ByteMask(slots=2), "LATENCY", "look_mask", stimuli)


def test_read_latency_and_interval():
    check_pace(ByteMask(slots=2), "READ_LATENCY", "read_mask", SETS)
