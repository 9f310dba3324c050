# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The board's top, its pads' registers and its SDRAM chip, if it has one: what is left are the
UART's two wires and the LEDs."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_fpga.boards.board import Board

from .chip import chip_on_pads

__all__ = ["BoardWithChip"]


class BoardWithChip(wiring.Component):
    """:class:`kelp_fpga.boards.board.Board`, :class:`kelp_fpga.memory.sdram_pads.SdramPads` and
    :mod:`.chip`. `violation`: what the chip has found."""

    def __init__(self, board: Board):
        self.board = board
        super().__init__({"rx": In(1), "tx": Out(1), "leds": Out(8), "violation": Out(32)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.board = board = self.board
        if board.block_lines is None:
            chip_on_pads(m, board.sdram, self.violation, hz=board.hz)
        m.d.comb += [board.rx.eq(self.rx), self.tx.eq(board.tx), self.leds.eq(board.leds)]
        return m
