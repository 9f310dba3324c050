# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CRC-32 of a byte a cycle."""

import random
import zlib

from amaranth.hdl import Module

from kelp_fpga.link.crc32 import INITIAL, crc32_step
from kelp_fpga.link.protocol import RESIDUE


def test_crc_is_zlibs():
    from amaranth.hdl import Signal
    from amaranth.sim import Simulator

    rng = random.Random(1)
    data = rng.randbytes(40)
    m, crc, byte = Module(), Signal(32, init=INITIAL), Signal(8)
    m.d.sync += crc.eq(crc32_step(crc, byte))
    seen = []

    async def bench(ctx):
        for value in data + zlib.crc32(data).to_bytes(4, "little"):
            ctx.set(byte, value)
            await ctx.tick()
            seen.append(ctx.get(crc))

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert seen[39] ^ 0xFFFFFFFF == zlib.crc32(data) and seen[-1] == RESIDUE
