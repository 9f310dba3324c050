# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Boards whose memory chip we have no controller for (DDR3): the same top, its memory and cold tier
in block RAM. Clock, UART and LEDs are all that they need; pins are wired to the board's ports,
combinational.

The ButterStick has no UART of its own: an adapter of 3.3 V goes on its SYZYGY connector VIO0 (S0
receives, S1 sends). That connector's supply is off until `VccIo` has set it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from amaranth.build import Attrs
from amaranth.hdl import Cat, Const, Elaboratable, Module, Signal
from amaranth.lib import io
from amaranth_boards.butterstick import ButterStickPlatform
from amaranth_boards.ecpix5 import ECPIX585Platform
from amaranth_boards.resources import UARTResource
from amaranth_boards.versa_ecp5_5g import VersaECP55GPlatform

from .board import Board
from .ecp5_clock import ecp5_clock, pll_dividers

__all__ = ["BLOCK_BOARDS", "BlockBoard", "BlockTop", "VccIo", "outputs", "single_leds"]


@dataclass(frozen=True)
class BlockBoard:
    """`oscillator`: name and Hz of the clock; `leds`: (platform, module, board); `clock`: as
    :func:`.ecp5_clock.ecp5_clock`; `dividers`: (Hz, oscillator), refuses what `clock` cannot
    make."""

    platform: Callable
    oscillator: tuple[str, int]
    leds: Callable
    clock: Callable = ecp5_clock
    dividers: Callable = pll_dividers


class BlockTop(Elaboratable):
    """:class:`.board.Board` on the pins of a :class:`BlockBoard`. Combinational: wires."""

    def __init__(self, kind: BlockBoard, board: Board):
        self.kind, self.board = kind, board
        kind.dividers(board.hz, kind.oscillator[1])

    def elaborate(self, platform):
        m = Module()
        name, oscillator = self.kind.oscillator
        m.submodules.clock = source = io.Buffer("i", platform.request(name, dir="-"))
        self.kind.clock(m, platform, source.i, hz=self.board.hz, oscillator=oscillator)
        m.submodules.board = board = self.board
        uart = platform.request("uart", dir={"rx": "-", "tx": "-"})
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        m.d.comb += [board.rx.eq(rx.i), tx.o.eq(board.tx)]
        self.kind.leds(platform, m, board)
        return m


class VccIo(Elaboratable):
    """3.3 V on the ButterStick's connectors. Each regulator's output falls with a control voltage
    that we make by density: 0.313 of 3.3 V give 3.3 V (0.6 V feedback; 68 kΩ from the control to
    it, 53.6 kΩ from the output, 13 kΩ to ground). They are switched on when the control has
    settled."""

    _DENSITY = round(0.313 / 3.3 * 1024)

    def __init__(self, hz: int):
        self.settled = round(0.2 * hz)  # thirty times the filter's 68 kΩ · 0.1 µF

    def elaborate(self, platform):
        m = Module()
        control = platform.request("vccio_ctrl", dir={"pdm": "-", "en": "-"})
        m.submodules.pdm = pdm = io.Buffer("o", control.pdm)
        m.submodules.en = enable = io.Buffer("o", control.en)
        error, waited = Signal(11), Signal(range(self.settled + 1))
        m.d.sync += error.eq(error[:10] + self._DENSITY)
        with m.If(waited != self.settled):
            m.d.sync += waited.eq(waited + 1)
        m.d.comb += [pdm.o.eq(error[10].replicate(3)), enable.o.eq(waited == self.settled)]
        return m


def outputs(m, ports, values) -> None:
    """Each port shows its value."""
    for n, (port, value) in enumerate(zip(ports, values, strict=True)):
        m.submodules[f"led_{n}"] = buffer = io.Buffer("o", port)
        m.d.comb += buffer.o.eq(value)


def single_leds(platform, m, board) -> None:
    """Eight LEDs."""
    outputs(m, [platform.request("led", n, dir="-") for n in range(8)], board.leds)


def _rgb_leds(platform, m, board) -> None:
    """Two of the eight in each of four coloured LEDs: the first green, the second blue; so 7,
    failed, is the last one's blue."""
    colours = [platform.request("rgb_led", n, dir={"r": "-", "g": "-", "b": "-"}) for n in range(4)]
    outputs(m, [getattr(colour, part) for colour in colours for part in "gb"], board.leds)
    for n, colour in enumerate(colours):
        m.submodules[f"red_{n}"] = buffer = io.Buffer("o", colour.r)
        m.d.comb += buffer.o.eq(0)


def _shared_leds(platform, m, board) -> None:
    """Seven anodes, cathodes shared by colour: the first seven of the eight in green, in red when
    the self-test has failed. And the connectors' supply."""
    row = platform.request("rgb_leds_muxed", dir={"leds": "-", "r": "-", "g": "-", "b": "-"})
    failed = board.leds[7]
    outputs(
        m,
        [row.leds, row.r, row.g, row.b],
        [Cat(board.leds[:7]) | failed.replicate(7), ~failed, failed, Const(1)],
    )
    m.submodules.vccio = VccIo(board.hz)


def _butterstick():
    platform = ButterStickPlatform(VCCIOA="3V3", VCCIOB="3V3", VCCIOC="3V3")
    platform.add_resources(
        [UARTResource(0, rx="S0", tx="S1", conn=("syzygy", 0), attrs=Attrs(IO_TYPE="LVCMOS33"))]
    )
    return platform


BLOCK_BOARDS: dict[str, BlockBoard] = {
    "ecpix5_85f": BlockBoard(ECPIX585Platform, ("clk100", 100_000_000), _rgb_leds),
    "butterstick": BlockBoard(_butterstick, ("clk30", 30_000_000), _shared_leds),
    "versa_ecp5_5g": BlockBoard(VersaECP55GPlatform, ("clk100", 100_000_000), single_leds),
}
