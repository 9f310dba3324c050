# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""UART: transmitter into receiver, with clocks that differ and bytes that are damaged."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from ..harness.clocking import start_clock
from ..harness.runner import bench_params


async def _start(dut):
    dut.i__valid.value, dut.i__payload.value, dut.o__ready.value, dut.rx.value = 0, 0, 1, 1
    await start_clock(dut)
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    for _ in range(4):
        await RisingEdge(dut.clk)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def bytes_come_back_at_full_rate(dut):
    rng = random.Random(cocotb.RANDOM_SEED)
    await _start(dut)
    divisor = bench_params()["divisor"]
    sent = [rng.randrange(256) for _ in range(100)]
    waiting, got, cycles = list(sent), [], 0
    while len(got) < len(sent):
        dut.i__valid.value = int(bool(waiting))
        dut.i__payload.value = waiting[0] if waiting else 0
        await ReadOnly()
        if waiting and dut.i__ready.value == 1:
            waiting.pop(0)
        if dut.o__valid.value == 1:
            got.append(int(dut.o__payload.value))
        tx = int(dut.tx.value)
        await RisingEdge(dut.clk)
        dut.rx.value = tx
        cycles += 1
        assert cycles < 2 * len(sent) * 10 * divisor
    assert got == sent
    assert cycles <= (len(sent) + 1) * 10 * divisor + 10, "there are gaps between bytes"


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def a_sender_three_percent_off_is_understood_and_damage_is_dropped(dut):
    rng = random.Random(cocotb.RANDOM_SEED)
    await _start(dut)
    divisor = bench_params()["divisor"]
    for factor in (0.97, 1.0, 1.03) if divisor >= 16 else (1.0,):
        got = []
        wanted = []
        wave = [1] * (4 * divisor)
        time = float(len(wave))
        for n in range(40):
            byte, damaged = rng.randrange(256), n % 8 == 5
            for bit in [0, *(byte >> k & 1 for k in range(8)), 0 if damaged else 1]:
                time += divisor * factor
                wave += [bit] * (int(time) - len(wave))
            if damaged:  # no stop bit, then the line rests
                time += 12 * divisor
                wave += [1] * (int(time) - len(wave))
            else:
                wanted.append(byte)
        wave += [1] * (12 * divisor)
        for bit in wave:
            dut.rx.value = bit
            await ReadOnly()
            if dut.o__valid.value == 1:
                got.append(int(dut.o__payload.value))
            await RisingEdge(dut.clk)
        assert got == wanted, f"bit time {factor:g} of ours"
