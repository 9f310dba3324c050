# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The board's top on an ULX3S-85F: clock, pins, and nothing else."""

from __future__ import annotations

from amaranth.hdl import ClockDomain, ClockSignal, Elaboratable, Instance, Module, Signal
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from .board import Board

__all__ = ["Ulx3s", "Ulx3sPlatform", "pll_dividers"]

Ulx3sPlatform = ULX3S_85F_Platform
_OSCILLATOR = 25_000_000


def pll_dividers(hz: int) -> tuple[int, int, int]:
    """(CLKI_DIV, CLKFB_DIV, CLKOP_DIV) of an ECP5 PLL that makes `hz` of the board's 25 MHz, its VCO nearest 600 MHz; ValueError when there are none."""
    found = []
    for reference in range(1, 9):                       # phase detector at 3.125 … 400 MHz
        feedback, rest = divmod(hz * reference, _OSCILLATOR)
        if rest or not 1 <= feedback <= 80:
            continue
        found += [(abs(hz * output - 600_000_000), (reference, feedback, output)) for output in range(1, 129) if 400e6 <= hz * output <= 800e6]
    if not found:
        raise ValueError(f"hz = {hz} is refused; legal: multiples of 3125000, 5000000 or 25 MHz over another whole number up to 8")
    return min(found)[1]


class Ulx3s(Elaboratable):
    """:class:`.board.Board` on the board's pins. The SDRAM's clock is ours, inverted by an output register so that it leaves the pad as the data do."""

    def __init__(self, board: Board):
        self.board, self.dividers = board, pll_dividers(board.hz)

    def elaborate(self, platform):
        m = Module()
        board = self.board
        clock, locked = Signal(name="board_clock"), Signal(name="locked")   # the clock constraint goes by the name
        m.domains.sync = ClockDomain()
        m.submodules.clock = oscillator = io.Buffer("i", platform.request("clk25", dir="-"))
        reference, feedback, output = self.dividers
        m.submodules.pll = Instance(
            "EHXPLLL", p_CLKI_DIV=reference, p_CLKFB_DIV=feedback, p_CLKOP_DIV=output, p_CLKOP_ENABLE="ENABLED", p_CLKOP_CPHASE=output // 2,
            p_FEEDBK_PATH="CLKOP", a_FREQUENCY_PIN_CLKI="25", a_FREQUENCY_PIN_CLKOP=f"{board.hz / 1e6:g}", a_ICP_CURRENT="12", a_LPF_RESISTOR="8",
            i_CLKI=oscillator.i, i_CLKFB=clock, i_RST=0, i_STDBY=0, i_PHASESEL0=0, i_PHASESEL1=0, i_PHASEDIR=0, i_PHASESTEP=0, i_PHASELOADREG=0,
            i_PLLWAKESYNC=0, i_ENCLKOP=0, o_CLKOP=clock, o_LOCK=locked,
        )
        m.d.comb += ClockSignal().eq(clock)
        platform.add_clock_constraint(clock, board.hz)
        m.submodules.reset = ResetSynchronizer(~locked)
        m.submodules.board = board

        uart = platform.request("uart", dir={"rx": "-", "tx": "-", "rts": "-", "dtr": "-"})
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        m.d.comb += [board.rx.eq(rx.i), tx.o.eq(board.tx)]
        for n in range(8):
            m.submodules[f"led_{n}"] = led = io.Buffer("o", platform.request("led", n, dir="-"))
            m.d.comb += led.o.eq(board.leds[n])

        pins, chip = board.sdram, platform.request("sdram", dir="-")
        # The platform knows which of the chip's pins are active low: what stands here is 1 for active.
        outputs = {"clk_en": pins.cke, "cs": ~pins.cs_n, "ras": ~pins.ras_n, "cas": ~pins.cas_n, "we": ~pins.we_n, "ba": pins.ba, "a": pins.a, "dqm": pins.dqm}
        for name, value in outputs.items():
            m.submodules[f"sdram_{name}"] = pad = io.Buffer("o", getattr(chip, name))
            m.d.comb += pad.o.eq(value)
        m.submodules.sdram_clk = sdram_clock = io.DDRBuffer("o", chip.clk)
        m.d.comb += [sdram_clock.o[0].eq(0), sdram_clock.o[1].eq(1)]
        m.submodules.sdram_dq = dq = io.Buffer("io", chip.dq)
        m.d.comb += [dq.o.eq(pins.dq_o), dq.oe.eq(pins.dq_oe), pins.dq_i.eq(dq.i)]
        return m
