# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SplitSram and Sram against a dict: the same rows of every part, next to its borders and a bit of
the address away from them, reads and writes in one cycle, reads that pause."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from ..harness.clocking import start_clock
from ..harness.runner import bench_params


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def reads_what_was_written(dut):
    rng = random.Random(cocotb.RANDOM_SEED)
    depth, width, latency = (bench_params()[name] for name in ("depth", "width", "latency"))
    rows = sorted(
        {
            row
            for border in (*range(0, depth, 1 << 11), depth)
            for row in (*range(border - 3, border + 3), *(border + (1 << k) for k in range(2, 11)))
            if 0 <= row < depth
        }
    )
    held = {}
    dut.read_en.value = 0
    dut.write_en.value = 1
    await start_clock(dut)
    await RisingEdge(dut.clk)
    dut.rst.value = 0
    for row in rows:
        held[row] = rng.getrandbits(width)
        dut.write_address.value, dut.write_data.value = row, held[row]
        await RisingEdge(dut.clk)
    # What is read at an edge is seen `latency` edges later, itself counted, until another is read.
    read, shown = None, None
    collisions = 0
    for _ in range(3000):
        writes, reads, to, of, value = (
            rng.random() < 0.5,
            rng.random() < 0.8,
            rng.choice(rows),
            rng.choice(rows),
            rng.getrandbits(width),
        )
        if rng.random() < 0.2:
            of = to
        dut.write_en.value, dut.write_address.value, dut.write_data.value = writes, to, value
        dut.read_en.value, dut.read_address.value = reads, of
        await ReadOnly()
        if shown is not None:
            assert int(dut.read_data.value) == shown
        await RisingEdge(dut.clk)
        if writes:
            held[to] = value
        before = read
        if reads:
            read = held[of]
        shown = before if latency == 2 else read
        collisions += writes and reads and to == of
    assert collisions > 200
