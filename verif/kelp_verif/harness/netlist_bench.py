# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""RTL and netlist side by side on the same random input: `o` of the one and `p` of the other are
equal in every cycle."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from .clocking import start_clock
from .runner import bench_params, record


@cocotb.test(timeout_time=200, timeout_unit="us")
async def both_do_the_same(dut):
    rng = random.Random(cocotb.RANDOM_SEED)
    dut.i.value = 0
    await start_clock(dut)
    for _ in range(4):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    seen = set()
    for _ in range(bench_params()["cycles"]):
        dut.i.value = rng.getrandbits(len(dut.i))
        dut.rst.value = rng.random() < 0.01
        await ReadOnly()
        o, p = int(dut.o.value), int(dut.p.value)
        assert o == p, f"RTL {o:x}, netlist {p:x}"
        seen.add(o)
        await RisingEdge(dut.clk)
    record(different=len(seen))
