# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""First light without any chip beside the FPGA: an AXI4 memory in block RAM."""

from __future__ import annotations

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from kelp_hw.axi import RESP_OKAY, AxiSignature
from kelp_hw.wide_memory import WideMemory

__all__ = ["BlockStore"]


class BlockStore(wiring.Component):
    """`lines` lines behind one AXI4 port, one line per transaction, in order; addresses beyond wrap round.

    Latency: a read's R one cycle after its AR. Throughput: a read every cycle, a write every other cycle.

    Parameters
    ----------
    lines : int
        A power of two.
    address_bits, id_bits : int
    """

    def __init__(self, *, lines: int, address_bits: int, id_bits: int):
        if lines < 2 or lines & (lines - 1):
            raise ValueError(f"lines = {lines!r} is refused; legal: a power of two, 2 and up")
        self.lines = lines
        super().__init__({"axi": In(AxiSignature(address_bits=address_bits, id_bits=id_bits))})

    def elaborate(self, platform):
        m = Module()
        axi = self.axi
        m.submodules.rows = rows = WideMemory(depth=self.lines, shape=512, granularity=8)
        m.d.comb += [
            axi.ar.ready.eq(~axi.r.valid | axi.r.ready), rows.read_en.eq(axi.ar.valid & axi.ar.ready), rows.read_address.eq(axi.ar.p.addr[6:]),
            axi.aw.ready.eq(axi.w.valid & ~axi.b.valid), axi.w.ready.eq(axi.aw.valid & ~axi.b.valid), rows.write_address.eq(axi.aw.p.addr[6:]),
            rows.write_data.eq(axi.w.p.data), rows.write_en.eq(Mux(axi.aw.valid & axi.aw.ready, axi.w.p.strb, 0)),
            axi.r.p.data.eq(rows.read_data), axi.r.p.resp.eq(RESP_OKAY), axi.r.p.last.eq(1), axi.b.p.resp.eq(RESP_OKAY),
        ]
        with m.If(axi.r.ready):
            m.d.sync += axi.r.valid.eq(0)
        with m.If(rows.read_en):
            m.d.sync += [axi.r.valid.eq(1), axi.r.p.id.eq(axi.ar.p.id)]
        with m.If(axi.b.ready):
            m.d.sync += axi.b.valid.eq(0)
        with m.If(axi.aw.valid & axi.aw.ready):
            m.d.sync += [axi.b.valid.eq(1), axi.b.p.id.eq(axi.aw.p.id)]
        return m
