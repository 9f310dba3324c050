# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The board's top on an ULX3S, up to the synthesis script: pins, clock and constraints."""

from stub_board import Stub

from kelp_fpga.boards.ulx3s import Ulx3s, Ulx3sPlatform


def test_ulx3s_has_every_pin_and_its_clock():
    plan = Ulx3sPlatform().build(Ulx3s(Stub()), do_build=False)
    constraints, netlist = (
        next(str(text) for name, text in plan.files.items() if name.endswith(end))
        for end in (".lpf", ".il")
    )
    for pin in (
        "sdram_0__a",
        "sdram_0__dq",
        "sdram_0__ba",
        "sdram_0__dqm",
        "sdram_0__clk",
        "sdram_0__cs",
        "uart_0__rx",
        "uart_0__tx",
        "led_7",
    ):
        assert f'"{pin}' in constraints, pin
    assert (
        "80000000" in constraints.replace("80.0 MHZ", "80000000 HZ")
        and "EHXPLLL" in netlist
        and "ODDRX1F" in netlist
    )
