# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's memory side without its endpoint: arbiter, cold tier, memory test, and a block RAM with
one cell that can be made to stick."""

from __future__ import annotations

from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_fpga.boards.board import Board
from kelp_fpga.memory.axi_arbiter import AxiArbiter
from kelp_fpga.memory.block_store import BlockStore
from kelp_fpga.memory.cold_store import ColdStore
from kelp_fpga.memory.memory_test import MemoryTest
from kelp_hw.layouts import Layouts
from kelp_hw.lib.axi import AxiSignature
from kelp_spec.config import Config

__all__ = ["FIRST", "LINES", "MemorySide"]

LINES, FIRST = 1024, 256  #: of the store; where the cold tier begins
_BITS = 25


class MemorySide(wiring.Component):
    """`axi`: a manager of the bench's. `stuck`: bit 100 of line 37 reads 1."""

    def __init__(self, config: Config, *, ultra: bool = False):
        self.config, self.ultra = config, ultra
        layouts = Layouts(config)
        super().__init__(
            {
                "axi": In(AxiSignature(address_bits=_BITS, id_bits=4)),
                "cold_command": In(stream.Signature(layouts.cold_command)),
                "cold_completion": Out(stream.Signature(layouts.cold_completion)),
                "start": In(1),
                "first": In(19),
                "count": In(20),
                "busy": Out(1),
                "done": Out(1),
                "result": Out(2),
                "detail": Out(19),
                "stuck": In(1),
                "reads": Out(1),
                "writes": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.arbiter = arbiter = AxiArbiter(managers=3, address_bits=_BITS, id_bits=4)
        m.submodules.store = store = BlockStore(
            lines=LINES, address_bits=_BITS, id_bits=6, ultra=self.ultra
        )
        m.submodules.cold_store = cold_store = ColdStore(
            config=self.config, first_line=FIRST, lines=LINES - FIRST, address_bits=_BITS
        )
        m.submodules.test = test = MemoryTest(address_bits=_BITS)
        connect(m, flipped(self.axi), arbiter.i_0)
        Board._join(m, cold_store.axi, arbiter.i_1)
        Board._join(m, test.axi, arbiter.i_2)
        for name in ("aw", "w", "ar"):
            connect(m, getattr(arbiter.o, name), getattr(store.axi, name))
        connect(m, store.axi.b, arbiter.o.b)
        fault = self.stuck & (test.axi.ar.p.addr[6:] == 37)
        m.d.comb += [
            arbiter.o.r.valid.eq(store.axi.r.valid),
            store.axi.r.ready.eq(arbiter.o.r.ready),
            arbiter.o.r.payload.eq(store.axi.r.payload),
            arbiter.o.r.p.data[100].eq(Mux(fault, 1, store.axi.r.p.data[100])),
            test.start.eq(self.start),
            test.first.eq(self.first),
            test.count.eq(self.count),
            self.busy.eq(test.busy),
            self.done.eq(test.done),
            self.result.eq(test.result),
            self.detail.eq(test.detail),
            self.reads.eq(cold_store.reads),
            self.writes.eq(cold_store.writes),
        ]
        connect(m, flipped(self.cold_command), cold_store.command)
        connect(m, cold_store.completion, flipped(self.cold_completion))
        return m
