# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What quick handles read, write and refuse, beside cocotb's own.

``params["widths"]``: of the ports ``i_<width>``, which come out again as ``o_<width>``.
"""

import cocotb
import pytest
from cocotb.handle import ValueObjectBase
from cocotb.triggers import ReadOnly, RisingEdge
from cocotb.types import Logic, LogicArray

from .clocking import start_clock
from .runner import bench_params, record

_PLAIN = ValueObjectBase.value  # that of the base class is as cocotb has it


@cocotb.test(timeout_time=100, timeout_unit="us")
async def mean_what_they_meant(dut):
    await start_clock(dut)
    dut.rst.value = 0
    checked = 0
    for width in bench_params()["widths"]:
        given, shown = getattr(dut, f"i_{width}"), getattr(dut, f"o_{width}")
        assert given is getattr(dut, f"i_{width}")
        top = (1 << width) - 1
        for value in {0, 1, top, top >> 1, 5 & top, bool(top)}:
            for write in (given.__class__.value.fset, _PLAIN.fset, type(given).set):
                await RisingEdge(dut.clk)
                write(given, top ^ value)
                await RisingEdge(dut.clk)
                write(given, value)
                await ReadOnly()
                found, meant = shown.value, _PLAIN.fget(shown)
                assert type(found) is type(meant) is (Logic if width == 1 else LogicArray)
                assert found == meant == value and int(found) == value and found != top ^ value
                assert str(found) == str(meant) and bool(found) == bool(meant)
                assert width == 1 or found.range == meant.range
                checked += 1
        await RisingEdge(dut.clk)
        for value in (top + 1, -top - 2, "2", 1.5):
            with pytest.raises((ValueError, TypeError)):
                given.value = value
        given.value = Logic(1) if width == 1 else LogicArray(top, width)
        await ReadOnly()
        assert shown.value == top and shown.value not in (top + 1, -2)
        with pytest.raises(RuntimeError, match="ReadOnly"):
            given.value = 0
        await RisingEdge(dut.clk)
    with pytest.raises(AttributeError):
        dut.nothing.value = 1
    with pytest.raises(AttributeError, match="value"):
        dut.i_1 = 1
    record(checked=checked)
