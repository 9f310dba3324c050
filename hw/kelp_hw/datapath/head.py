# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The data path's head: executes ops strictly in order on the line buffers and answers them
(docs/design.md §4): one op a cycle, answered 2 cycles and the dequantiser's later."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, Format
from kelp_spec.metadata import Answer, DataOp

from ..codec.codec_lane import gated
from ..codec.dequantise import Dequantiser
from ..codec.raw_lines import RawDequantiser
from ..layouts import Layouts, code_shape
from ..lib.bypass_fifo import BypassFifo
from ..lib.protected import fault_ports
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


class _State:
    """What the stages of the head share: the op at the head and the partial write that comes back,
    and what H0 makes of them."""

    def __init__(self, order: data.StructLayout):
        self.head, self.head_valid = Signal(order), Signal()
        self.position = Signal(POSITION_BITS)
        self.is_read, self.is_write, self.is_partial = Signal(), Signal(), Signal()
        self.is_flush, self.is_answer = Signal(), Signal()
        self.lock, self.lock_valid = Signal(order), Signal()
        self.lock_position = Signal(POSITION_BITS)
        #: The partial write's result is there: it takes H0 before the op in `head`.
        self.back = Signal()
        #: The fills that the op in `head` awaits are there.
        self.filled = Signal()
        #: For one more answer. Registered, so that H0 does not depend on `o.ready`.
        self.room = Signal()
        #: Lines that go through the dequantiser in several beats leave H0 as many cycles apart.
        self.paced = Signal(init=1)
        self.able = Signal()  #: its data and its slots let the op in `head` go
        self.go = Signal()  #: it goes
        fields = (
            "line_slot",
            "scale_slot",
            "write_slot",
            "scale_byte",
            "format",
            "part",
            "line_select",
            "scale_select",
        )
        #: Of the op that H0 works on, `head` or `lock`: a register each for what addresses memories
        #: and picks slots, for hundreds of bits depend on it.
        self.op = Signal(data.StructLayout({f: order[f].shape for f in fields}))
        self.scaled = Signal()
        self.store = Signal()  #: a quantised line goes to its slot
        self.reads = Signal()  #: the op in `head` goes and reads its line


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

    A line that memory answered with an error is answered as poison; where a partial write merges
    it, `merge` tells the buffers, whose errors are reported.

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
    fault : out, Fault
        With `config.protect`: of an answer that waits for `o`, which is poison where it is beyond
        repair.
    """

    #: Answers between H0 and `o`, at most: those in the pipeline (H1, the dequantiser's 6 stages,
    #: the registers of `room` and `answered`: 9), and as many waiting as fit into a power of two.
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
                **fault_ports(config.protect, "fault"),
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
        s = _State(self.order)
        self._take(m, s)
        self._decide(m, s)
        self._address(m, s)
        self._lock(m, s)
        self._store(m, s)
        self._answer(m, s, self._dequantised(m, s))
        return m

    def _take(self, m: Module, s: _State) -> None:
        """The op at the head, what kind it is, and its slots."""
        c = self.config
        lines, scales = self.lines, self.scales
        m.d.comb += self.i.ready.eq(~s.head_valid | s.go)
        with m.If(self.i.ready):
            m.d.sync += [
                s.head_valid.eq(self.i.valid),
                s.head.eq(self.i.p),
                s.is_read.eq(self.i.p.kind == DataOp.READ),
                s.is_write.eq((self.i.p.kind == DataOp.WRITE) & ~self.i.p.partial),
                s.is_partial.eq((self.i.p.kind == DataOp.WRITE) & self.i.p.partial),
                s.is_flush.eq(self.i.p.kind == DataOp.FLUSH),
                s.is_answer.eq(self.i.p.kind == DataOp.ANSWER),
            ]
            if not c.codecs:
                m.d.sync += raw_only(s.head)
        with m.If(s.go):
            m.d.sync += s.position.eq(s.position + 1)

        for slot, select, waits in (
            (lines.slot, "line_select", "wait_line"),
            (scales.slot, "scale_select", "wait_scale"),
        ):
            m.d.comb += [
                slot.there.select.eq(s.head[select]),
                slot.there.waits.eq(s.head[waits]),
                slot.next.select.eq(self.i.p[select]),
                slot.next.waits.eq(self.i.p[waits]),
                slot.moves.eq(self.i.ready),
                slot.position.eq(s.position),
            ]

    def _decide(self, m: Module, s: _State) -> None:
        """H0: whether the op at the head goes."""
        c = self.config
        lines, scales, writes = self.lines, self.scales, self.writes
        # On the lock's scale line too: the op attached last releases a slot, and must not do so
        # before the lock has stored its scale.
        locked = s.lock_valid & (
            (s.lock.line_slot == s.head.line_slot)
            | (s.lock.scaled & s.head.scaled & (s.lock.scale_slot == s.head.scale_slot))
        )
        can_read = Signal()
        if c.codecs and c.codec_lanes < ELEMENTS:
            spacing = Signal(ELEMENTS // c.codec_lanes - 1)
            m.d.comb += s.paced.eq(~spacing[0])
            m.d.sync += spacing.eq(Mux(s.go & ~s.is_flush, ~0, spacing >> 1))
        m.d.comb += [
            s.filled.eq(lines.slot.filled & scales.slot.filled),
            can_read.eq(s.filled & ~(lines.refuse | scales.refuse)),
            s.able.eq(
                (can_read & ((s.is_read & ~locked) | (s.is_partial & ~s.lock_valid)))
                | (s.is_write & writes.ready & ~locked)
                | s.is_answer
            ),
            s.go.eq(
                s.head_valid
                & ~s.back
                & ((s.is_flush & self.o_flush.ready & ~s.lock_valid) | (s.able & s.room & s.paced))
            ),
            self.o_flush.valid.eq(s.head_valid & ~s.back & s.is_flush & ~s.lock_valid),
            Cat(self.o_flush.p.frame, self.o_flush.p.token).eq(Value.cast(s.head.origin)),
        ]

    def _address(self, m: Module, s: _State) -> None:
        """H0: what goes to the buffers and to the write path."""
        lines, scales, writes = self.lines, self.scales, self.writes

        def following(returned, waiting, there):
            return Mux(writes.merge_done, returned, Mux(self.i.ready, waiting, there))

        m.d.sync += [
            s.op[field].eq(following(s.lock[field], self.i.p[field], s.head[field]))
            for field in s.op.shape().members
        ]

        may_read = Signal()
        m.d.comb += [
            s.scaled.eq(Mux(s.back, s.lock.scaled, s.head.scaled)),
            s.store.eq(s.back | (s.go & s.is_write)),
            s.reads.eq(s.go & (s.is_read | (s.is_partial & ~s.head.fresh))),
            lines.slot.mark.p.eq(s.op.line_select),
            lines.mark_quarters.eq(quarters_of(s.op.format, s.op.part)),
            scales.slot.mark.p.eq(s.op.scale_select),
            scales.place.slot.eq(s.op.scale_slot),
            scales.place.byte.eq(s.op.scale_byte),
            scales.place.wide.eq(s.op.format == Format.INT4),
            lines.slot.mark.valid.eq(s.store),
            scales.slot.mark.valid.eq(s.store & s.scaled),
            lines.read_en.eq(s.reads),
            scales.read_en.eq(s.reads & s.head.scaled),
            # What a read needs beside the locks: known earlier, and addressed without the partial
            # write that comes back.
            may_read.eq(
                s.head_valid
                & ~s.back
                & s.room
                & s.paced
                & s.filled
                & (s.is_read | (s.is_partial & ~s.head.fresh))
            ),
            lines.may_read.eq(may_read),
            scales.may_read.eq(may_read & s.head.scaled),
            lines.read_slot.eq(s.head.line_slot),
            lines.read_quarters.eq(quarters_of(s.head.format, s.head.part)),
            writes.consume.eq(s.go & s.is_write),
            writes.slot.eq(s.op.write_slot),
        ]
        m.d.sync += [
            Assert(~s.back | s.lock_valid, "a merged line comes back without a lock"),
            Assert(
                ~(s.go | s.back)
                | (
                    Cat(s.op.line_slot, s.op.write_slot)
                    == Mux(
                        s.back,
                        Cat(s.lock.line_slot, s.lock.write_slot),
                        Cat(s.head.line_slot, s.head.write_slot),
                    )
                ),
                "H0 works on another op than the one at the head",
            ),
            Assert(~lines.read_en | s.filled, "the head reads a line before it is filled"),
        ]

    def _lock(self, m: Module, s: _State) -> None:
        """The partial write whose result comes back."""
        writes = self.writes
        # Critical path: `go` only sets `lock_valid`; until it is set, `lock` follows `head`.
        with m.If(~s.lock_valid):
            m.d.sync += [
                s.lock_valid.eq(s.go & s.is_partial),
                s.lock.eq(s.head),
                s.lock_position.eq(s.position),
            ]
        with m.Elif(s.back):
            m.d.sync += s.lock_valid.eq(0)
        m.d.sync += s.back.eq(writes.merge_done)

    def _store(self, m: Module, s: _State) -> None:
        """H1: stores and releases."""
        lines, scales, writes = self.lines, self.scales, self.writes
        uses, released = Signal(), Signal(POSITION_BITS)
        placement = Signal(placement_of(s.op.format).shape())
        m.d.comb += uses.eq(s.store | (s.go & s.is_read))
        m.d.sync += [
            lines.store.valid.eq(s.store),
            scales.store.valid.eq(s.store & s.scaled),
            lines.store.p.slot.eq(s.op.line_slot),
            lines.store.p.quarters.eq(lines.mark_quarters),
            placement.eq(placement_of(s.op.format)),
            scales.store.p.place.eq(scales.place),
            lines.slot.release.valid.eq(uses),
            lines.slot.release.p.slot.eq(s.op.line_slot),
            scales.slot.release.valid.eq(uses & s.scaled),
            scales.slot.release.p.slot.eq(s.op.scale_slot),
            released.eq(Mux(s.back, s.lock_position, s.position)),
            writes.free.valid.eq(s.store | (s.go & s.is_answer & s.head.has_write)),
            writes.free.p.eq(s.op.write_slot),
        ]
        m.d.comb += [
            lines.store.p.data.eq(placed_payload(writes.result.payload, placement)),
            scales.store.p.scale.eq(writes.result.scale),
            lines.slot.release.p.position.eq(released),
            scales.slot.release.p.position.eq(released),
        ]

    def _dequantised(self, m: Module, s: _State) -> Dequantiser:
        """H1: what memory and stores hold, aligned, through the dequantiser."""
        lines, scales = self.lines, self.scales
        meta_layout = data.StructLayout(
            {
                "answer": code_shape(Answer),
                "has_data": 1,
                "poison": 1,
                "partial": 1,
                "origin": self.layouts.origin,
            }
        )
        dequantiser = self._dequantiser(meta_layout)
        m.submodules.dequantiser = dequantiser
        h1_op = Signal(self.order)
        h1_valid, h1_reads, h1_alignment = (
            Signal(),
            Signal(),
            Signal(alignment_of(s.head.format, s.head.part).shape()),
        )
        m.d.sync += [
            h1_valid.eq(s.go & ~s.is_flush),
            h1_op.eq(s.head),
            h1_reads.eq(s.reads),
            h1_alignment.eq(alignment_of(s.head.format, s.head.part)),
        ]
        # A refused request need not be of any queue, and its format may be none.
        with m.If(s.is_answer):
            m.d.sync += h1_op.format.eq(Format.RAW16)
        given, error = dequantiser.i.p, Signal()
        m.d.sync += Assert(
            ~h1_valid | dequantiser.i.ready,
            "a line comes before the dequantiser has taken the one before it",
        )
        m.d.comb += [
            error.eq(h1_reads & (lines.error | (h1_op.scaled & scales.error))),
            lines.merge.eq(h1_reads & given.meta.partial),
            scales.merge.eq(h1_reads & given.meta.partial & h1_op.scaled),
            dequantiser.i.valid.eq(h1_valid),
            # Critical path: not gated by `h1_op.scaled`; the dequantiser ignores the scale of a
            # format that has none.
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
        return dequantiser

    def _answer(self, m: Module, s: _State, dequantiser: Dequantiser) -> None:
        """Answers in order; a partial write is merged before it is answered."""
        c = self.config
        writes = self.writes
        merged = Signal()
        m.submodules.answers = answers = BypassFifo(
            depth=self.ANSWERS,
            shape=dequantiser.o_layout,
            registered=c.codecs and c.codec_lanes < ELEMENTS,
            protect=c.protect,
        )
        if c.protect:
            m.d.comb += self.fault.eq(answers.fault)
        m.d.comb += dequantiser.o.ready.eq(1)
        connect(m, dequantiser.o, answers.i)
        done, row = answers.o.p, answers.oldest.item
        m.d.comb += [
            writes.merge.p.write.write_slot.eq(s.lock.write_slot),
            writes.merge.p.write.format.eq(s.lock.format),
            writes.merge.p.write.host_type.eq(s.lock.host_type),
            writes.merge.p.fresh.eq(s.lock.fresh),
            writes.merge.p.line.eq(row.line),
            self.o.valid.eq(answers.o.valid & (~done.meta.partial | merged)),
            self.o.p.answer.eq(done.meta.answer),
            self.o.p.poison.eq(
                done.meta.poison | answers.fault.uncorrected if c.protect else done.meta.poison
            ),
            self.o.p.data.eq(gated(done.line, done.meta.has_data)),
            self.o.p.origin.eq(done.meta.origin),
            answers.o.ready.eq(self.o.ready & (~done.meta.partial | merged)),
        ]
        # Critical path: registered here, for it addresses the write store.
        m.d.sync += writes.merge.valid.eq(
            answers.oldest.valid & row.meta.partial & ~merged & ~writes.merge.ready
        )
        with m.If(writes.merge.ready):
            m.d.sync += merged.eq(1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += merged.eq(0)

        # answers between H0 and `o`, and one that left a cycle ago
        busy, answered = Signal(range(self.ANSWERS + 1)), Signal()
        m.d.sync += [
            answered.eq(self.o.valid & self.o.ready),
            busy.eq(busy + (s.go & ~s.is_flush) - answered),
        ]
        # Registered: one more answer leaves H0 before `room` falls.
        m.d.sync += s.room.eq(busy < self.ANSWERS - 1)
        m.d.comb += self.idle.eq(~s.head_valid & ~s.lock_valid & (busy == 0))
        m.d.sync += [
            Assert(~writes.merge.valid | s.lock_valid, "a partial write without a lock"),
            Assert(
                ~writes.merge.ready | (answers.oldest.valid & row.meta.partial),
                "a partial write is merged with another op's line",
            ),
        ]
