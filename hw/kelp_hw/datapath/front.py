# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The data path's front half: finds or allocates each op's slots, asks memory early, and passes the
op on (docs/design.md §4, D1 and D2). One op a cycle: 2 cycles to the head, 3 cycles to AR."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Answer, DataOp

from ..layouts import Layouts
from ..lib.axi import BURST_INCR, SIZE_LINE, AxiSignature
from ..lib.protected import fault_ports, merged
from ..lib.request_fifo import RequestFifo
from .order import POSITION_BITS, order_layout, raw_only
from .quarters import quarters_of
from .signatures import LineLookUp, ScaleLookUp, full_write_layout

__all__ = ["DataFront"]


class DataFront(wiring.Component):
    """Takes data ops in order and passes them on in order, each with its slots; full writes go to
    the write path besides.

    D1 compares the tags, and makes an ANSWER of a READ whose line is poisoned or was never written;
    D2 attaches or allocates; an op stays in D2 while no slot, or no place for the op or its reads,
    is free. `room` promises that in the next cycle `o` and `o_write` take what comes: an op waits
    for both, whichever it needs. Latency from `i` to `o` `LATENCY` cycles, to AR `LATENCY_TO_AR`
    while AR is idle. One op a cycle, with one line read and one scale read each; AR drains one per
    cycle.

    `poisoned` says that the frame table has poisoned lines of a frame. READs that had passed it by
    then, and have no slot yet, do not know: those of the frame are answered with poison, and so are
    those of frames that equal it in the lowest `FRAME_BITS` bits.

    Parameters
    ----------
    config : Config
    axi : AxiSignature

    Members
    -------
    i : stream of data_op
    lines, scales : Out(LineLookUp), Out(ScaleLookUp), to the buffers
    poisoned : in, always-ready stream of a frame
    waiting : in
        With `poisoned`: ops that had passed the frame table and come on `i` from now on.
    o : stream of order_layout
    o_write : stream of full_write_layout
        Full writes, in the cycle in which they leave on `o`.
    room : in
    ar : as in AxiSignature
    idle : out
        No op is in D1 or D2, and no read waits for AR.
    fault : out, Fault
        With `config.protect`: of a read that waits for AR.
    """

    LATENCY = 2
    LATENCY_TO_AR = 3
    INTERVAL = 1
    #: Read requests waiting for AR, for lines and for scales each. Streams that walk in step ask
    #: for all their scale lines at once.
    QUEUED = 16
    FRAME_BITS = 6
    #: Of `waiting`.
    COUNT_BITS = 8

    def __init__(self, *, config: Config, axi: AxiSignature):
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.id_bits = axi.id_bits

        super().__init__(
            {
                "i": In(stream.Signature(layouts.data_op)),
                "lines": Out(LineLookUp(config)),
                "scales": Out(ScaleLookUp(config)),
                "poisoned": In(stream.Signature(config.frame_bits, always_ready=True)),
                "waiting": In(self.COUNT_BITS),
                "o": Out(stream.Signature(order_layout(config))),
                "o_write": Out(stream.Signature(full_write_layout(config))),
                "room": In(1),
                "ar": Out(stream.Signature(axi.address)),
                "idle": Out(1),
                **fault_ports(config.protect, "fault"),
            }
        )

    def elaborate(self, platform):
        m = Module()
        one, two = Signal(self.layouts.data_op), Signal(self.layouts.data_op)
        s = SimpleNamespace(
            # The ops in D1 and in D2.
            one=one,
            one_valid=Signal(),
            two=two,
            two_valid=Signal(),
            # What D2 asks of the tables.
            uses_line=Signal(),
            uses_scale=Signal(),
            reads=Signal(),
            full_write=Signal(),
            line_address=Signal(self.config.dram_line_bits),
            scale_address=Signal(self.config.dram_line_bits),
            fire=Signal(),  # the op in D2 goes on
            two_free=Signal(),
        )
        m.d.comb += [
            s.two_free.eq(~s.two_valid | s.fire),
            self.i.ready.eq(~s.one_valid | s.two_free),
        ]
        with m.If(self.i.ready):
            m.d.sync += [s.one_valid.eq(self.i.valid), one.eq(self.i.p)]
            if not self.config.codecs:
                m.d.sync += raw_only(one)
        self._d1(m, s)
        self._d2(m, s, *self._requests(m))
        m.d.comb += self.idle.eq(~s.one_valid & ~s.two_valid & ~self.ar.valid)
        return m

    def _d1(self, m: Module, s: SimpleNamespace) -> None:
        """The tags are looked up, and what D2 asks of the tables is worked out."""
        one, two = s.one, s.two
        outdated_one, outdated_two = self._outdated(m, one, s.one_valid, two)
        accesses, reads, answered = Signal(), Signal(), Signal()
        m.d.comb += [
            # Critical path: the frame stage knows a READ's `poison` and `fresh` at the end of its
            # cycle, so what the op becomes is worked out here.
            answered.eq((one.kind == DataOp.READ) & (one.poison | one.fresh)),
            accesses.eq(((one.kind == DataOp.READ) | (one.kind == DataOp.WRITE)) & ~answered),
            reads.eq(
                ((one.kind == DataOp.READ) & ~answered)
                | ((one.kind == DataOp.WRITE) & one.partial & ~one.fresh)
            ),
        ]
        with m.If(s.two_free):
            m.d.sync += [
                s.uses_line.eq(s.one_valid & accesses),
                s.uses_scale.eq(s.one_valid & accesses & one.scaled),
                s.reads.eq(reads),
                s.full_write.eq((one.kind == DataOp.WRITE) & ~one.partial),
                self.lines.quarters.eq(quarters_of(one.format, one.part)),
            ]
            m.d.sync += [
                s.two_valid.eq(s.one_valid),
                two.eq(one),
                two.kind.eq(Mux(answered, DataOp.ANSWER, one.kind)),
                two.answer.eq(
                    Mux(answered, Mux(one.poison, Answer.POISON, Answer.ZEROS), one.answer)
                ),
                s.line_address.eq(one.base + one.offset),
                s.scale_address.eq(one.base + one.scale_offset),
            ]
            # It goes on as a READ, of which its slots know by now.
            with m.If(outdated_one):
                m.d.sync += [two.answer.eq(Answer.POISON), two.poison.eq(1)]
        with m.Elif(outdated_two):
            m.d.sync += [two.answer.eq(Answer.POISON), two.poison.eq(1)]

        looks = ((self.lines.slot, one.offset), (self.scales.slot, one.scale_offset))
        for look, offset in looks:
            m.d.comb += [
                look.tag.valid.eq(s.two_free),
                look.tag.p.frame.eq(one.frame),
                look.tag.p.offset.eq(offset),
            ]

    def _d2(self, m: Module, s: SimpleNamespace, line_requests, scale_requests) -> None:
        """The op attaches to its slots, asks memory for what they have not, and goes on."""
        two, fire = s.two, s.fire
        line, scale = self.lines.slot, self.scales.slot
        m.d.comb += [
            line.use.eq(s.uses_line),
            scale.use.eq(s.uses_scale),
            self.lines.reads.eq(s.reads),
            self.lines.stores.eq(two.kind == DataOp.WRITE),
            self.scales.reads.eq(s.reads),
            line.address.eq(s.line_address),
            scale.address.eq(s.scale_address),
            line.stored.eq(two.stored),
            scale.stored.eq(two.stored),
        ]
        position = Signal(POSITION_BITS)
        with m.If(fire):
            m.d.sync += position.eq(position + 1)
        m.d.comb += [line.position.eq(position), scale.position.eq(position)]

        able, space = Signal(), Signal()
        m.d.comb += [
            able.eq(
                s.two_valid & space & (~line.use | line.available) & (~scale.use | scale.available)
            ),
            # Both streams take the op in the same cycle: `space` has promised a place in each, and
            # one among the requests.
            self.o.valid.eq(able),
            self.o_write.valid.eq(able & s.full_write),
            fire.eq(able),
            line.fire.eq(fire & line.use),
            scale.fire.eq(fire & scale.use),
            line_requests.i.valid.eq(line.fire & line.request_fill),
            line_requests.i.p.address.eq(s.line_address),
            line_requests.i.p.slot.eq(line.slot),
            scale_requests.i.valid.eq(scale.fire & scale.request_fill),
            scale_requests.i.p.address.eq(s.scale_address),
            scale_requests.i.p.slot.eq(scale.slot),
        ]
        self._payloads(m, two, s.reads)

        # A place for the op of this cycle and one for the next, known a cycle ahead: whether an op
        # goes steers all slots of the tables.
        m.d.sync += space.eq(
            self.room
            & (line_requests.level <= self.QUEUED - 2)
            & (scale_requests.level <= self.QUEUED - 2)
        )
        m.d.sync += Assert(~fire | (self.o.ready & (self.o_write.ready | ~s.full_write)))

    def _payloads(self, m: Module, two, reads: Signal) -> None:
        """What the head and the write path learn of the op in D2."""
        line, scale = self.lines.slot, self.scales.slot
        m.d.comb += [
            self.o_write.p.write_slot.eq(two.write_slot),
            self.o_write.p.format.eq(two.format),
            self.o_write.p.host_type.eq(two.host_type),
            self.o.p.line_select.eq(line.select),
            self.o.p.scale_select.eq(scale.select),
            self.o.p.line_slot.eq(line.slot),
            self.o.p.scale_slot.eq(scale.slot),
            self.o.p.wait_line.eq(self.lines.wait),
            self.o.p.wait_scale.eq(reads & two.scaled),
        ]
        for field in (
            "kind",
            "answer",
            "part",
            "scaled",
            "scale_byte",
            "format",
            "host_type",
            "partial",
            "fresh",
            "poison",
            "has_write",
            "write_slot",
        ):
            m.d.comb += self.o.p[field].eq(two[field])
        m.d.comb += Value.cast(self.o.p.origin).eq(
            Mux(two.kind == DataOp.FLUSH, Cat(two.frame, two.token), Value.cast(two.origin))
        )

    def _requests(self, m: Module) -> tuple[RequestFifo, RequestFifo]:
        """Reads that wait for AR, of lines and of scales; they go in turn, and the choice stands
        while AR waits."""

        def request(slot):
            return data.StructLayout({"address": self.config.dram_line_bits, "slot": len(slot)})

        protect = self.config.protect
        m.submodules.line_requests = lines = RequestFifo(
            shape=request(self.lines.slot.slot), depth=self.QUEUED, protect=protect
        )
        m.submodules.scale_requests = scales = RequestFifo(
            shape=request(self.scales.slot.slot), depth=self.QUEUED, protect=protect
        )
        if protect:
            m.d.comb += self.fault.eq(merged(lines.fault, scales.fault))
        chosen, chosen_before, stalled = Signal(), Signal(), Signal()
        m.d.comb += [
            chosen.eq(
                Mux(stalled, chosen_before, scales.o.valid & (~lines.o.valid | ~chosen_before))
            ),
            self.ar.valid.eq(lines.o.valid | scales.o.valid),
            self.ar.p.id.eq(Mux(chosen, scales.o.p.slot | (1 << self.id_bits - 1), lines.o.p.slot)),
            self.ar.p.addr.eq(Mux(chosen, scales.o.p.address, lines.o.p.address) << 6),
            self.ar.p.size.eq(SIZE_LINE),
            self.ar.p.burst.eq(BURST_INCR),
            lines.o.ready.eq(self.ar.ready & ~chosen),
            scales.o.ready.eq(self.ar.ready & chosen),
        ]
        m.d.sync += stalled.eq(self.ar.valid & ~self.ar.ready)
        with m.If(self.ar.valid):
            m.d.sync += chosen_before.eq(chosen)
        return lines, scales

    def _outdated(self, m: Module, one, one_valid, two) -> tuple[Signal, Signal]:
        """Whether the op in D1, and the one in D2, is a READ that has to answer poison of which
        the frame table did not know."""
        poisoned = self.poisoned
        bits = min(self.FRAME_BITS, len(poisoned.p))
        frames = Signal(1 << bits)  # poisoned, while ops come that do not know
        left, one_left = Signal(self.COUNT_BITS), Signal()  # such ops; the one in D1 is one
        outdated_one, outdated_two = Signal(), Signal()
        taken = self.i.valid & self.i.ready
        now = poisoned.valid & (one.frame[:bits] == poisoned.p[:bits])
        m.d.comb += [
            outdated_one.eq(
                ((one_left & frames.bit_select(one.frame[:bits], 1)) | now)
                & (one.kind == DataOp.READ)
                & ~one.fresh
            ),
            outdated_two.eq(
                poisoned.valid & (two.frame[:bits] == poisoned.p[:bits]) & (two.kind == DataOp.READ)
            ),
        ]
        with m.If(self.i.ready):
            m.d.sync += one_left.eq(poisoned.valid | (left != 0))
        with m.Elif(poisoned.valid):
            m.d.sync += one_left.eq(1)
        with m.If(poisoned.valid):
            m.d.sync += [
                left.eq(self.waiting - taken),
                frames.bit_select(poisoned.p[:bits], 1).eq(1),
            ]
        with m.Else():
            with m.If(taken & (left != 0)):
                m.d.sync += left.eq(left - 1)
            with m.If((left == 0) & ~(one_valid & one_left)):
                m.d.sync += frames.eq(0)
        m.d.sync += Assert(
            ~poisoned.valid | ~taken | (self.waiting != 0), "an op comes that is not counted"
        )
        return outdated_one, outdated_two
