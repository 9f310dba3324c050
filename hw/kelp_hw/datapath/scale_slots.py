# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The buffer of DRAM lines that hold scales (docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS, LINE_BYTES, SCALE_BITS

from ..lib.byte_mask import ByteMask
from ..lib.wide_memory import WideMemory
from .signatures import FrameFlush, ScaleHead, ScaleLookUp, WriteBack, fill_layout, table_geometry
from .slot_table import NoSlots, SlotTable

__all__ = ["ScaleSlots"]


class ScaleSlots(wiring.Component):
    """`scale_slots` DRAM lines in two copies, *fill* and *store*, with a mask of 64 bytes that says
    which is newer.

    As :class:`.line_slots.LineSlots`, with these differences: its grain is the byte; a read always
    awaits the fill, even of a scale that an op ahead stores, because a scale line serves 32 or 64
    lines and one needless read among them costs less than a second mask.

    A scale is one byte at `byte`, or two (`wide`) at an even `byte`.

    Without codecs no op has a scale: there are no slots, and nothing comes out.

    Parameters
    ----------
    config : Config

    Members
    -------
    look : In(ScaleLookUp), from the front
    head : In(ScaleHead), from the head
    fill, written, flush, drain, idle : as in :class:`.line_slots.LineSlots`
    write_back : Out(WriteBack)
        Dirty lines; one strobe per byte.
    """

    def __init__(self, *, config: Config):
        self.config = config
        self.slots = n = config.scale_slots
        super().__init__(
            {
                "look": In(ScaleLookUp(config)),
                "head": In(ScaleHead(config)),
                "fill": In(stream.Signature(fill_layout(n), always_ready=True)),
                "written": In(stream.Signature(ceil_log2(n), always_ready=True)),
                "write_back": Out(
                    WriteBack(slots=n, address_bits=config.dram_line_bits, strobes=LINE_BYTES)
                ),
                "flush": In(FrameFlush(frame_bits=config.frame_bits)),
                "drain": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self.slots
        kind = SlotTable if self.config.codecs else NoSlots
        m.submodules.table = table = kind(**table_geometry(self.config, n), lead=n * 5 // 8)
        head, back = self.head, self.write_back
        place, stored = head.place, head.store.p.place
        connect(m, flipped(self.look.slot), table.look)
        connect(m, flipped(head.slot), table.head)
        connect(m, flipped(self.written), table.written)
        connect(m, flipped(self.flush), table.flush)
        m.d.comb += [
            table.fill.valid.eq(self.fill.valid),
            table.fill.p.eq(self.fill.p.slot),
            table.drain.eq(self.drain),
            self.idle.eq(table.idle),
        ]
        if not self.config.codecs:
            return m
        m.submodules.newer = newer = ByteMask(slots=n)
        m.d.comb += table.want_fill.eq(self.look.reads)

        def bytes_of(byte, wide):
            return Cat((byte == k) | (wide & (byte[1:] == k >> 1)) for k in range(LINE_BYTES))

        head_newer, byte, wide, marks = Signal(), Signal(6), Signal(), Signal(LINE_BYTES)
        upper = Signal()  # the pair's upper byte is the scale
        m.d.comb += [
            newer.clear_en.eq(table.may_allocate),
            newer.clear_slot.eq(table.victim_slot),
            newer.set_bytes.eq(marks),
            newer.look_slot.eq(place.slot),
            head_newer.eq(
                newer.look_mask.bit_select(place.byte, 1)
                | (
                    newer.look_set
                    & (byte[1:] == place.byte[1:])
                    & (wide | (byte[0] == place.byte[0]))
                )
            ),
            # Pages are written upwards; whoever stores elsewhere later makes the slot dirty again.
            table.store_complete.eq(place.byte[1:].all() & (place.byte[0] | place.wide)),
            newer.read_slot.eq(table.out.p.slot),
        ]

        m.submodules.fill = fill = WideMemory(
            depth=n, shape=data.StructLayout({"data": LINE_BITS, "error": 1}), apart=True
        )
        m.submodules.store = store = memory.Memory(shape=LINE_BITS, depth=n, init=())
        store_write = store.write_port(granularity=8)
        store_read = store.read_port(transparent_for=(store_write,))
        m.d.comb += [
            fill.write_en.eq(self.fill.valid),
            fill.write_address.eq(self.fill.p.slot),
            fill.write_data.data.eq(self.fill.p.data),
            fill.write_data.error.eq(self.fill.p.error),
            fill.read_en.eq(1),
            fill.read_address.eq(place.slot),
            store_write.addr.eq(stored.slot),
            store_write.data.eq(
                Mux(
                    stored.wide,
                    head.store.p.scale,
                    head.store.p.scale[0:8].replicate(2),
                ).replicate(LINE_BYTES // 2)
            ),
            store_write.en.eq(Mux(head.store.valid, marks, 0)),
        ]

        wants = Signal()
        held = Signal()
        starved = Signal(4)  # cycles that a due line has waited for the port
        with m.If(~(table.out.valid & wants)):
            m.d.sync += starved.eq(0)
        with m.Elif(~head.refuse):
            m.d.sync += starved.eq(starved + 1)
        # Which copy is newer comes too late to ask, and whether the head does read: scale lines are
        # seldom written.
        m.d.comb += wants.eq(head.may_read & ~head.refuse)
        # A store's bytes are marked a cycle late: the memory of marks lies far from the head. They
        # are those that the store writes in that cycle.
        m.d.sync += [
            held.eq(head_newer),
            byte.eq(place.byte),
            wide.eq(place.wide),
            upper.eq(~place.wide & place.byte[0]),
            marks.eq(bytes_of(place.byte, place.wide)),
            newer.set_en.eq(head.slot.mark.valid & head.slot.mark.p.any()),
            newer.set_slot.eq(place.slot),
        ]
        pair = Signal(SCALE_BITS)
        m.d.comb += [
            back.due.valid.eq(table.out.valid & ~wants),
            back.due.slot.eq(table.out.p.slot),
            back.due.address.eq(table.out.p.address),
            head.refuse.eq(starved.all()),
            store_read.en.eq(1),
            store_read.addr.eq(Mux(wants, place.slot, table.out.p.slot)),
            table.out.ready.eq(back.take),
            back.data.eq(store_read.data),
            pair.eq(
                Mux(
                    held,
                    store_read.data.word_select(byte[1:], SCALE_BITS),
                    fill.read_data.data.word_select(byte[1:], SCALE_BITS),
                )
            ),
            head.scale.eq(Cat(Mux(upper, pair[8:], pair[:8]), Mux(wide, pair[8:], 0))),
            head.error.eq(fill.read_data.error & ~held),
        ]
        m.d.sync += back.strobes.eq(newer.read_mask)

        m.d.sync += [
            Assert(~(head.read_en & head.refuse), "the head reads although refused"),
            Assert(~head.read_en | head.may_read, "the head reads unannounced"),
            Assert(
                ~head.read_en | (head.slot.filled == (~head.slot.there.waits | table.fill_there())),
                "the head was told of another slot's fill",
            ),
            Assert(
                ~(back.take & wants),
                "write-back reads the store while the head needs it",
            ),
            Assert(
                ~head.read_en | table.fill_there() | head_newer,
                "the head reads a scale that is not there",
            ),
            Assert(
                ~head.store.valid | (Cat(stored.byte, stored.wide) == Cat(byte, wide)),
                "another scale is stored than the head marked",
            ),
            Assert(
                ~(head.store.valid & stored.wide & stored.byte[0]),
                "a two-byte scale is stored at an odd byte",
            ),
        ]
        return m
