# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The board's top on an ULX3S-85F: clock, pins, and nothing else. The SDRAM's pins have a register
each way, one cycle; the others are wires."""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import io
from amaranth.lib.wiring import connect
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from ..memory.sdram_pads import SdramPads
from .board import Board
from .ecp5_clock import ecp5_clock, pll_dividers

__all__ = ["Ulx3s", "Ulx3sPlatform"]

Ulx3sPlatform = ULX3S_85F_Platform
_OSCILLATOR = 25_000_000


class Ulx3s(Elaboratable):
    """:class:`.board.Board` on the board's pins. The SDRAM's clock is ours, inverted by an output
    register so that it leaves the pad as the data do."""

    def __init__(self, board: Board):
        self.board = board
        # refuses what cannot be made before anything is built
        pll_dividers(board.hz, _OSCILLATOR)

    def elaborate(self, platform):
        m = Module()
        board = self.board
        m.submodules.clock = oscillator = io.Buffer("i", platform.request("clk25", dir="-"))
        ecp5_clock(m, platform, oscillator.i, hz=board.hz, oscillator=_OSCILLATOR)
        m.submodules.board = board

        uart = platform.request("uart", dir={"rx": "-", "tx": "-", "rts": "-", "dtr": "-"})
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        m.d.comb += [board.rx.eq(rx.i), tx.o.eq(board.tx)]
        for n in range(8):
            m.submodules[f"led_{n}"] = led = io.Buffer("o", platform.request("led", n, dir="-"))
            m.d.comb += led.o.eq(board.leds[n])

        chip = platform.request("sdram", dir="-")
        m.submodules.sdram = pads = SdramPads(chip)
        connect(m, board.sdram, pads.pins)
        m.submodules.sdram_clk = sdram_clock = io.DDRBuffer("o", chip.clk)
        m.d.comb += [sdram_clock.o[0].eq(0), sdram_clock.o[1].eq(1)]
        return m
