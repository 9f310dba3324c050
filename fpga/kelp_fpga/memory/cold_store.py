# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A cold tier in a region of the board's own memory, with its DMA (docs/cold_tier.md is the port's
contract). A line in one read and one write of the memory, two reads ahead of the writes: a page
takes as many cycles as the memory takes for its lines."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from kelp_hw.layouts import Layouts
from kelp_hw.lib.axi import BURST_INCR, SIZE_LINE, AxiSignature
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES
from kelp_spec.metadata import ColdOp, ColdStatus

__all__ = ["ColdStore"]

_SECTOR_LINES = 512 // LINE_BYTES


class _Copy:
    """The command under way and how far its page is copied."""

    def __init__(self, shape, line_bits: int):
        self.order = Signal(shape)
        self.status = Signal(2)
        self.read_line = Signal(line_bits)
        self.write_line = Signal(line_bits)
        self.reads_left = Signal(line_bits)
        self.writes_left = Signal(line_bits)
        self.unread = Signal(line_bits)  #: asked for and not come
        self.unwritten = Signal(line_bits)  #: gone and not confirmed
        self.addressed = Signal()  #: AW and W of one line are taken in either order
        self.stored = Signal()
        #: the line mask is what is written: a register, because it chooses among hundreds of bits
        self.ends = Signal()


