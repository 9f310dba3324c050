# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The board's top on its SDRAM chip, if it has one: what is left are the UART's two wires and the LEDs."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect

from kelp_fpga.board import Board
from kelp_fpga.sdram_core import SdramPins

from .chip import chip

__all__ = ["BoardWithChip"]


class BoardWithChip(wiring.Component):
    """:class:`kelp_fpga.board.Board` and :mod:`.chip`. `violation`: what the chip has found."""

    def __init__(self, board: Board):
        self.board = board
        super().__init__({"rx": In(1), "tx": Out(1), "leds": Out(8), "violation": Out(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.board = board = self.board
        if board.block_lines is None:
            pins = SdramPins().create()
            connect(m, board.sdram, wiring.flipped(pins))
            m.submodules.chip = chip(pins, self.violation, hz=board.hz)
        m.d.comb += [board.rx.eq(self.rx), self.tx.eq(board.tx), self.leds.eq(board.leds)]
        return m
