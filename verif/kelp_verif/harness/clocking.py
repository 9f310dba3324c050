# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""How every bench starts its clock."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge, Timer

from .handles import quicken

__all__ = ["start_clock", "start_quiet"]

quicken()


async def start_clock(dut) -> None:
    """Hold ``dut.rst`` high from before the first edge of ``dut.clk`` (10 ns) on.

    Inputs have random values until they are driven, and an edge that sees them without a reset
    would take them for traffic.
    """
    dut.clk.value, dut.rst.value = 0, 1
    await Timer(1, "ns")
    cocotb.start_soon(Clock(dut.clk, 10, unit="ns").start())


async def start_quiet(dut, *ports: str) -> None:
    """The clock and two edges of reset, with these inputs low."""
    for port in ports:
        getattr(dut, port).value = 0
    await start_clock(dut)
    for _ in range(2):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
