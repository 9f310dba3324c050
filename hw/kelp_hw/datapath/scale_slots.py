# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The buffer of DRAM lines that hold scales (docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS, LINE_BYTES, SCALE_BITS

from ..lib.byte_mask import ByteMask
from ..lib.wide_memory import WideMemory
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
    position_bits : int
    """

    def __init__(self, *, config: Config, position_bits: int):
        n = config.scale_slots
        self.config = config
        table = SlotTable if config.codecs else NoSlots
        self.table = table(
            slots=n,
            frame_bits=config.frame_bits,
            offset_bits=config.offset_bits,
            address_bits=config.dram_line_bits,
            position_bits=position_bits,
            lead=n * 5 // 8,
        )
        self.slots = n
        bits = self.table.slot_bits
        super().__init__(
            {
                "reads": In(1),
                "fill_en": In(1),
                "fill_slot": In(bits),
                "fill_data": In(LINE_BITS),
                "fill_error": In(1),
                "head_slot": In(bits),
                "head_byte": In(6),
                "head_wide": In(1),
                "may_read": In(1),
                "read_en": In(1),
                "scale": Out(SCALE_BITS),
                "error": Out(1),
                "store_en": In(1),
                "store_slot": In(bits),
                "store_byte": In(6),
                "store_wide": In(1),
                "store_scale": In(SCALE_BITS),
                "out_ready": Out(1),
                "refuse": Out(1),
                "out_take": In(1),
                "out_data": Out(LINE_BITS),
                "out_bytes": Out(LINE_BYTES),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = self.table
        if not self.config.codecs:
            return m
        m.submodules.newer = newer = ByteMask(slots=self.slots)
        m.d.comb += table.want_fill.eq(self.reads)

        def bytes_of(byte, wide):
            return Cat((byte == k) | (wide & (byte[1:] == k >> 1)) for k in range(LINE_BYTES))

        head_newer, byte, wide, marks = Signal(), Signal(6), Signal(), Signal(LINE_BYTES)
        upper = Signal()  # the pair's upper byte is the scale
        m.d.comb += [
            newer.clear_en.eq(table.may_allocate),
            newer.clear_slot.eq(table.victim_slot),
            newer.set_bytes.eq(marks),
            newer.look_slot.eq(self.head_slot),
            head_newer.eq(
                newer.look_mask.bit_select(self.head_byte, 1)
                | (
                    newer.look_set
                    & (byte[1:] == self.head_byte[1:])
                    & (wide | (byte[0] == self.head_byte[0]))
                )
            ),
            # Pages are written upwards; whoever stores elsewhere later makes the slot dirty again.
            table.store_complete.eq(
                self.head_byte[1:].all() & (self.head_byte[0] | self.head_wide)
            ),
            newer.read_slot.eq(table.out_slot),
        ]

        m.submodules.fill = fill = WideMemory(
            depth=self.slots, shape=data.StructLayout({"data": LINE_BITS, "error": 1}), apart=True
        )
        m.submodules.store = store = memory.Memory(shape=LINE_BITS, depth=self.slots, init=())
        store_write = store.write_port(granularity=8)
        store_read = store.read_port(transparent_for=(store_write,))
        m.d.comb += [
            fill.write_en.eq(self.fill_en),
            fill.write_address.eq(self.fill_slot),
            fill.write_data.data.eq(self.fill_data),
            fill.write_data.error.eq(self.fill_error),
            fill.read_en.eq(1),
            fill.read_address.eq(self.head_slot),
            store_write.addr.eq(self.store_slot),
            store_write.data.eq(
                Mux(
                    self.store_wide, self.store_scale, self.store_scale[0:8].replicate(2)
                ).replicate(LINE_BYTES // 2)
            ),
            store_write.en.eq(Mux(self.store_en, marks, 0)),
        ]

        wants = Signal()
        held = Signal()
        starved = Signal(4)  # cycles that a due line has waited for the port
        with m.If(~table.out_valid | self.out_ready):
            m.d.sync += starved.eq(0)
        with m.Elif(~self.refuse):
            m.d.sync += starved.eq(starved + 1)
        # Which copy is newer comes too late to ask, and whether the head does read: scale lines are
        # seldom written.
        m.d.comb += wants.eq(self.may_read & ~self.refuse)
        # A store's bytes are marked a cycle late: the memory of marks lies far from the head. They
        # are those that the store writes in that cycle.
        m.d.sync += [
            held.eq(head_newer),
            byte.eq(self.head_byte),
            wide.eq(self.head_wide),
            upper.eq(~self.head_wide & self.head_byte[0]),
            marks.eq(bytes_of(self.head_byte, self.head_wide)),
            newer.set_en.eq(table.store_en & table.head_select.any()),
            newer.set_slot.eq(self.head_slot),
        ]
        pair = Signal(SCALE_BITS)
        m.d.comb += [
            self.out_ready.eq(~wants),
            self.refuse.eq(starved.all()),
            store_read.en.eq(1),
            store_read.addr.eq(Mux(wants, self.head_slot, table.out_slot)),
            table.out_take.eq(self.out_take),
            self.out_data.eq(store_read.data),
            pair.eq(
                Mux(
                    held,
                    store_read.data.word_select(byte[1:], SCALE_BITS),
                    fill.read_data.data.word_select(byte[1:], SCALE_BITS),
                )
            ),
            self.scale.eq(Cat(Mux(upper, pair[8:], pair[:8]), Mux(wide, pair[8:], 0))),
            self.error.eq(fill.read_data.error & ~held),
        ]
        m.d.sync += self.out_bytes.eq(newer.read_mask)

        m.d.sync += [
            Assert(~(self.read_en & self.refuse), "the head reads although refused"),
            Assert(~self.read_en | self.may_read, "the head reads unannounced"),
            Assert(
                ~self.out_take | self.out_ready,
                "write-back reads the store while the head needs it",
            ),
            Assert(
                ~self.read_en | (table.read_select & table.filled).any() | head_newer,
                "the head reads a scale that is not there",
            ),
            Assert(
                ~self.store_en | (Cat(self.store_byte, self.store_wide) == Cat(byte, wide)),
                "another scale is stored than the head marked",
            ),
            Assert(
                ~(self.store_en & self.store_wide & self.store_byte[0]),
                "a two-byte scale is stored at an odd byte",
            ),
        ]
        return m
