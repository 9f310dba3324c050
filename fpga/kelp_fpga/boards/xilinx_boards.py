# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Boards that Vivado builds: the Arty A7-100T with its memory in block RAM, and the VCU118 (VU9P,
UltraScale+) with its memory in UltraRAM. Their projects are written here; the tool is not ours to
run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from amaranth.build import Attrs, Clock, DiffPairs, PinsN, Resource
from amaranth.hdl import ClockDomain, ClockSignal, Instance, Module, Signal
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.vendor import XilinxPlatform
from amaranth_boards.arty_a7 import ArtyA7_100Platform
from amaranth_boards.resources import LEDResources, UARTResource

import kelp_hw
from kelp_spec.config import Config
from kelp_spec.files import write_whole

from ..link.uart import uart_divisor
from ..memory.block_store import LINE_RAM
from ..selftest.self_test_program import RoundTrip
from .block_boards import BlockBoard, BlockTop, outputs, single_leds
from .board import Board

__all__ = ["XILINX_BOARDS", "Vcu118Platform", "mmcm_dividers", "project", "write_project"]

# of the slowest speed grades
_VCO = {"MMCME2_BASE": (600e6, 1200e6), "MMCME4_BASE": (800e6, 1600e6)}


class Vcu118Platform(XilinxPlatform):
    """What of a VCU118 the top needs: the 125 MHz clock, the USB UART, eight LEDs (pins of its user
    guide, UG1224)."""

    device = "xcvu9p"
    package = "flga2104"
    speed = "2L-e"
    default_clk = "clk125"
    resources = [
        Resource(
            "clk125", 0, DiffPairs("AY24", "AY23", dir="i"), Clock(125e6), Attrs(IOSTANDARD="LVDS")
        ),
        Resource("rst", 0, PinsN("L19", dir="i"), Attrs(IOSTANDARD="LVCMOS12")),
        *LEDResources(
            pins="AT32 AV34 AY30 BB32 BF32 AU37 AV36 BA37", attrs=Attrs(IOSTANDARD="LVCMOS12")
        ),
        UARTResource(0, rx="AW25", tx="BB21", attrs=Attrs(IOSTANDARD="LVCMOS18")),
    ]
    connectors = []


def mmcm_dividers(primitive: str, hz: int, oscillator: int) -> tuple[int, float]:
    """(multiplier, divider) of an MMCM that makes `hz` of `oscillator`, its VCO the fastest;
    ValueError when there are none. The divider has steps of 1/8."""
    low, high = _VCO[primitive]
    for multiplier in range(64, 1, -1):
        eighths, rest = divmod(8 * oscillator * multiplier, hz)
        if low <= oscillator * multiplier <= high and rest == 0 and 16 <= eighths <= 1024:
            return multiplier, eighths / 8
    way = f"by way of {low / 1e6:g} … {high / 1e6:g} MHz"
    raise ValueError(
        f"hz = {hz} is refused; legal: {oscillator / 1e6:g} MHz times a whole number, over a "
        + f"multiple of 1/8, {way}"
    )


def _mmcm(primitive: str):
    def clock(m: Module, platform, source, *, hz: int, oscillator: int) -> None:
        """Make the domain `sync` of `hz` from the signal `source`; its constraint follows from the
        oscillator's."""
        raw, feedback, locked, board_clock = (
            Signal(),
            Signal(),
            Signal(name="locked"),
            Signal(name="board_clock"),
        )
        m.domains.sync = ClockDomain()
        multiplier, divider = mmcm_dividers(primitive, hz, oscillator)
        m.submodules.mmcm = Instance(
            primitive,
            p_CLKIN1_PERIOD=1e9 / oscillator,
            p_CLKFBOUT_MULT_F=float(multiplier),
            p_CLKOUT0_DIVIDE_F=divider,
            p_DIVCLK_DIVIDE=1,
            i_CLKIN1=source,
            i_CLKFBIN=feedback,
            i_PWRDWN=0,
            i_RST=0,
            o_CLKFBOUT=feedback,
            o_CLKOUT0=raw,
            o_LOCKED=locked,
        )
        m.submodules.bufg = Instance("BUFG", i_I=raw, o_O=board_clock)
        m.d.comb += ClockSignal().eq(board_clock)
        m.submodules.reset = ResetSynchronizer(~locked)

    return {
        "clock": clock,
        "dividers": lambda hz, oscillator: mmcm_dividers(primitive, hz, oscillator),
    }


def _arty_leds(platform, m, board) -> None:
    """The first four plain, the others the green of the coloured LEDs; the last one's is 7,
    failed."""
    colours = [platform.request("rgb_led", n, dir={"r": "-", "g": "-", "b": "-"}) for n in range(4)]
    outputs(
        m,
        [
            *(platform.request("led", n, dir="-") for n in range(4)),
            *(colour.g for colour in colours),
        ],
        board.leds,
    )


#: Board, configuration, lines of memory, whether in UltraRAM.
XILINX_BOARDS: dict[str, tuple[BlockBoard, str, int, bool]] = {
    "arty_a7_100t": (
        BlockBoard(ArtyA7_100Platform, ("clk100", 100_000_000), _arty_leds, **_mmcm("MMCME2_BASE")),
        "ulx3s_block",
        1024,
        False,
    ),
    "vcu118": (
        BlockBoard(Vcu118Platform, ("clk125", 125_000_000), single_leds, **_mmcm("MMCME4_BASE")),
        "ulx3s",
        1 << 16,
        True,
    ),
}


def project(
    name: str,
    config: Config,
    round_trip: RoundTrip,
    *,
    directory: Path,
    hz: int,
    baud: int = 3_000_000,
) -> list[Path]:
    """Write a board's Vivado project: `top.v` and the memories' models, constraints, `top.tcl`.
    ValueError names what is refused."""
    if name not in XILINX_BOARDS:
        raise ValueError(f"board {name!r} is unknown; known: {', '.join(XILINX_BOARDS)}")
    kind, _, lines, ultra = XILINX_BOARDS[name]
    return write_project(
        BlockTop(
            kind,
            Board(
                config=config,
                round_trip=round_trip,
                hz=hz,
                divisor=uart_divisor(hz, baud),
                block_lines=lines,
                ultra=ultra,
            ),
        ),
        directory,
    )


def write_project(top: BlockTop, directory: Path) -> list[Path]:
    """The files of any top's project."""
    os.environ.setdefault("AMARANTH_USE_YOSYS", "builtin")
    platform = top.kind.platform()
    for macro in [*sorted((Path(kelp_hw.__file__).parent / "macros").glob("*.v")), LINE_RAM]:
        platform.add_file(macro.name, macro.read_text(encoding="utf-8"))
    plan = platform.build(top, do_build=False)
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for path, content in plan.files.items():
        if path.startswith("build_") or ".debug." in path:
            continue
        text = content if isinstance(content, str) else content.decode()
        if path == "top.v":
            # Assertions are for simulation, and no Verilog-2005; Yosys declares signals of no
            # width, which nothing uses, as two bits.
            text = re.sub(r"(?m)^ *(assert \(.*\)|wire \[-1:0\] .*) *;\n", "", text)
        write_whole(directory / path, text)
        written.append(directory / path)
    return written
