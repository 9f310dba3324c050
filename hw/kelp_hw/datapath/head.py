# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The data path's head: executes ops strictly in order on the line buffers and answers them
(docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, C, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, Format
from kelp_spec.metadata import Answer, DataOp

from ..codec.codec_lane import gated
from ..codec.dequantise import Dequantiser
from ..codec.raw_lines import RawDequantiser
from ..layouts import Layouts
from ..lib.bypass_fifo import BypassFifo
from .order import POSITION_BITS, order_layout, raw_only
from .quarters import (
    aligned_payload,
    alignment_of,
    placed_payload,
    placement_of,
    quarters_of,
)
from .signatures import HeadWrites, LineHead, ScaleHead

__all__ = ["DataHead"]


class DataHead(wiring.Component):
    """Takes ops in order from `i`, each when its fills and its quantised data are there, and
    answers them in order on `o`.

    H0 decides, marks the slots and addresses the buffers; H1 has their data, aligns them, and
    stores; then the dequantiser, through which every answer goes, so that order needs no
    bookkeeping. From H1 on nothing ever stands still: H0 starts no more answers than there are
    places at the end. Latency `LATENCY` cycles to `o`, 2 and the dequantiser's: from `i` when all
    data are there, else from the fill that the op at the head awaits. One op in `INTERVAL` cycles,
    the dequantiser's.

    A **partial write** leaves H0 as a read, with the one *lock*: its answer is turned round into
    the write path's merge, and the result comes back to H0 as a store. Until then ops on the same
    line slot or scale slot wait at H0, and so do other partial writes and flushes.

    A line that memory answered with an error is answered as poison.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : stream of order_layout
    lines, scales, writes : Out(LineHead), Out(ScaleHead), Out(HeadWrites)
        Asks of the buffers and of the write path.
    o_flush : stream of Layouts.flush
    o : stream of answer
    idle : out
        No op is at the head, and all answers have left.
    """

    #: Answers between H0 and `o`, at most: those in the pipeline, and as many waiting for their
    #: channel.
    ANSWERS = 16

    def __init__(self, *, config: Config):
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.order = order = order_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(order)),
                "lines": Out(LineHead(config)),
                "scales": Out(ScaleHead(config)),
                "writes": Out(HeadWrites(config)),
                "o_flush": Out(stream.Signature(layouts.flush)),
                "o": Out(stream.Signature(layouts.answer)),
                "idle": Out(1),
            }
        )

    @property
    def LATENCY(self) -> int:
        return 2 + self._dequantiser(0).LATENCY

    @property
    def INTERVAL(self) -> int:
        return self._dequantiser(0).INTERVAL

    def _dequantiser(self, meta_shape) -> Dequantiser:
        if not self.config.codecs:
            return RawDequantiser(meta_shape=meta_shape)
        return Dequantiser(meta_shape=meta_shape, lanes=self.config.codec_lanes)

    def elaborate(self, platform):
        m = Module()
        c = self.config
        lines, scales, writes = self.lines, self.scales, self.writes

        # - the op at the head, and the partial write that will come back --------------------------
        head = Signal(self.order)
        head_valid = Signal()
        position = Signal(POSITION_BITS)
        lock = Signal(self.order)
        lock_valid = Signal()
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
        m.d.comb += self.i.ready.eq(~head_valid | go)
        with m.If(self.i.ready):
            m.d.sync += [
                head_valid.eq(self.i.valid),
                head.eq(self.i.p),
                is_read.eq(kind == DataOp.READ),
                is_write.eq((kind == DataOp.WRITE) & ~self.i.p.partial),
                is_partial.eq((kind == DataOp.WRITE) & self.i.p.partial),
                is_flush.eq(kind == DataOp.FLUSH),
                is_answer.eq(kind == DataOp.ANSWER),
            ]
            if not c.codecs:
                m.d.sync += raw_only(head)
        with m.If(go):
            m.d.sync += position.eq(position + 1)

        for slot, select, waits in (
            (lines.slot, "line_select", "wait_line"),
            (scales.slot, "scale_select", "wait_scale"),
        ):
            m.d.comb += [
                slot.there.select.eq(head[select]),
                slot.there.waits.eq(head[waits]),
                slot.next.select.eq(self.i.p[select]),
                slot.next.waits.eq(self.i.p[waits]),
                slot.moves.eq(self.i.ready),
            ]

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
            filled.eq(lines.slot.filled & scales.slot.filled),
            can_read.eq(filled & ~(lines.refuse | scales.refuse)),
            able.eq(
                (can_read & ((is_read & ~locked) | (is_partial & ~lock_valid)))
                | (is_write & writes.ready & ~locked)
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
                        "line_select",
                        "scale_select",
                    )
                }
            )
        )
        scaled = Signal()

        def following(returned, waiting, there):
            return Mux(writes.merge_done, returned, Mux(self.i.ready, waiting, there))

        m.d.sync += [
            op[field].eq(following(lock[field], self.i.p[field], head[field]))
            for field in op.shape().members
        ]
        store = Signal()  # a quantised line goes to its slot
        reads, may_read = Signal(), Signal()
        m.d.comb += [
            scaled.eq(Mux(back, lock.scaled, head.scaled)),
            store.eq(back | (go & is_write)),
            reads.eq(go & (is_read | (is_partial & ~head.fresh))),
            lines.slot.mark.p.eq(op.line_select),
            lines.mark_quarters.eq(quarters_of(op.format, op.part)),
            scales.slot.mark.p.eq(op.scale_select),
            scales.place.slot.eq(op.scale_slot),
            scales.place.byte.eq(op.scale_byte),
            scales.place.wide.eq(op.format == Format.INT4),
            lines.slot.mark.valid.eq(store),
            scales.slot.mark.valid.eq(store & scaled),
            lines.read_en.eq(reads),
            scales.read_en.eq(reads & head.scaled),
            # What a read needs beside the locks: known earlier, and addressed without the partial
            # write that comes back.
            may_read.eq(
                head_valid & ~back & room & paced & filled & (is_read | (is_partial & ~head.fresh))
            ),
            lines.may_read.eq(may_read),
            scales.may_read.eq(may_read & head.scaled),
            lines.read_slot.eq(head.line_slot),
            lines.read_quarters.eq(quarters_of(head.format, head.part)),
            writes.consume.eq(go & is_write),
            writes.slot.eq(op.write_slot),
        ]
        # Whether the partial write goes comes late: until one has, the lock has whatever is at the
        # head.
        with m.If(~lock_valid):
            m.d.sync += [
                lock_valid.eq(go & is_partial),
                lock.eq(head),
                lock_position.eq(position),
            ]
        with m.Elif(back):
            m.d.sync += lock_valid.eq(0)
        m.d.sync += back.eq(writes.merge_done)

        # - H1: stores, releases -------------------------------------------------------------------
        uses, released = Signal(), Signal(POSITION_BITS)
        placement = Signal(placement_of(op.format).shape())
        m.d.comb += uses.eq(store | (go & is_read))
        m.d.sync += [
            lines.store.valid.eq(store),
            scales.store.valid.eq(store & scaled),
            lines.store.p.slot.eq(op.line_slot),
            lines.store.p.quarters.eq(lines.mark_quarters),
            placement.eq(placement_of(op.format)),
            scales.store.p.place.eq(scales.place),
            lines.slot.release.valid.eq(uses),
            lines.slot.release.p.slot.eq(op.line_slot),
            scales.slot.release.valid.eq(uses & scaled),
            scales.slot.release.p.slot.eq(op.scale_slot),
            released.eq(Mux(back, lock_position, position)),
            writes.free.valid.eq(store | (go & is_answer & head.has_write)),
            writes.free.p.eq(op.write_slot),
        ]
        m.d.comb += [
            lines.store.p.data.eq(placed_payload(writes.result.payload, placement)),
            scales.store.p.scale.eq(writes.result.scale),
            lines.slot.release.p.position.eq(released),
            scales.slot.release.p.position.eq(released),
        ]

        # - H1: answers ----------------------------------------------------------------------------
        meta_layout = data.StructLayout(
            {"answer": 3, "has_data": 1, "poison": 1, "partial": 1, "origin": self.layouts.origin}
        )
        dequantiser = self._dequantiser(meta_layout)
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
            error.eq(h1_reads & (lines.error | (h1_op.scaled & scales.error))),
            dequantiser.i.valid.eq(h1_valid),
            # (The scale comes late; of a format that has none the dequantiser does not look at it.)
            given.payload.eq(aligned_payload(lines.line, h1_alignment)),
            given.scale.eq(scales.scale),
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
            writes.merge.p.write.write_slot.eq(lock.write_slot),
            writes.merge.p.write.format.eq(lock.format),
            writes.merge.p.write.host_type.eq(lock.host_type),
            writes.merge.p.fresh.eq(lock.fresh),
            writes.merge.p.line.eq(row.line),
            self.o.valid.eq(answers.o.valid & (~done.meta.partial | merged)),
            self.o.p.answer.eq(done.meta.answer),
            self.o.p.poison.eq(done.meta.poison),
            self.o.p.data.eq(gated(done.line, done.meta.has_data)),
            self.o.p.origin.eq(done.meta.origin),
            answers.o.ready.eq(self.o.ready & (~done.meta.partial | merged)),
        ]
        # From the row of what waits, and a cycle late: it addresses the write store.
        m.d.sync += writes.merge.valid.eq(
            answers.row_valid & row.meta.partial & ~merged & ~writes.merge.ready
        )
        with m.If(writes.merge.ready):
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
            Assert(~writes.merge.valid | lock_valid, "a partial write without a lock"),
            Assert(
                ~writes.merge.ready | (answers.row_valid & row.meta.partial),
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
            Assert(~lines.read_en | filled, "the head reads a line before it is filled"),
        ]
        return m
