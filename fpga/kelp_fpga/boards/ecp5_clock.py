# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""An ECP5's PLL and the reset that ends when it has locked."""

from __future__ import annotations

from amaranth.hdl import ClockDomain, ClockSignal, Instance, Module, Signal
from amaranth.lib.cdc import ResetSynchronizer

__all__ = ["ecp5_clock", "pll_dividers"]


def pll_dividers(hz: int, oscillator: int = 25_000_000) -> tuple[int, int, int]:
    """(CLKI_DIV, CLKFB_DIV, CLKOP_DIV) of an ECP5 PLL that makes `hz` of the board's `oscillator`,
    its VCO nearest 600 MHz; ValueError when there are none."""
    found = []
    for reference in range(1, 9):  # phase detector at 3.125 … 400 MHz
        feedback, rest = divmod(hz * reference, oscillator)
        if rest or not 1 <= feedback <= 80:
            continue
        found += [
            (abs(hz * output - 600_000_000), (reference, feedback, output))
            for output in range(1, 129)
            if 400e6 <= hz * output <= 800e6
        ]
    if not found:
        raise ValueError(
            f"hz = {hz} is refused; legal: multiples of {oscillator // 8} Hz, or of "
            + f"{oscillator / 1e6:g} MHz over another whole number up to 8"
        )
    return min(found)[1]


def ecp5_clock(m: Module, platform, source, *, hz: int, oscillator: int) -> None:
    """Make the domain `sync` of `hz` from the signal `source`."""
    # the clock constraint goes by the name
    clock, locked = Signal(name="board_clock"), Signal(name="locked")
    m.domains.sync = ClockDomain()
    reference, feedback, output = pll_dividers(hz, oscillator)
    m.submodules.pll = Instance(
        "EHXPLLL",
        p_CLKI_DIV=reference,
        p_CLKFB_DIV=feedback,
        p_CLKOP_DIV=output,
        p_CLKOP_ENABLE="ENABLED",
        p_CLKOP_CPHASE=output // 2,
        p_FEEDBK_PATH="CLKOP",
        a_FREQUENCY_PIN_CLKI=f"{oscillator / 1e6:g}",
        a_FREQUENCY_PIN_CLKOP=f"{hz / 1e6:g}",
        a_ICP_CURRENT="12",
        a_LPF_RESISTOR="8",
        i_CLKI=source,
        i_CLKFB=clock,
        i_RST=0,
        i_STDBY=0,
        i_PHASESEL0=0,
        i_PHASESEL1=0,
        i_PHASEDIR=0,
        i_PHASESTEP=0,
        i_PHASELOADREG=0,
        i_PLLWAKESYNC=0,
        i_ENCLKOP=0,
        o_CLKOP=clock,
        o_LOCK=locked,
    )
    m.d.comb += ClockSignal().eq(clock)
    platform.add_clock_constraint(clock, hz)
    m.submodules.reset = ResetSynchronizer(~locked)
