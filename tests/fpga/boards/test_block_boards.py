# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Boards with their memory in block RAM, up to the synthesis script: pins, clock, constraints."""

import json

import pytest
from stub_board import Stub

from kelp_fpga.boards.block_boards import BLOCK_BOARDS, BlockTop
from kelp_fpga.boards.ecp5_clock import pll_dividers
from kelp_fpga.configs import BOARD_CONFIGS
from kelp_fpga.flow.build import size


@pytest.mark.parametrize("name", BLOCK_BOARDS)
def test_block_boards_have_their_pins_and_their_clock(name):
    kind = BLOCK_BOARDS[name]
    plan = kind.platform().build(BlockTop(kind, Stub()), do_build=False)
    constraints, netlist = (
        next(str(text) for file, text in plan.files.items() if file.endswith(end))
        for end in (".lpf", ".il")
    )
    places = [line.split('"')[3] for line in constraints.splitlines() if line.startswith("LOCATE")]
    assert (
        "uart_0__rx" in constraints
        and "uart_0__tx" in constraints
        and len(set(places)) == len(places) >= 11
    )
    assert "FREQUENCY" in constraints and "80000000" in constraints and "EHXPLLL" in netlist
    reference, feedback, _ = pll_dividers(80_000_000, kind.oscillator[1])
    assert kind.oscillator[1] / reference * feedback == 80e6


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCK_BOARDS)
def test_the_tools_take_every_boards_pins(name, tmp_path):
    kind = BLOCK_BOARDS[name]
    figures = size(
        name,
        BOARD_CONFIGS["unit"],
        directory=tmp_path,
        hz=80_000_000,
        top=lambda config, hz, baud: (kind.platform(), BlockTop(kind, Stub())),
    )
    assert (
        0 < figures["luts"] < 300
        and figures["luts_total"] > 40_000
        and figures == json.loads((tmp_path / "size.json").read_text(encoding="utf-8"))
    )
