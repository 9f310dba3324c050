# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A block in Amaranth's own simulator."""

from amaranth.sim import Simulator

__all__ = ["cycles_until", "simulate"]


def simulate(top, bench):
    """Run the testbench `bench` on `top`, clocked where it has a clock."""
    sim = Simulator(top)
    sim.add_clock(1e-6, if_exists=True)
    sim.add_testbench(bench)
    sim.run()


async def cycles_until(ctx, signal, limit=20):
    """Cycles until the signal is on; the inputs were set in this one."""
    for cycle in range(limit):
        if ctx.get(signal):
            return cycle
        await ctx.tick()
    raise AssertionError(f"{signal} is off after {limit} cycles")
