# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A block in Amaranth's own simulator."""

from amaranth.sim import Simulator


def simulate(top, bench):
    """Run the testbench `bench` on `top`, clocked."""
    sim = Simulator(top)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()
