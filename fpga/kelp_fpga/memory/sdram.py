# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The board's SDRAM as an AXI4 memory of 512 bits: a line in 32 cycles, a read's data about 42
cycles after its address."""

from __future__ import annotations

from amaranth.hdl import Cat, DomainRenamer, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_hw.lib.axi import RESP_OKAY, AxiSignature
from kelp_spec.formats import LINE_BITS, LINE_BYTES

from .sdram_core import LINE_BEATS, SdramCore, SdramPins
from .sdram_timing import COMMON, SdramTiming

__all__ = ["Sdram"]

#: lines of one direction in a row while the other waits: turning the data pins round costs cycles
_BATCH = 8


class Sdram(wiring.Component):
    """32 MB behind one AXI4 port, one 64-byte line per transaction, in order. A write is answered
    when every later read sees it; write data is taken while it goes out, so W waits up to 32
    cycles. Two lines read may wait for R; a manager that does not take them stops its own reads,
    never refresh.

    Throughput: one line in `INTERVAL` cycles over different banks (2 bytes a cycle), measured in
    tests/fpga/memory/test_sdram.py. Latency of a read when idle: `LATENCY` cycles, 38 and tRCD and
    CAS latency.

    Parameters
    ----------
    hz : float
    address_bits, id_bits : int
        Of the port; address bits above 25 are ignored.
    timing : SdramTiming
    core_domain : str
        Clock domain of what talks to the chip. When the port is reset alone, for 64 cycles at
        least, the chip is refreshed all the same and keeps its data.

    Members
    -------
    axi : In(AxiSignature)
    pins : Out(SdramPins)
    ready : Out
        The chip is initialised; requests wait until then.
    """

    INTERVAL = LINE_BEATS

    def __init__(
        self,
        *,
        hz: float,
        address_bits: int,
        id_bits: int,
        timing: SdramTiming = COMMON,
        core_domain: str = "sync",
    ):
        self.core = SdramCore(hz=hz, id_bits=id_bits, timing=timing)
        self.id_bits, self.core_domain = id_bits, core_domain
        super().__init__(
            {
                "axi": In(AxiSignature(address_bits=address_bits, id_bits=id_bits)),
                "pins": Out(SdramPins()),
                "ready": Out(1),
            }
        )

    @property
    def LATENCY(self) -> int:
        """The first column, those after it, and the registers that gather and hold the line."""
        return self.core.LATENCY + LINE_BEATS - 1 + 2

    def elaborate(self, platform):
        m = Module()
        core = self.core
        m.submodules.core = DomainRenamer(self.core_domain)(core)
        axi = self.axi
        connect(m, core.pins, flipped(self.pins))
        m.d.comb += self.ready.eq(core.ready)

        # - which goes next ------------------------------------------------------------------------
        reads, writes = Signal(2), Signal(2)  # lines whose answer has not been taken
        writing, batch = Signal(), Signal(range(_BATCH + 1))
        can_read, can_write, write = Signal(), Signal(), Signal()
        # `able`: the core takes a line in this cycle, so none is offered that another could pass,
        # and no written line waits for its W.
        taken, able = core.i.valid & core.i.ready, Signal()
        m.d.sync += able.eq(core.i.ready & ~taken)
        m.d.comb += [
            can_read.eq(axi.ar.valid & (reads < 2)),
            can_write.eq(axi.aw.valid & axi.w.valid & (writes < 2)),
            write.eq(can_write & (~can_read | (writing ^ (batch == _BATCH)))),
            core.i.valid.eq(able & (can_read | can_write)),
            core.i.p.write.eq(write),
            core.i.p.id.eq(Mux(write, axi.aw.p.id, axi.ar.p.id)),
            Cat(*(core.i.p.line[name] for name in ("bank", "group", "row"))).eq(
                Mux(write, axi.aw.p.addr, axi.ar.p.addr)[6:]
            ),
            axi.ar.ready.eq(able & ~write & can_read),
            axi.aw.ready.eq(able & write),
        ]
        with m.If(taken):
            m.d.sync += [
                writing.eq(write),
                batch.eq(Mux(write == writing, Mux(batch == _BATCH, batch, batch + 1), 1)),
            ]

        # - writes ---------------------------------------------------------------------------------
        # The next line stands at the shift registers' inputs until it begins; `columns`: those
        # still to be moved to the front, `moving` while there are any.
        out, masks = Signal(LINE_BITS), Signal(LINE_BYTES)
        columns, moving = Signal(range(LINE_BEATS)), Signal()
        m.d.comb += [
            axi.w.ready.eq(core.start_write),
            core.write_data.eq(out[:16]),
            core.write_mask.eq(masks[:2]),
        ]
        m.d.sync += [
            out.eq(Mux(moving, out[16:], axi.w.p.data)),
            masks.eq(Mux(moving, masks[2:], ~axi.w.p.strb)),
        ]
        with m.If(core.start_write):
            m.d.sync += [columns.eq(LINE_BEATS - 1), moving.eq(1)]
        with m.Elif(moving):
            m.d.sync += [columns.eq(columns - 1), moving.eq(columns != 1)]
        m.submodules.done = done = SyncFIFO(width=self.id_bits, depth=2)
        m.d.comb += [
            done.w_en.eq(core.wrote),
            done.w_data.eq(core.wrote_id),
            axi.b.valid.eq(done.r_rdy),
            axi.b.p.id.eq(done.r_data),
            axi.b.p.resp.eq(RESP_OKAY),
            done.r_en.eq(axi.b.ready),
        ]
        m.d.sync += writes.eq(writes + (taken & write) - (axi.b.valid & axi.b.ready))

        # - reads ----------------------------------------------------------------------------------
        gathered, full, gathered_id, held = (
            Signal(LINE_BITS),
            Signal(),
            Signal(self.id_bits),
            Signal(),
        )
        with m.If(core.read.valid):
            m.d.sync += gathered.eq(Cat(gathered[16:], core.read.p.data))
        with m.If(axi.r.valid & axi.r.ready):
            m.d.sync += held.eq(0)
        # Two lines are 32 cycles apart, so the second may find the first gone: no row of registers
        # waits for `ready`.
        with m.If(full & ~held):
            m.d.sync += [
                axi.r.p.data.eq(gathered),
                axi.r.p.id.eq(gathered_id),
                held.eq(1),
                full.eq(0),
            ]
        with m.If(core.read.p.last):
            m.d.sync += [full.eq(1), gathered_id.eq(core.read.p.id)]
        m.d.comb += [axi.r.valid.eq(held), axi.r.p.resp.eq(RESP_OKAY), axi.r.p.last.eq(1)]
        m.d.sync += reads.eq(reads + (taken & ~write) - (axi.r.valid & axi.r.ready))
        return m
