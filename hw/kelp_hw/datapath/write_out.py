# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Dirty lines to memory: AW and W out of both line buffers (docs/design.md §4): one line a cycle, 2
cycles from offer to AW and W."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import LINE_BYTES

from ..lib.axi import BURST_INCR, SIZE_LINE, AxiSignature
from ..lib.protected import CheckedWord, Fault, fault_ports, fifo_of, merged, used
from .quarters import QUARTERS
from .signatures import WriteBack

__all__ = ["WriteOut"]


class WriteOut(wiring.Component):
    """Takes the lines that the two buffers have for it, at most one per cycle, and writes them with
    byte strobes.

    Where both have one they are taken in turn. A buffer keeps its turn until its line is taken,
    which is after 15 cycles at most while there is room (`LineBuffer`, **Write-back**). `turn`
    depends on registers alone; `take`, which waits for the head, is made in the buffer.

    AW and W have a FIFO each, so either may be accepted first; a place in both is reserved before a
    line is read. Latency `LATENCY` cycles from `….take` to AW and W; one line a cycle.

    Parameters
    ----------
    axi : AxiSignature
    line_bits : int
        Width of a DRAM line address.
    line_slots, scale_slots : int
        The ID is the slot, with the highest bit set for scales.
    protect : bool
        What waits carries check bits, and `….due.address` is a code word.

    Members
    -------
    lines, scales : In(WriteBack)
    aw, w : as in AxiSignature
    idle : out
        Nothing read from a buffer waits for AW or W.
    fault : out, Fault
        With `protect`: of what waits, a line or where it goes, and of that when it comes.
    """

    LATENCY = 2
    INTERVAL = 1
    #: Lines read and not yet accepted; more than two only so that a short stall of one channel
    #: costs nothing.
    QUEUED = 16

    def __init__(
        self,
        *,
        axi: AxiSignature,
        line_bits: int,
        line_slots: int,
        scale_slots: int,
        protect: bool = False,
    ):
        self.id_bits, self.protect = axi.id_bits, protect
        self.word = CheckedWord(line_bits, protect=protect)
        super().__init__(
            {
                "lines": In(
                    WriteBack(
                        slots=line_slots,
                        address_bits=self.word.code_bits,
                        strobes=QUARTERS,
                    )
                ),
                "scales": In(
                    WriteBack(
                        slots=scale_slots,
                        address_bits=self.word.code_bits,
                        strobes=LINE_BYTES,
                    )
                ),
                "aw": Out(stream.Signature(axi.address)),
                "w": Out(stream.Signature(axi.write)),
                "idle": Out(1),
                **fault_ports(protect, "fault"),
            }
        )
        # State that proofs look at (kelp_verif.formal.turn_specs): a line was addressed in the
        # cycle before, and where it goes; who comes first where both have a line.
        self.read, self.of_scales, self.scales_next = Signal(), Signal(), Signal()
        self.address = Signal(axi.address)

    def elaborate(self, platform):
        m = Module()
        lines, scales = self.lines, self.scales
        m.submodules.addresses = addresses = fifo_of(
            SyncFIFO, shape=self.aw.p.shape(), depth=self.QUEUED, protect=self.protect
        )
        m.submodules.data = data = fifo_of(
            SyncFIFO, shape=self.w.p.shape(), depth=self.QUEUED, protect=self.protect
        )

        line_bits = sum(self.word.parts)
        space, chosen = Signal(), Signal()  # the scales' line is the one to be taken
        due = Mux(chosen, scales.due.address, lines.due.address)
        read, of_scales, scales_next, address = (
            self.read,
            self.of_scales,
            self.scales_next,
            self.address,
        )
        m.d.comb += [
            # One line may be between a buffer and the FIFOs.
            space.eq((addresses.level < self.QUEUED - 1) & (data.level < self.QUEUED - 1)),
            chosen.eq(scales.due.valid & (scales_next | ~lines.due.valid)),
            scales.turn.eq(space & chosen),
            lines.turn.eq(space & ~chosen),
        ]
        m.d.sync += [
            read.eq(lines.take | scales.take),
            of_scales.eq(chosen),
            address.id.eq(
                Mux(
                    chosen,
                    scales.due.slot | (1 << self.id_bits - 1),
                    lines.due.slot,
                )
            ),
            address.addr.eq(due[:line_bits] << 6),
            address.size.eq(SIZE_LINE),
            address.burst.eq(BURST_INCR),
        ]
        with m.If(lines.take | scales.take):
            m.d.sync += scales_next.eq(~chosen)

        line = Signal(self.w.p.shape())
        quarter_bytes = LINE_BYTES // QUARTERS
        m.d.comb += [
            line.data.eq(Mux(of_scales, scales.data, lines.data)),
            line.strb.eq(
                Mux(
                    of_scales,
                    scales.strobes,
                    Cat(bit.replicate(quarter_bytes) for bit in lines.strobes),
                )
            ),
            line.last.eq(1),
            addresses.w_en.eq(read),
            addresses.w_data.eq(address),
            data.w_en.eq(read),
            data.w_data.eq(line),
            self.aw.valid.eq(addresses.r_rdy),
            self.aw.p.eq(addresses.r_data),
            addresses.r_en.eq(self.aw.ready),
            self.w.valid.eq(data.r_rdy),
            self.w.p.eq(data.r_data),
            data.r_en.eq(self.w.ready),
            self.idle.eq(~read & ~addresses.r_rdy & ~data.r_rdy),
        ]
        if self.protect:
            # Decoded in the cycle after it was read, on its way from one register to another.
            check = Signal(self.word.code_bits - line_bits)
            m.d.sync += check.eq(due[line_bits:])
            known, single, double = self.word.decode(m, Cat(address.addr[6 : 6 + line_bits], check))
            place = used(Fault(Cat(single.any(), double.any())), read)
            m.d.comb += [
                addresses.w_data.addr.eq(known << 6),
                self.fault.eq(merged(addresses.fault, data.fault, place)),
            ]
        m.d.sync += Assert(~read | (addresses.w_rdy & data.w_rdy), "a write FIFO overflows")
        for back in (lines, scales):
            m.d.sync += Assert(
                ~back.take | (back.due.valid & back.turn), "a line is taken out of its turn"
            )
        return m
