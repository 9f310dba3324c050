# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""First light without any chip beside the FPGA: an AXI4 memory in block RAM, or in UltraRAM where
there is some. Answers after 1 cycle; a read a cycle, a write in two."""

from __future__ import annotations

from pathlib import Path

from amaranth.hdl import ClockSignal, Instance, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from kelp_hw.lib.axi import RESP_OKAY, AxiSignature
from kelp_hw.lib.wide_memory import WideMemory

__all__ = ["LINE_RAM", "BlockStore"]

LINE_RAM = Path(__file__).parents[1] / "macros" / "kelp_line_ram.v"  #: what `ultra` instantiates


class BlockStore(wiring.Component):
    """`lines` lines behind one AXI4 port, one line per transaction, in order; addresses beyond wrap
    round.

    Latency: R and B `LATENCY` cycle after AR, and AW with W. Throughput: a read each `INTERVAL`
    cycles, a write each `WRITE_INTERVAL`.

    Parameters
    ----------
    lines : int
        A power of two.
    address_bits, id_bits : int
    ultra : bool
        In `kelp_line_ram`: UltraRAM, which has no initial value to be written out and so is of any
        size.

    Members
    -------
    axi : In(AxiSignature)
    """

    LATENCY = 1
    INTERVAL = 1
    WRITE_INTERVAL = 2

    def __init__(self, *, lines: int, address_bits: int, id_bits: int, ultra: bool = False):
        if lines < 2 or lines & (lines - 1):
            raise ValueError(f"lines = {lines!r} is refused; legal: a power of two, 2 and up")
        self.lines, self.ultra = lines, ultra
        super().__init__({"axi": In(AxiSignature(address_bits=address_bits, id_bits=id_bits))})

    def elaborate(self, platform):
        m = Module()
        axi = self.axi
        bits = (self.lines - 1).bit_length()
        read_en, read_address, write_address, write_en = (
            Signal(),
            Signal(bits),
            Signal(bits),
            Signal(64),
        )
        if self.ultra:
            m.submodules.rows = Instance(
                "kelp_line_ram",
                p_DEPTH=self.lines,
                p_ADDRESS_WIDTH=bits,
                i_clk=ClockSignal(),
                i_read_en=read_en,
                i_read_address=read_address,
                o_read_data=axi.r.p.data,
                i_write_en=write_en,
                i_write_address=write_address,
                i_write_data=axi.w.p.data,
            )
        else:
            m.submodules.rows = rows = WideMemory(depth=self.lines, shape=512, granularity=8)
            m.d.comb += [
                rows.read_en.eq(read_en),
                rows.read_address.eq(read_address),
                axi.r.p.data.eq(rows.read_data),
                rows.write_en.eq(write_en),
                rows.write_address.eq(write_address),
                rows.write_data.eq(axi.w.p.data),
            ]
        m.d.comb += [
            axi.ar.ready.eq(~axi.r.valid | axi.r.ready),
            read_en.eq(axi.ar.valid & axi.ar.ready),
            read_address.eq(axi.ar.p.addr[6:]),
            axi.aw.ready.eq(axi.w.valid & ~axi.b.valid),
            axi.w.ready.eq(axi.aw.valid & ~axi.b.valid),
            write_address.eq(axi.aw.p.addr[6:]),
            write_en.eq(Mux(axi.aw.valid & axi.aw.ready, axi.w.p.strb, 0)),
            axi.r.p.resp.eq(RESP_OKAY),
            axi.r.p.last.eq(1),
            axi.b.p.resp.eq(RESP_OKAY),
        ]
        with m.If(axi.r.ready):
            m.d.sync += axi.r.valid.eq(0)
        with m.If(read_en):
            m.d.sync += [axi.r.valid.eq(1), axi.r.p.id.eq(axi.ar.p.id)]
        with m.If(axi.b.ready):
            m.d.sync += axi.b.valid.eq(0)
        with m.If(axi.aw.valid & axi.aw.ready):
            m.d.sync += [axi.b.valid.eq(1), axi.b.p.id.eq(axi.aw.p.id)]
        return m
