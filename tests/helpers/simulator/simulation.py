# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A block in Amaranth's own simulator."""

from amaranth.sim import Simulator
from quick import settled_late

from kelp_hw.export.quick_amaranth import quick_amaranth

__all__ = ["cycles_until", "simulate"]


def simulate(top, bench):
    """Run the testbench `bench` on `top`, clocked where it has a clock."""
    with quick_amaranth():
        sim = Simulator(top)
        sim.add_clock(1e-6, if_exists=True)
        sim.add_testbench(settled_late(bench))
        sim.run()


async def cycles_until(ctx, signal, limit=20):
    """Cycles until the signal is on; the inputs were set in this one."""
    for cycle in range(limit):
        if ctx.get(signal):
            return cycle
        await ctx.tick()
    raise AssertionError(f"{signal} is off after {limit} cycles")
