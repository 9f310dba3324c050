# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A cold tier in a region of the board's own memory, with its DMA (docs/cold_tier.md is the port's
contract)."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from kelp_hw.datapath.axi import BURST_INCR, SIZE_LINE, AxiSignature
from kelp_hw.layouts import Layouts
from kelp_spec.config import Config
from kelp_spec.formats import LINE_BYTES
from kelp_spec.metadata import ColdOp, ColdStatus

__all__ = ["ColdStore"]

_SECTOR_LINES = 512 // LINE_BYTES


class ColdStore(wiring.Component):
    """Commands one after another: a page's lines are copied between its frame and its LBA, then its
    line mask (validity, poison) is written or read.

    LBA 0 lies at line `first_line`. An LBA that ends beyond `lines` completes with FAILED, so a
    memory too small for every page that the configuration can name holds those that it can; the
    endpoint keeps the others resident. An ABORT is answered in its turn, when the command that it
    names has long completed.

    Throughput: a line in one read and one write of the memory, two reads ahead of the writes.

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
        shape = self.layouts.cold_command
        # As many as the endpoint can have sent: every index once, and an ABORT for each.
        m.submodules.queue = queue = SyncFIFOBuffered(
            width=shape.size, depth=2 * (c.misses + c.write_backs)
        )
        m.d.comb += [
            queue.w_en.eq(self.command.valid),
            queue.w_data.eq(self.command.payload.as_value()),
            self.command.ready.eq(queue.w_rdy),
        ]
        order = Signal(shape)
        read_line, write_line, reads_left, writes_left, unread, unwritten = (
            Signal(len(axi.ar.p.addr) - 6, name=name)
            for name in (
                "read_line",
                "write_line",
                "reads_left",
                "writes_left",
                "unread",
                "unwritten",
            )
        )
        status, last_lines = Signal(2), (c.cold_slot_sectors - 1) * _SECTOR_LINES
        slot = order.lba * _SECTOR_LINES
        beyond = slot + c.cold_slot_sectors * _SECTOR_LINES > self.lines
        m.d.comb += [
            self.completion.p.id.eq(order.id),
            self.completion.p.status.eq(status),
            axi.ar.p.size.eq(SIZE_LINE),
            axi.ar.p.burst.eq(BURST_INCR),
            axi.aw.p.size.eq(SIZE_LINE),
            axi.aw.p.burst.eq(BURST_INCR),
            axi.ar.p.addr.eq(read_line << 6),
            axi.aw.p.addr.eq(write_line << 6),
            axi.w.p.strb.eq(~Const(0, LINE_BYTES)),
            axi.w.p.last.eq(1),
        ]
        # What has been asked for and not come; what has gone and not been confirmed.
        ar, r, aw, b = (channel.valid & channel.ready for channel in (axi.ar, axi.r, axi.aw, axi.b))
        m.d.sync += [
            unread.eq(unread + ar - r),
            unwritten.eq(unwritten + aw - b),
            reads_left.eq(reads_left - ar),
            writes_left.eq(writes_left - aw),
            read_line.eq(read_line + ar),
            write_line.eq(write_line + aw),
        ]
        m.d.comb += axi.b.ready.eq(1)
        addressed, stored = Signal(), Signal()  # AW and W of one line, taken in either order
        # the line mask is what is written: a register, because it chooses among hundreds of bits
        ends = Signal()
        m.d.comb += axi.w.p.data.eq(Mux(ends, order.line_mask.as_value(), axi.r.p.data))

        def write(valid):
            """Offer one line; true in the cycle in which both its channels have been taken."""
            done = Signal()
            m.d.comb += [
                axi.aw.valid.eq(valid & ~addressed),
                axi.w.valid.eq(valid & ~stored),
                done.eq(valid & (addressed | axi.aw.ready) & (stored | axi.w.ready)),
            ]
            with m.If(valid):
                m.d.sync += [
                    addressed.eq((addressed | axi.aw.ready) & ~done),
                    stored.eq((stored | axi.w.ready) & ~done),
                ]
            return done

        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += queue.r_en.eq(1)
                m.d.sync += order.eq(queue.r_data)
                with m.If(queue.r_rdy):
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                place = self.first_line + slot
                m.d.sync += [
                    status.eq(ColdStatus.OK),
                    ends.eq(0),
                    reads_left.eq(order.lines),
                    writes_left.eq(order.lines),
                    self.completion.p.line_mask.eq(0),
                    read_line.eq(Mux(order.op == ColdOp.READ, place, order.line)),
                    write_line.eq(Mux(order.op == ColdOp.READ, order.line, place)),
                ]
                m.next = "COPY"
                with m.If(order.op == ColdOp.ABORT):
                    m.d.sync += status.eq(ColdStatus.ABORTED)
                    m.next = "ANSWER"
                with m.Elif(beyond):
                    m.d.sync += status.eq(ColdStatus.FAILED)
                    m.next = "ANSWER"
            with m.State("COPY"):
                m.d.comb += [
                    axi.ar.valid.eq((reads_left != 0) & (unread < 2)),
                    axi.r.ready.eq(write(axi.r.valid)),
                ]
                with m.If(
                    (reads_left == 0) & (writes_left == 0) & (unread == 0) & (unwritten == 0)
                ):
                    m.d.sync += [
                        read_line.eq(self.first_line + slot + last_lines),
                        write_line.eq(self.first_line + slot + last_lines),
                    ]
                    m.next = "ASK"
                    with m.If(order.op == ColdOp.WRITE):
                        m.d.sync += ends.eq(1)
                        m.next = "SECTOR"
            with m.State("SECTOR"):
                with m.If(write(Const(1))):
                    m.next = "CONFIRM"
            with m.State("CONFIRM"):
                with m.If(unwritten == 0):
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
            with m.State("ANSWER"):
                m.d.comb += self.completion.valid.eq(1)
                with m.If(self.completion.ready):
                    m.next = "IDLE"
        return m
