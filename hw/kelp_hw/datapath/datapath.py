# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Data ops to memory and back, in order, through two line buffers and the codec (spec §8,
docs/design.md §4 and §10)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config

from ..host.ingress import write_layout
from ..layouts import Layouts
from ..lib.order_fifo import OrderFifo
from .axi import RESP_OKAY, AxiSignature
from .flush import FlushUnit, flush_layout
from .front import DataFront
from .head import DataHead
from .line_slots import LineSlots
from .order import ORDER_DEPTH, POSITION_BITS, order_layout
from .scale_slots import ScaleSlots
from .write_out import WriteOut
from .write_path import WritePath

__all__ = ["DataPath", "axi_signature"]


def axi_signature(config: Config) -> AxiSignature:
    """The memory port that a configuration's data path has."""
    slots = order_layout(config)
    return AxiSignature(
        address_bits=config.dram_line_bits + 6,
        id_bits=1 + max(slots["line_slot"].width, slots["scale_slot"].width),
    )


class DataPath(wiring.Component):
    """Executes data ops strictly in the order of `i` and answers them in that order on `o`.

    **Ops.** READ answers DATA with the dequantised line, or without a look at memory POISON when it
    has `poison`, else ZEROS when it has `fresh`. WRITE answers CMP when the line's slot holds the
    new data; `partial` keeps the bytes that the write's byte enables leave out, `fresh` takes them
    as zeros. ANSWER answers what it carries. FLUSH is not answered: `o_flushed` reports it when all
    stored to its frame before it is in memory and no slot holds the frame's lines, so that memory
    may then be changed by others. (Ops on the frame that stand behind the flush are served as ever;
    the report then says only that what came before is in memory.) **Write data.** `i_write` fills a
    slot from when `o_write_slot` offers it, and its WRITE frees it, or an ANSWER with `has_write`.
    **Memory.** AXI4, one line per transaction; ID = slot, highest bit set for scales. At most one
    read and one write are under way per slot, and R and B are always ready. Memory may answer in
    any order. A line read with an error response is answered as poison; a write's response is not
    looked at.

    Throughput: one op per cycle while memory gives one line per cycle; of int8 and int4, in random
    order, one op in two cycles (two lines each). Latency: `i` → AR 3 cycles; R → `o` 2 cycles and
    the dequantiser's; neither counts waits for other ops. Up to `line_slots` + `scale_slots` reads
    are outstanding.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : stream of data_op
    i_write : write data, taken always
    o_write_slot : stream of free write slots
    o : stream of answer
    o_flushed : stream of flush_layout
    axi : AxiSignature
    idle : nothing is queued, under way or dirty
    """

    #: Cycles without an op after which everything dirty is written.
    DRAIN_AFTER = 32

    def __init__(self, *, config: Config):
        if not isinstance(config, Config):
            raise TypeError(f"config must be a kelp_spec.Config, not {config!r}")
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.axi_signature = axi_signature(config)
        super().__init__(
            {
                "i": In(stream.Signature(layouts.data_op)),
                "i_write": In(stream.Signature(write_layout(config), always_ready=True)),
                "o_write_slot": Out(stream.Signature(config.write_slot_bits)),
                "o": Out(stream.Signature(layouts.answer)),
                "o_flushed": Out(stream.Signature(flush_layout(config))),
                "axi": Out(self.axi_signature),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.lines = lines = LineSlots(config=c, position_bits=POSITION_BITS)
        m.submodules.scales = scales = ScaleSlots(config=c, position_bits=POSITION_BITS)
        m.submodules.front = front = DataFront(
            config=c, axi=self.axi_signature, lines=lines.table, scales=scales.table
        )
        m.submodules.head = head = DataHead(config=c)
        m.submodules.writes = writes = WritePath(config=c)
        m.submodules.out = out = WriteOut(
            axi=self.axi_signature,
            line_bits=c.dram_line_bits,
            line_slot_bits=lines.table.slot_bits,
            scale_slot_bits=scales.table.slot_bits,
        )
        m.submodules.flush = flush = FlushUnit(config=c)

        # Front: look-ups, the order of ops, full writes.
        connect(m, flipped(self.i), front.i)
        connect(m, front.o_write, writes.i)
        for look, table in ((front.line, lines.table), (front.scale, scales.table)):
            m.d.comb += [
                getattr(table, name).eq(getattr(look, name))
                for name in ("look_en", "look_tag", "use", "fire", "address", "position")
            ]
            m.d.comb += [
                getattr(look, name).eq(getattr(table, name))
                for name in ("available", "slot", "select", "request_fill")
            ]
        m.d.comb += [
            lines.quarters.eq(front.quarters),
            lines.reads.eq(front.reads),
            lines.stores.eq(front.stores),
            front.wait.eq(lines.wait),
            scales.reads.eq(front.scale_reads),
        ]
        # Each op's slots lie in it as the head wants them.
        put, get = (
            Cat(front.o.p, front.o_line, front.o_scale),
            Cat(head.i.p, head.i_line, head.i_scale),
        )
        m.submodules.order = order = OrderFifo(width=len(put), depth=ORDER_DEPTH)
        m.d.comb += [
            order.i.valid.eq(front.o.valid),
            order.i.p.eq(put),
            front.o.ready.eq(order.i.ready),
            front.room.eq((order.level <= ORDER_DEPTH - 2) & writes.room),
            head.i.valid.eq(order.o.valid),
            get.eq(order.o.p),
            order.o.ready.eq(head.i.ready),
        ]
        for table, select, waits in (
            (lines.table, head.i_line, head.i.p.wait_line),
            (scales.table, head.i_scale, head.i.p.wait_scale),
        ):
            m.d.comb += [
                table.next_select.eq(select),
                table.next_waits.eq(waits),
                table.head_moves.eq(head.moves),
            ]

        # Head: reads, marks, stores, releases.
        m.d.comb += [
            lines.table.head_select.eq(head.line_select),
            lines.table.store_en.eq(head.line_mark),
            lines.table.store_complete.eq(lines.full),
            lines.head_quarters.eq(head.line_quarters),
            lines.may_read.eq(head.line_may_read),
            lines.read_en.eq(head.line_read_en),
            lines.read_slot.eq(head.line_read_slot),
            lines.read_quarters.eq(head.line_read_quarters),
            lines.table.read_select.eq(head.line_read_select),
            lines.store_en.eq(head.line_store_en),
            lines.store_slot.eq(head.line_store_slot),
            lines.store_quarters.eq(head.line_store_quarters),
            lines.store_data.eq(head.line_store_data),
            lines.table.release_en.eq(head.line_release_en),
            lines.table.release_slot.eq(head.release_line),
            scales.table.head_select.eq(head.scale_select),
            scales.table.store_en.eq(head.scale_mark),
            scales.head_slot.eq(head.scale_slot),
            scales.head_byte.eq(head.scale_byte),
            scales.head_wide.eq(head.scale_wide),
            scales.table.read_select.eq(head.scale_read_select),
            scales.may_read.eq(head.scale_may_read),
            scales.read_en.eq(head.scale_read_en),
            scales.store_en.eq(head.scale_store_en),
            scales.store_slot.eq(head.scale_store_slot),
            scales.store_byte.eq(head.scale_store_byte),
            scales.store_wide.eq(head.scale_store_wide),
            scales.store_scale.eq(head.scale_store_scale),
            scales.table.release_en.eq(head.scale_release_en),
            scales.table.release_slot.eq(head.release_scale),
            *(
                table.release_position.eq(head.release_position)
                for table in (lines.table, scales.table)
            ),
            lines.table.read_waits.eq(head.line_waits),
            scales.table.read_waits.eq(head.scale_waits),
            head.line_filled.eq(lines.table.head_filled),
            head.line.eq(lines.line),
            head.line_error.eq(lines.error),
            head.scale_filled.eq(scales.table.head_filled),
            head.scale.eq(scales.scale),
            head.scale_error.eq(scales.error),
            head.refuse.eq(lines.refuse | scales.refuse),
            head.write_ready.eq(writes.ready),
            writes.consume.eq(head.write_consume),
            writes.read_slot.eq(head.write_slot),
            head.write_result.eq(writes.o_result),
            writes.merge.eq(head.merge),
            writes.merge_op.eq(head.merge_op),
            writes.merge_fresh.eq(head.merge_fresh),
            writes.merge_line.eq(head.merge_line),
            head.merged.eq(writes.merged),
            head.merge_done.eq(writes.merge_done),
            writes.store.free_en.eq(head.free_en),
            writes.store.free_slot.eq(head.free_slot),
            writes.store.i.p.eq(self.i_write.p),
            writes.store.i.valid.eq(self.i_write.valid),
        ]
        for buffer in (lines, scales):
            there = (
                ~buffer.table.read_waits | (buffer.table.read_select & buffer.table.filled).any()
            )
            m.d.sync += Assert(
                ~buffer.read_en | (buffer.table.head_filled == there),
                "the head was told of another slot's fill",
            )
        connect(m, writes.store.o_slot, flipped(self.o_write_slot))
        connect(m, head.o, flipped(self.o))

        # Memory. A slot awaits what comes, so nothing has to wait.
        connect(m, front.ar, flipped(self.axi.ar))
        connect(m, out.aw, flipped(self.axi.aw))
        connect(m, out.w, flipped(self.axi.w))
        read, response = self.axi.r, self.axi.b
        read_scale, response_scale = read.p.id[-1], response.p.id[-1]
        for buffer, of_read, of_response in (
            (lines, ~read_scale, ~response_scale),
            (scales, read_scale, response_scale),
        ):
            m.d.comb += [
                buffer.fill_en.eq(read.valid & of_read),
                buffer.fill_slot.eq(read.p.id),
                buffer.fill_data.eq(read.p.data),
                buffer.fill_error.eq(read.p.resp != RESP_OKAY),
                buffer.table.fill_done.eq(buffer.fill_en),
                buffer.table.fill_slot.eq(buffer.fill_slot),
                buffer.table.written.eq(response.valid & of_response),
                buffer.table.written_slot.eq(response.p.id),
            ]
        m.d.comb += [
            read.ready.eq(1),
            response.ready.eq(1),
            out.lines_due.eq(lines.table.out_valid & lines.out_ready),
            out.lines_slot.eq(lines.table.out_slot),
            out.lines_address.eq(lines.table.out_address),
            lines.out_take.eq(out.take_lines),
            out.lines_data.eq(lines.out_data),
            out.lines_quarters.eq(lines.out_quarters),
            out.scales_due.eq(scales.table.out_valid & scales.out_ready),
            out.scales_slot.eq(scales.table.out_slot),
            out.scales_address.eq(scales.table.out_address),
            scales.out_take.eq(out.take_scales),
            out.scales_data.eq(scales.out_data),
            out.scales_bytes.eq(scales.out_bytes),
        ]

        # Flush.
        connect(m, head.o_flush, flush.i)
        connect(m, flush.o, flipped(self.o_flushed))
        # Forgotten a cycle late, in which the report stands at `o` at the earliest: the frame is
        # still the flush's, and whether all is written is known late.
        for table in (lines.table, scales.table):
            m.d.comb += [table.flush_frame.eq(flush.frame), table.flush_capture.eq(flush.capture)]
            m.d.sync += table.flush_invalidate.eq(flush.invalidate)
        m.d.comb += flush.pending.eq(lines.table.flush_pending | scales.table.flush_pending)

        # Without ops there is nothing to combine with.
        resting = Signal()
        rest = Signal(range(self.DRAIN_AFTER + 1))
        m.d.comb += resting.eq(~self.i.valid & front.idle & (order.level == 0) & head.idle)
        with m.If(~resting):
            m.d.sync += rest.eq(0)
        with m.Elif(rest != self.DRAIN_AFTER):
            m.d.sync += rest.eq(rest + 1)
        m.d.sync += [
            table.drain.eq(resting & (rest == self.DRAIN_AFTER))
            for table in (lines.table, scales.table)
        ]
        m.d.comb += self.idle.eq(
            resting
            & writes.store.idle
            & out.idle
            & flush.idle
            & lines.table.idle
            & scales.table.idle
        )
        return m