class ColdStore(wiring.Component):
    """Commands one after another: a page's lines are copied between its frame and its LBA, then its
    line mask (validity, poison) is written or read.

    LBA 0 lies at line `first_line`. An LBA that ends beyond `lines` completes with FAILED, so a
    memory too small for every page that the configuration can name holds those that it can; the
    endpoint keeps the others resident. An ABORT is answered in its turn, when the command that it
    names has long completed.

    Latency and throughput: those of the memory, which reads and writes each line of a page and its
    line mask once; two reads ahead of the writes.

    Parameters
    ----------
    config : Config
        Two bits for each line of a page must fit into one line.
    first_line, lines : int
        The region, in lines of 64 bytes.
    address_bits : int
        Of the AXI4 port.

    Members
    -------
    command : In stream(Layouts.cold_command)
    completion : Out stream(Layouts.cold_completion)
    axi : Out(AxiSignature)
    reads, writes : Out
        A page was fetched, stored.
    """

    def __init__(self, *, config: Config, first_line: int, lines: int, address_bits: int):
        if 2 * config.page_lines > 8 * LINE_BYTES:
            raise ValueError(
                f"half_lines = {config.half_lines} is refused; legal: {2 * LINE_BYTES} at "
                + "most, so that a page's line mask is one line"
            )
        if lines < config.cold_slot_sectors * _SECTOR_LINES:
            raise ValueError(
                f"lines = {lines} is refused; legal: "
                + f"{config.cold_slot_sectors * _SECTOR_LINES} and up, one page of {config.name!r}"
            )
        self.config, self.first_line, self.lines, self.layouts = (
            config,
            first_line,
            lines,
            Layouts(config),
        )
        super().__init__(
            {
                "command": In(stream.Signature(self.layouts.cold_command)),
                "completion": Out(stream.Signature(self.layouts.cold_completion)),
                "axi": Out(AxiSignature(address_bits=address_bits, id_bits=1)),
                "reads": Out(1),
                "writes": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, axi = self.config, self.axi
        # As many as the endpoint can have sent: every index once, and an ABORT for each.
        shape = self.layouts.cold_command
        m.submodules.queue = queue = SyncFIFOBuffered(
            width=shape.size, depth=2 * (c.misses + c.write_backs)
        )
        m.d.comb += [
            queue.w_en.eq(self.command.valid),
            queue.w_data.eq(self.command.payload.as_value()),
            self.command.ready.eq(queue.w_rdy),
        ]
        copy = _Copy(shape, len(axi.ar.p.addr) - 6)
        m.d.comb += [
            self.completion.p.id.eq(copy.order.id),
            self.completion.p.status.eq(copy.status),
        ]
        self._port(m, copy)
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += queue.r_en.eq(1)
                m.d.sync += copy.order.eq(queue.r_data)
                with m.If(queue.r_rdy):
                    m.next = "JUDGE"
            self._judge(m, copy)
            self._move(m, copy)
            with m.State("ANSWER"):
                m.d.comb += self.completion.valid.eq(1)
                with m.If(self.completion.ready):
                    m.next = "IDLE"
        return m

    def _port(self, m: Module, copy: _Copy) -> None:
        """The memory port, line by line, and what is under way on it."""
        axi = self.axi
        m.d.comb += [
            axi.ar.p.size.eq(SIZE_LINE),
            axi.ar.p.burst.eq(BURST_INCR),
            axi.aw.p.size.eq(SIZE_LINE),
            axi.aw.p.burst.eq(BURST_INCR),
            axi.ar.p.addr.eq(copy.read_line << 6),
            axi.aw.p.addr.eq(copy.write_line << 6),
            axi.w.p.strb.eq(~Const(0, LINE_BYTES)),
            axi.w.p.last.eq(1),
            axi.w.p.data.eq(Mux(copy.ends, copy.order.line_mask.as_value(), axi.r.p.data)),
            axi.b.ready.eq(1),
        ]
        ar, r, aw, b = (channel.valid & channel.ready for channel in (axi.ar, axi.r, axi.aw, axi.b))
        m.d.sync += [
            copy.unread.eq(copy.unread + ar - r),
            copy.unwritten.eq(copy.unwritten + aw - b),
            copy.reads_left.eq(copy.reads_left - ar),
            copy.writes_left.eq(copy.writes_left - aw),
            copy.read_line.eq(copy.read_line + ar),
            copy.write_line.eq(copy.write_line + aw),
        ]

    def _write(self, m: Module, copy: _Copy, valid) -> Signal:
        """Offer one line; true in the cycle in which both its channels have been taken."""
        axi, done = self.axi, Signal()
        m.d.comb += [
            axi.aw.valid.eq(valid & ~copy.addressed),
            axi.w.valid.eq(valid & ~copy.stored),
            done.eq(valid & (copy.addressed | axi.aw.ready) & (copy.stored | axi.w.ready)),
        ]
        with m.If(valid):
            m.d.sync += [
                copy.addressed.eq((copy.addressed | axi.aw.ready) & ~done),
                copy.stored.eq((copy.stored | axi.w.ready) & ~done),
            ]
        return done

    def _judge(self, m: Module, copy: _Copy) -> None:
        """State JUDGE: where the lines are to go, or why not."""
        c, order = self.config, copy.order
        slot = order.lba * _SECTOR_LINES
        place = self.first_line + slot
        with m.State("JUDGE"):
            m.d.sync += [
                copy.status.eq(ColdStatus.OK),
                copy.ends.eq(0),
                copy.reads_left.eq(order.lines),
                copy.writes_left.eq(order.lines),
                self.completion.p.line_mask.eq(0),
                copy.read_line.eq(Mux(order.op == ColdOp.READ, place, order.line)),
                copy.write_line.eq(Mux(order.op == ColdOp.READ, order.line, place)),
            ]
            m.next = "COPY"
            with m.If(order.op == ColdOp.ABORT):
                m.d.sync += copy.status.eq(ColdStatus.ABORTED)
                m.next = "ANSWER"
            with m.Elif(slot + c.cold_slot_sectors * _SECTOR_LINES > self.lines):
                m.d.sync += copy.status.eq(ColdStatus.FAILED)
                m.next = "ANSWER"

    def _move(self, m: Module, copy: _Copy) -> None:
        """States that copy the page's lines, then write or read its last line, the line mask."""
        c, axi = self.config, self.axi
        last_lines = (c.cold_slot_sectors - 1) * _SECTOR_LINES
        mask_line = self.first_line + copy.order.lba * _SECTOR_LINES + last_lines
        with m.State("COPY"):
            m.d.comb += [
                axi.ar.valid.eq((copy.reads_left != 0) & (copy.unread < 2)),
                axi.r.ready.eq(self._write(m, copy, axi.r.valid)),
            ]
            with m.If(
                (copy.reads_left == 0)
                & (copy.writes_left == 0)
                & (copy.unread == 0)
                & (copy.unwritten == 0)
            ):
                m.d.sync += [copy.read_line.eq(mask_line), copy.write_line.eq(mask_line)]
                m.next = "ASK"
                with m.If(copy.order.op == ColdOp.WRITE):
                    m.d.sync += copy.ends.eq(1)
                    m.next = "SECTOR"
        with m.State("SECTOR"):
            with m.If(self._write(m, copy, Const(1))):
                m.next = "CONFIRM"
        with m.State("CONFIRM"):
            with m.If(copy.unwritten == 0):
                m.d.comb += self.writes.eq(1)
                m.next = "ANSWER"
        with m.State("ASK"):
            m.d.comb += axi.ar.valid.eq(1)
            with m.If(axi.ar.ready):
                m.next = "TAKE"
        with m.State("TAKE"):
            m.d.comb += axi.r.ready.eq(1)
            with m.If(axi.r.valid):
                m.d.comb += self.reads.eq(1)
                m.d.sync += self.completion.p.line_mask.eq(axi.r.p.data[: 2 * c.page_lines])
                m.next = "ANSWER"
