# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A dummy of a given size: what the tools make of a device that full, before anything real is as
large. Five functions between registers, one cycle; it computes nothing."""

from __future__ import annotations

import math
import random

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import io
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from kelp_hw.lib.sram import Sram

from ..boards.ecp5_clock import ecp5_clock

__all__ = ["Dummy", "dummy"]

#: Comb sites and block RAMs of the ULX3S's LFE5U-85F.
_DEVICE = {"luts": 83_640, "ebr": 208}
_OSCILLATOR = 25_000_000
_WIDTH, _ADDRESS = 36, 9  # a block RAM's widest shape: 512 × 36
_PORTS = _WIDTH + _ADDRESS + 1
_LEVELS = 5  # tables between registers
_NEAR, _REACH = 6, 2  # chains, groups: how far wires lead


class Dummy(Elaboratable):
    """Tables, registers and block RAMs that compute nothing of use, with wires as long as `far`
    says, on an ULX3S.

    Around each block RAM a group of chains: a register, five functions of four inputs one behind
    the other, and the register again. A function's inputs are the one before it, two registers of
    chains near its own and a third, which in a share `far` of them is a register of another group:
    on the square of all groups up to two away in either direction. The first ones have the memory's
    data instead; its other ports are registers of the group. Which functions and registers is
    drawn, the same each time. A LED shows one register, on which all else has a bearing.

    Parameters
    ----------
    luts, ebr : int
        Functions, less what does not fill another chain in every group, and block RAMs.
    hz : int
        The clock, from the board's PLL.
    far : float
        0 to 1.

    Raises
    ------
    ValueError
        When a group has fewer chains than its memory's ports need registers; a clock that the PLL
        cannot make.
    """

    def __init__(self, *, luts: int, ebr: int, hz: int, far: float):
        if ebr < 1 or luts < ebr * _PORTS * _LEVELS:
            raise ValueError(
                f"{luts} tables around {ebr} block RAMs are refused; legal: one block RAM and "
                + f"up, and {_PORTS * _LEVELS} tables for each"
            )
        if not 0 <= far <= 1:
            raise ValueError(f"far = {far} is refused; legal: 0 to 1")
        self.hz, self.groups, self.chains, self.far = hz, ebr, luts // (ebr * _LEVELS), far

    def elaborate(self, platform):
        m = Module()
        m.submodules.clock = oscillator = io.Buffer("i", platform.request("clk25", dir="-"))
        ecp5_clock(m, platform, oscillator.i, hz=self.hz, oscillator=_OSCILLATOR)
        registers = [
            Signal(self.chains, name=f"registers_{group}", reset_less=True)
            for group in range(self.groups)
        ]
        drawn = random.Random(0)
        for group in range(self.groups):
            self._group(m, group, registers, drawn)
        m.submodules.led = led = io.Buffer("o", platform.request("led", 0, dir="-"))
        m.d.comb += led.o.eq(registers[0][0])
        return m

    def _group(self, m: Module, group: int, registers: list[Signal], drawn: random.Random) -> None:
        own = registers[group]
        m.submodules[f"memory_{group}"] = memory = Sram(
            depth=1 << _ADDRESS, shape=_WIDTH, transparent=False
        )
        m.d.comb += [
            Cat(memory.write_data, memory.write_address, memory.write_en).eq(own),
            memory.read_address.eq(own >> 1),
            memory.read_en.eq(1),
        ]
        before = own
        for level in range(_LEVELS):
            after = Signal(self.chains, name=f"level_{group}_{level}")
            for n in range(self.chains):
                a, b, c = (own[(n + drawn.randint(-_NEAR, _NEAR)) % self.chains] for _ in range(3))
                if level == 0 and n < _WIDTH:
                    c = memory.read_data[n]
                elif drawn.random() < self.far:
                    c = registers[self._other(group, drawn)][drawn.randrange(self.chains)]
                m.d.comb += after[n].eq(
                    (before[n] ^ a) & b ^ c if drawn.random() < 0.5 else Mux(c, before[n] ^ b, a)
                )
            before = after
        m.d.sync += own.eq(before)

    def _other(self, group: int, drawn: random.Random) -> int:
        """A group near `group`, on the square that all of them fill row by row."""
        side = math.ceil(math.sqrt(self.groups))
        y, x = divmod(group, side)
        x = min(max(x + drawn.randint(-_REACH, _REACH), 0), side - 1)
        return min(max((y + drawn.randint(-_REACH, _REACH)) * side + x, 0), self.groups - 1)


def dummy(*, luts: float, ebr: float, far: float):
    """What makes a dummy's top for :func:`.build.build`: functions and block RAMs in these shares
    (0 to 1) of the ULX3S's comb sites and block RAMs. Mapping packs some functions together: a
    device full of them takes 2 to 4 % fewer sites."""

    def top(config, hz: int, baud: int):
        return ULX3S_85F_Platform(), Dummy(
            luts=round(_DEVICE["luts"] * luts), ebr=round(_DEVICE["ebr"] * ebr), hz=hz, far=far
        )

    return top
