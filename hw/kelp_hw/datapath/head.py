# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The data path's head: executes ops strictly in order on the line buffers and answers them
(docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, LINE_BITS, SCALE_BITS, Format
from kelp_spec.metadata import Answer, DataOp

from ..codec.codec_lane import gated
from ..codec.dequantise import Dequantiser
from ..codec.raw_lines import RawDequantiser
from ..layouts import Layouts
from ..lib.bypass_fifo import BypassFifo
from .flush import flush_layout
from .line_slots import (
    QUARTERS,
    aligned_payload,
    alignment_of,
    placed_payload,
    placement_of,
    quarters_of,
)
from .order import POSITION_BITS, order_layout, raw_only
from .write_path import WritePath

__all__ = ["DataHead"]


class DataHead(wiring.Component):
    """Takes ops in order from `i`, each when its fills and its quantised data are there, and
    answers them in order on `o`.

    H0 decides, marks the slots and addresses the buffers; H1 has their data, aligns them, and
    stores; then the dequantiser, through which every answer goes, so that order needs no
    bookkeeping. From H1 on nothing ever stands still: H0 starts no more answers than there are
    places at the end. Latency to `o`: from `i` 2 cycles and the dequantiser's when all data are
    there; from the fill that the op at the head awaits, the same. Throughput one op per cycle.

    A **partial write** leaves H0 as a read, with the one *lock*: its answer is turned round into
    the write path's merge, and the result comes back to H0 as a store. Until then ops on the same
    line slot or scale slot wait at H0, and so do other partial writes and flushes.

    A line that memory answered with an error is answered as poison.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_line, i_scale : in
        The slots of `i`, one bit each.
    moves : out
        `i` is at the head in the next cycle; `line_filled` and `scale_filled` are of the op at the
        head, from the cycle before, and up for one that does not wait (`line_waits`,
        `scale_waits`).
    line_*, scale_* : head ports of LineSlots and ScaleSlots
    write_*, merge* : head ports of WritePath
    free_en, free_slot : write slots done with
    """

    #: Answers between H0 and `o`, at most: those in the pipeline, and as many waiting for their
    #: channel.
    ANSWERS = 16

    def __init__(self, *, config: Config):
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.order = order = order_layout(config)
        line_bits, scale_bits = order["line_slot"].width, order["scale_slot"].width
        write = WritePath.full_write_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(order)),
                "i_line": In(config.line_slots),
                "i_scale": In(config.scale_slots),
                "moves": Out(1),
                "line_select": Out(config.line_slots),
                "line_read_select": Out(config.line_slots),
                "line_read_slot": Out(line_bits),
                "line_read_quarters": Out(QUARTERS),
                "line_may_read": Out(1),
                "line_slot": Out(line_bits),
                "line_waits": Out(1),
                "line_filled": In(1),
                "line_quarters": Out(QUARTERS),
                "line_read_en": Out(1),
                "line": In(LINE_BITS),
                "line_error": In(1),
                "scale_select": Out(config.scale_slots),
                "scale_read_select": Out(config.scale_slots),
                "scale_may_read": Out(1),
                "scale_slot": Out(scale_bits),
                "scale_waits": Out(1),
                "scale_filled": In(1),
                "scale_byte": Out(6),
                "scale_wide": Out(1),
                "scale_read_en": Out(1),
                "scale": In(SCALE_BITS),
                "scale_error": In(1),
                "line_mark": Out(1),
                "scale_mark": Out(1),
                "refuse": In(1),
                "line_store_en": Out(1),
                "line_store_slot": Out(line_bits),
                "line_store_quarters": Out(QUARTERS),
                "line_store_data": Out(LINE_BITS),
                "scale_store_en": Out(1),
                "scale_store_slot": Out(scale_bits),
                "scale_store_byte": Out(6),
                "scale_store_wide": Out(1),
                "scale_store_scale": Out(SCALE_BITS),
                "line_release_en": Out(1),
                "scale_release_en": Out(1),
                "release_line": Out(line_bits),
                "release_scale": Out(scale_bits),
                "release_position": Out(POSITION_BITS),
                "write_ready": In(1),
                "write_consume": Out(1),
                "write_slot": Out(config.write_slot_bits),
                "write_result": In(data.StructLayout({"payload": LINE_BITS, "scale": SCALE_BITS})),
                "merge": Out(1),
                "merge_op": Out(write),
                "merge_fresh": Out(1),
                "merge_line": Out(LINE_BITS),
                "merged": In(1),
                "merge_done": In(1),
                "free_en": Out(1),
                "free_slot": Out(config.write_slot_bits),
                "o_flush": Out(stream.Signature(flush_layout(config))),
                "o": Out(stream.Signature(layouts.answer)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config

        # - the op at the head, and the partial write that will come back --------------------------
        head = Signal(self.order)
        head_valid = Signal()
        head_line, head_scale = Signal(c.line_slots), Signal(c.scale_slots)
        position = Signal(POSITION_BITS)
        lock = Signal(self.order)
        lock_valid = Signal()
        lock_line, lock_scale = Signal(c.line_slots), Signal(c.scale_slots)
        lock_position = Signal(POSITION_BITS)
        # the partial write's result is there: it takes H0 before the op in `head`
        back = Signal()
        go = Signal()
        kind, is_read, is_write, is_partial, is_flush, is_answer = (
            self.i.p.kind,
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
        )
        m.d.comb += [self.i.ready.eq(~head_valid | go), self.moves.eq(self.i.ready)]
        with m.If(self.i.ready):
            m.d.sync += [
                head_valid.eq(self.i.valid),
                head.eq(self.i.p),
                is_read.eq(kind == DataOp.READ),
                is_write.eq((kind == DataOp.WRITE) & ~self.i.p.partial),
                is_partial.eq((kind == DataOp.WRITE) & self.i.p.partial),
                is_flush.eq(kind == DataOp.FLUSH),
                is_answer.eq(kind == DataOp.ANSWER),
                head_line.eq(self.i_line),
                head_scale.eq(self.i_scale),
            ]
            if not c.codecs:
                m.d.sync += raw_only(head)
        with m.If(go):
            m.d.sync += position.eq(position + 1)

        # - H0 -------------------------------------------------------------------------------------
        # On the lock's scale line too: the op attached last releases a slot, and must not do so
        # before the lock has stored its scale.
        locked = lock_valid & (
            (lock.line_slot == head.line_slot)
            | (lock.scaled & head.scaled & (lock.scale_slot == head.scale_slot))
        )
        filled = Signal()
        can_read = Signal()
        # for one more answer; known a cycle ahead, so that H0 does not hear of what stands still at
        # the far end in the same cycle
        room = Signal()
        able = Signal()
        # Lines that go through the dequantiser in several beats leave H0 as far apart.
        paced = C(1, 1)
        if c.codecs and c.codec_lanes < ELEMENTS:
            apart = Signal(ELEMENTS // c.codec_lanes - 1)
            paced = ~apart[0]
            m.d.sync += apart.eq(Mux(go & ~is_flush, ~0, apart >> 1))
        m.d.comb += [
            filled.eq(self.line_filled & self.scale_filled),
            self.line_waits.eq(head.wait_line),
            self.scale_waits.eq(head.wait_scale),
            can_read.eq(filled & ~self.refuse),
            able.eq(
                (can_read & ((is_read & ~locked) | (is_partial & ~lock_valid)))
                | (is_write & self.write_ready & ~locked)
                | is_answer
            ),
            go.eq(
                head_valid
                & ~back
                & ((is_flush & self.o_flush.ready & ~lock_valid) | (able & room & paced))
            ),
            self.o_flush.valid.eq(head_valid & ~back & is_flush & ~lock_valid),
            Cat(self.o_flush.p.frame, self.o_flush.p.token).eq(Value.cast(head.origin)),
        ]
        # Of the op that H0 works on, whichever it is, a register each for what addresses memories
        # and picks slots: hundreds of bits wait for it.
        op = Signal(
            data.StructLayout(
                {
                    f: self.order[f].shape
                    for f in (
                        "line_slot",
                        "scale_slot",
                        "write_slot",
                        "scale_byte",
                        "format",
                        "part",
                    )
                }
            )
        )
        op_line, op_scale, scaled = Signal(c.line_slots), Signal(c.scale_slots), Signal()

        def following(returned, waiting, there):
            return Mux(self.merge_done, returned, Mux(self.i.ready, waiting, there))

        m.d.sync += [
            *(
                op[field].eq(following(lock[field], self.i.p[field], head[field]))
                for field in op.shape().members
            ),
            op_line.eq(following(lock_line, self.i_line, head_line)),
            op_scale.eq(following(lock_scale, self.i_scale, head_scale)),
        ]
        store = Signal()  # a quantised line goes to its slot
        reads, may_read = Signal(), Signal()
        m.d.comb += [
            scaled.eq(Mux(back, lock.scaled, head.scaled)),
            store.eq(back | (go & is_write)),
            reads.eq(go & (is_read | (is_partial & ~head.fresh))),
            self.line_select.eq(op_line),
            self.line_slot.eq(op.line_slot),
            self.line_quarters.eq(quarters_of(op.format, op.part)),
            self.scale_select.eq(op_scale),
            self.scale_slot.eq(op.scale_slot),
            self.scale_byte.eq(op.scale_byte),
            self.scale_wide.eq(op.format == Format.INT4),
            self.line_mark.eq(store),
            self.scale_mark.eq(store & scaled),
            self.line_read_en.eq(reads),
            self.scale_read_en.eq(reads & head.scaled),
            # What a read needs beside the locks: known earlier, and addressed without the partial
            # write that comes back.
            may_read.eq(
                head_valid & ~back & room & paced & filled & (is_read | (is_partial & ~head.fresh))
            ),
            self.line_may_read.eq(may_read),
            self.scale_may_read.eq(may_read & head.scaled),
            self.line_read_select.eq(head_line),
            self.line_read_slot.eq(head.line_slot),
            self.line_read_quarters.eq(quarters_of(head.format, head.part)),
            self.scale_read_select.eq(head_scale),
            self.write_consume.eq(go & is_write),
            self.write_slot.eq(op.write_slot),
        ]
        # Whether the partial write goes comes late: until one has, the lock has whatever is at the
        # head.
        with m.If(~lock_valid):
            m.d.sync += [
                lock_valid.eq(go & is_partial),
                lock.eq(head),
                lock_line.eq(head_line),
                lock_scale.eq(head_scale),
                lock_position.eq(position),
            ]
        with m.Elif(back):
            m.d.sync += lock_valid.eq(0)
        m.d.sync += back.eq(self.merge_done)

        # - H1: stores, releases -------------------------------------------------------------------
        uses = Signal()
        wide = Signal()
        placement = Signal(placement_of(op.format).shape())
        m.d.comb += uses.eq(store | (go & is_read))
        m.d.sync += [
            self.line_store_en.eq(store),
            self.scale_store_en.eq(store & scaled),
            self.line_store_slot.eq(op.line_slot),
            self.line_store_quarters.eq(self.line_quarters),
            placement.eq(placement_of(op.format)),
            self.scale_store_slot.eq(op.scale_slot),
            self.scale_store_byte.eq(op.scale_byte),
            wide.eq(self.scale_wide),
            self.line_release_en.eq(uses),
            self.scale_release_en.eq(uses & scaled),
            self.release_line.eq(op.line_slot),
            self.release_scale.eq(op.scale_slot),
            self.release_position.eq(Mux(back, lock_position, position)),
            self.free_en.eq(store | (go & is_answer & head.has_write)),
            self.free_slot.eq(op.write_slot),
        ]
        m.d.comb += [
            self.line_store_data.eq(placed_payload(self.write_result.payload, placement)),
            self.scale_store_wide.eq(wide),
            self.scale_store_scale.eq(self.write_result.scale),
        ]

        # - H1: answers ----------------------------------------------------------------------------
        meta_layout = data.StructLayout(
            {"answer": 3, "has_data": 1, "poison": 1, "partial": 1, "origin": self.layouts.origin}
        )
        dequantiser = (
            Dequantiser(meta_shape=meta_layout, lanes=c.codec_lanes)
            if c.codecs
            else RawDequantiser(meta_shape=meta_layout)
        )
        m.submodules.dequantiser = dequantiser
        h1_op = Signal(self.order)
        h1_valid, h1_reads, h1_alignment = (
            Signal(),
            Signal(),
            Signal(alignment_of(head.format, head.part).shape()),
        )
        m.d.sync += [
            h1_valid.eq(go & ~is_flush),
            h1_op.eq(head),
            h1_reads.eq(reads),
            h1_alignment.eq(alignment_of(head.format, head.part)),
        ]
        given, error = dequantiser.i.p, Signal()
        m.d.sync += Assert(
            ~h1_valid | dequantiser.i.ready,
            "a line comes before the dequantiser has taken the one before it",
        )
        m.d.comb += [
            error.eq(h1_reads & (self.line_error | (h1_op.scaled & self.scale_error))),
            dequantiser.i.valid.eq(h1_valid),
            # (The scale comes late; of a format that has none the dequantiser does not look at it.)
            given.payload.eq(aligned_payload(self.line, h1_alignment)),
            given.scale.eq(self.scale),
            given.format.eq(h1_op.format),
            given.host_type.eq(h1_op.host_type),
            given.meta.answer.eq(Mux(error & ~h1_op.partial, Answer.POISON, h1_op.answer)),
            given.meta.has_data.eq((h1_op.answer == Answer.DATA) & ~(error & ~h1_op.partial)),
            given.meta.poison.eq(h1_op.poison | (error & ~h1_op.partial)),
            given.meta.partial.eq((h1_op.kind == DataOp.WRITE) & h1_op.partial),
            given.meta.origin.eq(h1_op.origin),
        ]

        # - out: a partial write is merged before it is answered -----------------------------------
        merged = Signal()
        m.submodules.answers = answers = BypassFifo(
            depth=self.ANSWERS,
            shape=dequantiser.o_layout,
            registered=c.codecs and c.codec_lanes < ELEMENTS,
        )
        m.d.comb += [
            dequantiser.o.ready.eq(1),
        ]
        connect(m, dequantiser.o, answers.i)
        done, row = answers.o.p, answers.row
        m.d.comb += [
            self.merge_op.write_slot.eq(lock.write_slot),
            self.merge_op.format.eq(lock.format),
            self.merge_op.host_type.eq(lock.host_type),
            self.merge_fresh.eq(lock.fresh),
            self.merge_line.eq(row.line),
            self.o.valid.eq(answers.o.valid & (~done.meta.partial | merged)),
            self.o.p.answer.eq(done.meta.answer),
            self.o.p.poison.eq(done.meta.poison),
            self.o.p.data.eq(gated(done.line, done.meta.has_data)),
            self.o.p.origin.eq(done.meta.origin),
            answers.o.ready.eq(self.o.ready & (~done.meta.partial | merged)),
        ]
        # From the row of what waits, and a cycle late: it addresses the write store.
        m.d.sync += self.merge.eq(answers.row_valid & row.meta.partial & ~merged & ~self.merged)
        with m.If(self.merged):
            m.d.sync += merged.eq(1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += merged.eq(0)

        # answers between H0 and `o`, and one that left a cycle ago
        busy, answered = Signal(range(self.ANSWERS + 1)), Signal()
        m.d.sync += [
            answered.eq(self.o.valid & self.o.ready),
            busy.eq(busy + (go & ~is_flush) - answered),
        ]
        # at most one more leaves H0 before this is looked at
        m.d.sync += room.eq(busy < self.ANSWERS - 1)
        m.d.comb += self.idle.eq(~head_valid & ~lock_valid & (busy == 0))
        m.d.sync += [
            Assert(~self.merge | lock_valid, "a partial write without a lock"),
            Assert(
                ~self.merged | (answers.row_valid & row.meta.partial),
                "a partial write is merged with another op's line",
            ),
            Assert(~back | lock_valid, "a merged line comes back without a lock"),
            Assert(
                ~(go | back)
                | (
                    Cat(op.line_slot, op.write_slot)
                    == Mux(
                        back,
                        Cat(lock.line_slot, lock.write_slot),
                        Cat(head.line_slot, head.write_slot),
                    )
                ),
                "H0 works on another op than the one at the head",
            ),
            Assert(~self.line_read_en | filled, "the head reads a line before it is filled"),
        ]
        return m
