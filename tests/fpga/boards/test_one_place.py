# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""OnePlace: nothing is lost and nothing invented, one item in two cycles."""

import random

import pytest
from amaranth.sim import Simulator
from streams import Ends, pump

from kelp_fpga.boards.one_place import OnePlace


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.3), (0.4, 0.4)])
def test_one_place_loses_and_invents_nothing(offer, take):
    dut, rng, sent, got = OnePlace(8), random.Random(1), [], []

    async def bench(ctx):
        valid = 0
        for _ in range(400):
            valid = valid or int(rng.random() < offer)
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.payload, len(sent) % 256 if valid else rng.randrange(256))
            ctx.set(dut.o.ready, int(rng.random() < take))
            if ctx.get(dut.o.valid & dut.o.ready):
                got.append(ctx.get(dut.o.payload))
            if valid and ctx.get(dut.i.ready):
                sent.append(len(sent) % 256)
                valid = 0
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert got == sent[: len(got)] and len(sent) - len(got) <= 1 and len(got) > 60
    assert offer * take < 1 or len(got) == 200  # one in two cycles


def test_latency_and_interval():
    dut = OnePlace(8)
    items = pump(dut, Ends({"i": [1, 2, 3, 4]}, ("o",)), cycles=12)["o"]
    assert [each.offered for each in items] == [dut.LATENCY + n * dut.INTERVAL for n in range(4)]
