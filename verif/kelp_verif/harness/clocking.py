# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""How every bench starts its clock."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import Timer

from .handles import quicken

__all__ = ["start_clock"]

quicken()


async def start_clock(dut) -> None:
    """Hold ``dut.rst`` high from before the first edge of ``dut.clk`` (10 ns) on.

    Inputs have random values until they are driven, and an edge that sees them without a reset
    would take them for traffic.
    """
    dut.clk.value, dut.rst.value = 0, 1
    await Timer(1, "ns")
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())
