# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The bench that the runner's own tests run: a stage that adds ``params["step"]`` to every byte,
under back-pressure on both ports."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from .clocking import start_clock
from .runner import bench_params, record

ITEMS = 200


@cocotb.test(timeout_time=100, timeout_unit="us")
async def adds_step(dut):
    rng = random.Random(cocotb.RANDOM_SEED)
    cycles = 0
    dut.rst.value = 1
    dut.i__valid.value = 0
    dut.o__ready.value = 0
    await start_clock(dut)
    for _ in range(2):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    # Every byte value appears, so that a forbidden one must be seen.
    todo = [n * 31 % 256 for n in range(ITEMS + 56)][:ITEMS]
    sent, got = [], []
    pending = None
    while len(got) < ITEMS:
        if pending is None and todo and rng.random() < 0.7:
            pending = todo.pop()
        dut.i__valid.value = int(pending is not None)
        dut.i__payload.value = pending or 0
        dut.o__ready.value = int(rng.random() < 0.7)
        await ReadOnly()
        taken = pending is not None and dut.i__ready.value == 1
        given = (
            int(dut.o__payload.value)
            if dut.o__valid.value == 1 and dut.o__ready.value == 1
            else None
        )
        await RisingEdge(dut.clk)
        cycles += 1
        if taken:
            sent.append(pending)
            pending = None
        if given is not None:
            got.append(given)
    assert got == [(value + bench_params()["step"]) % 256 for value in sent]
    record(items=len(got), cycles=cycles)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def flips_a_stored_bit(dut):
    """On an SRAM macro: a value deposited into the array is what a read returns."""
    await start_clock(dut)
    dut.read_en.value = 0
    dut.write_en.value = 1
    dut.write_address.value = 3
    dut.write_data.value = 0x5A
    await RisingEdge(dut.clk)
    dut.write_en.value = 0
    await RisingEdge(dut.clk)
    word = dut.macro.words[3]
    assert word.value == 0x5A
    word.value = int(word.value) ^ 4
    dut.read_address.value = 3
    dut.read_en.value = 1
    await RisingEdge(dut.clk)
    await RisingEdge(dut.clk)
    assert dut.read_data.value == 0x5E
