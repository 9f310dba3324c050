# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Dirty lines to memory: AW and W out of both line buffers, B back to them (docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import LINE_BITS, LINE_BYTES

from .axi import BURST_INCR, SIZE_LINE, AxiSignature
from .line_slots import QUARTERS

__all__ = ["WriteOut"]


class WriteOut(wiring.Component):
    """Takes the lines that the two buffers offer, at most one per cycle and from each in turn, and
    writes them with byte strobes.

    `take_lines` / `take_scales` pulse when the offer (`lines_due` / `scales_due`) is taken; the
    data follow one cycle later. AW and W are queued apart, so either may be accepted first; a queue
    place is reserved before a line is read. Latency from `…_due` to AW and W: 2 cycles; throughput
    one line per cycle.

    Parameters
    ----------
    axi : AxiSignature
    line_bits, line_slot_bits, scale_slot_bits : int
        Widths of a DRAM line address and of the slots; the ID is the slot, with the highest bit set
        for scales.

    Members
    -------
    aw, w : as in AxiSignature
    """

    #: Lines read and not yet accepted; more than two only so that a short stall of one channel
    #: costs nothing.
    QUEUED = 16

    def __init__(
        self, *, axi: AxiSignature, line_bits: int, line_slot_bits: int, scale_slot_bits: int
    ):
        self.id_bits = axi.id_bits
        super().__init__(
            {
                "lines_due": In(1),
                "lines_slot": In(line_slot_bits),
                "lines_address": In(line_bits),
                "take_lines": Out(1),
                "lines_data": In(LINE_BITS),
                "lines_quarters": In(QUARTERS),
                "scales_due": In(1),
                "scales_slot": In(scale_slot_bits),
                "scales_address": In(line_bits),
                "take_scales": Out(1),
                "scales_data": In(LINE_BITS),
                "scales_bytes": In(LINE_BYTES),
                "aw": Out(stream.Signature(axi.address)),
                "w": Out(stream.Signature(axi.write)),
                "idle": Out(1),
            }
        )
        # State that proofs look at (kelp_verif.formal.turn_specs): a line was addressed in the
        # cycle before, and where it goes; whose turn it is.
        self.read, self.of_scales, self.scales_next = Signal(), Signal(), Signal()
        self.address = Signal(axi.address)

    def elaborate(self, platform):
        m = Module()
        m.submodules.addresses = addresses = SyncFIFO(
            width=self.aw.p.shape().size, depth=self.QUEUED
        )
        m.submodules.lines = lines = SyncFIFO(width=self.w.p.shape().size, depth=self.QUEUED)

        space = Signal()
        read, of_scales, scales_next, address = (
            self.read,
            self.of_scales,
            self.scales_next,
            self.address,
        )
        m.d.comb += [
            # One line may be between a buffer and the queues.
            space.eq((addresses.level < self.QUEUED - 1) & (lines.level < self.QUEUED - 1)),
            self.take_scales.eq(space & self.scales_due & (scales_next | ~self.lines_due)),
            self.take_lines.eq(space & self.lines_due & ~self.take_scales),
        ]
        m.d.sync += [
            read.eq(self.take_lines | self.take_scales),
            of_scales.eq(self.take_scales),
            address.id.eq(
                Mux(self.take_scales, self.scales_slot | (1 << self.id_bits - 1), self.lines_slot)
            ),
            address.addr.eq(Mux(self.take_scales, self.scales_address, self.lines_address) << 6),
            address.size.eq(SIZE_LINE),
            address.burst.eq(BURST_INCR),
        ]
        with m.If(self.take_lines | self.take_scales):
            m.d.sync += scales_next.eq(self.take_lines)

        line = Signal(self.w.p.shape())
        quarter_bytes = LINE_BYTES // QUARTERS
        m.d.comb += [
            line.data.eq(Mux(of_scales, self.scales_data, self.lines_data)),
            line.strb.eq(
                Mux(
                    of_scales,
                    self.scales_bytes,
                    Cat(bit.replicate(quarter_bytes) for bit in self.lines_quarters),
                )
            ),
            line.last.eq(1),
            addresses.w_en.eq(read),
            addresses.w_data.eq(address),
            lines.w_en.eq(read),
            lines.w_data.eq(line),
            self.aw.valid.eq(addresses.r_rdy),
            self.aw.p.eq(addresses.r_data),
            addresses.r_en.eq(self.aw.ready),
            self.w.valid.eq(lines.r_rdy),
            self.w.p.eq(lines.r_data),
            lines.r_en.eq(self.w.ready),
            self.idle.eq(~read & ~addresses.r_rdy & ~lines.r_rdy),
        ]
        m.d.sync += Assert(~read | (addresses.w_rdy & lines.w_rdy), "a write queue overflows")
        return m
