# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The buffer of DRAM lines that hold scales (docs/design.md §4): one read and one store a cycle,
read latency 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import memory

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS, LINE_BYTES, SCALE_BITS

from ..lib.byte_mask import ByteMask
from ..lib.protected import CheckedWord, used
from .line_buffer import LineBuffer
from .signatures import ScaleHead, ScaleLookUp
from .slot_table import NoSlots, SlotTable

__all__ = ["ScaleSlots"]


class ScaleSlots(LineBuffer):
    """The :class:`.line_buffer.LineBuffer` of `scale_slots` lines of scales. A mask of 64 bits per
    slot says which bytes of the store are newer than the fill.

    A read always awaits the fill, even of a scale that an op ahead stores, because a scale line
    serves 32 or 64 lines and one needless read among them costs less than a second mask.

    A scale is one byte at `head.place.byte`, or two (`wide`) at an even one.

    Without codecs no op has a scale: there are no slots, and nothing comes out.

    Latency and throughput: as the base class.

    Parameters
    ----------
    config : Config

    Members
    -------
    look : In(ScaleLookUp)
    head : In(ScaleHead)
    fill, written, errors, flush, drain, idle, fault : as in the base class
    write_back : Out(WriteBack), one strobe per byte
    """

    def __init__(self, *, config: Config):
        super().__init__(
            config=config,
            slots=config.scale_slots,
            strobes=LINE_BYTES,
            look=ScaleLookUp(config),
            head=ScaleHead(config),
        )
        #: Two bytes, each a code word: what a store writes and what the head reads.
        self.pair = CheckedWord(SCALE_BITS, protect=config.protect, parts=_bytes(SCALE_BITS))
        #: The rows of the memory *store*.
        self.words = {
            "store": CheckedWord(LINE_BITS, protect=config.protect, parts=_bytes(LINE_BITS))
        }

    def elaborate(self, platform):
        m = Module()
        kind = SlotTable if self.config.codecs else NoSlots
        m.submodules.table = table = kind(
            config=self.config, slots=self.slots, lead=self.slots * 5 // 8
        )
        self._join(m, table)
        if not self.config.codecs:
            return m
        head, place = self.head, self.head.place
        m.submodules.newer = newer = ByteMask(slots=self.slots, protect=self.config.protect)
        # Of the op that was at the head in the cycle before, which stores now.
        byte, wide, marks = Signal.like(place.byte), Signal(), Signal(LINE_BYTES)
        head_newer = Signal()
        m.d.comb += [
            table.want_fill.eq(self.look.reads),
            # Pages are written upwards; a later store elsewhere makes the slot dirty again.
            table.store_complete.eq(place.byte[1:].all() & (place.byte[0] | place.wide)),
            newer.clear_en.eq(table.may_allocate),
            newer.clear_slot.eq(table.victim_slot),
            newer.set_bytes.eq(marks),
            newer.look_slot.eq(place.slot),
            newer.read_slot.eq(table.out.p.slot),
            head_newer.eq(
                newer.look_mask.bit_select(place.byte, 1)
                | (
                    newer.look_set
                    & (byte[1:] == place.byte[1:])
                    & (wide | (byte[0] == place.byte[0]))
                )
            ),
        ]
        # Critical path: marks go to their memory one cycle after `head.slot.mark`. They are those
        # of the store in that cycle.
        m.d.sync += [
            byte.eq(place.byte),
            wide.eq(place.wide),
            marks.eq(_bytes_of(place)),
            newer.set_en.eq(head.slot.mark.valid & head.slot.mark.p.any()),
            newer.set_slot.eq(place.slot),
            self.write_back.strobes.eq(newer.read_mask),
        ]
        copies = self._copies(m, table, head_newer, marks, Cat(byte, wide))
        if self.config.protect:
            self._fault(
                m,
                *copies,
                table.fault,
                used(newer.look_fault, head.read_en),
                used(newer.read_fault, self.write_back.take),
                newer.set_fault,
            )
        return m

    def _copies(
        self,
        m: Module,
        table: SlotTable,
        head_newer: Value,
        marks: Value,
        before: Value,
    ) -> tuple:
        """Both copies, and the head's scale out of them. `before`: `byte` and `wide` of
        `head.place` in the cycle before. What `_fault` asks of them."""
        head, place, stored = self.head, self.head.place, self.head.store.p
        fill = self._filled(m, place.slot)
        word, code = self.words["store"], self.pair
        m.submodules.store = store = memory.Memory(shape=word.code_bits, depth=self.slots, init=())
        write = store.write_port(granularity=code.widths[0])
        read = store.read_port(transparent_for=(write,))
        row, *row_faults = word.decode(m, read.data)
        wants, held, pair = Signal(), Signal(), Signal(SCALE_BITS)
        upper = Signal()  # the pair's upper byte is the scale
        self._take_turns(m, table, wants)
        m.d.sync += [held.eq(head_newer), upper.eq(~place.wide & place.byte[0])]
        byte, wide = before[:-1], before[-1]
        stored_pair, *pair_faults = code.decode(m, read.data.word_select(byte[1:], code.code_bits))
        m.d.comb += [
            # Critical path: waits neither for `head_newer` nor for `head.read_en`; scale lines
            # are seldom written.
            wants.eq(head.may_read & ~head.refuse),
            write.addr.eq(stored.place.slot),
            write.data.eq(
                code.encode(
                    m, Mux(stored.place.wide, stored.scale, stored.scale[0:8].replicate(2))
                ).replicate(LINE_BYTES // 2)
            ),
            write.en.eq(Mux(head.store.valid, marks, 0)),
            read.en.eq(1),
            read.addr.eq(Mux(wants, place.slot, table.out.p.slot)),
            self.write_back.data.eq(row),
            pair.eq(
                Mux(
                    held,
                    stored_pair,
                    fill.word_select(byte[1:], SCALE_BITS),
                )
            ),
            head.scale.eq(Cat(Mux(upper, pair[8:], pair[:8]), Mux(wide, pair[8:], 0))),
        ]
        self._judge(m, table, ~held)
        m.d.sync += [
            Assert(
                ~head.read_en | table.fill_there() | head_newer,
                "the head reads a scale that is not there",
            ),
            Assert(
                ~head.store.valid | (Cat(stored.place.byte, stored.place.wide) == before),
                "another scale is stored than the head marked",
            ),
            Assert(
                ~(head.store.valid & stored.place.wide & stored.place.byte[0]),
                "a two-byte scale is stored at an odd byte",
            ),
        ]
        halves = Mux(held, Cat(~upper, upper | wide), 0)
        from_store = [(parts & halves).any() for parts in pair_faults]
        return m.submodules.fill, ~held, row_faults, from_store


def _bytes(bits: int) -> list[int]:
    """The parts of a row in which each byte is one."""
    return [8] * (bits // 8)


def _bytes_of(place) -> Value:
    """The bytes of a line of scales that one scale takes, one bit each."""
    return Cat(
        (place.byte == k) | (place.wide & (place.byte[1:] == k >> 1)) for k in range(LINE_BYTES)
    )
