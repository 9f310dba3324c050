# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The buffer of DRAM lines that hold payloads (docs/design.md §4): one read and one store a cycle,
read latency 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS

from ..lib.protected import memory_of
from ..lib.wide_memory import WideMemory
from .line_buffer import LineBuffer
from .quarters import QUARTER_BITS, QUARTERS
from .signatures import LineHead, LineLookUp
from .slot_table import SlotTable, one_hot

__all__ = ["LineSlots"]

_PART_BITS = 64  #: of a row: with check bits of their own


def _parts_of(quarters: Value) -> Value:
    """A bit for each part of the row that `quarters` covers."""
    return Cat(quarter.replicate(QUARTER_BITS // _PART_BITS) for quarter in quarters)


class LineSlots(LineBuffer):
    """The :class:`.line_buffer.LineBuffer` of `line_slots` payload lines. Four bits per slot say
    which quarters of the store are newer than the fill.

    **Cover.** A line that all ops ahead of it together store needs no read: `look.wait` tells
    whether the op in D2 awaits the fill.

    Latency and throughput: as the base class; `look` to `look.wait` in the same cycle.

    Parameters
    ----------
    config : Config

    Members
    -------
    look : In(LineLookUp)
    head : In(LineHead)
    fill, written, errors, flush, drain, idle, fault : as in the base class
    write_back : Out(WriteBack), one strobe per quarter
    """

    def __init__(self, *, config: Config):
        super().__init__(
            config=config,
            slots=config.line_slots,
            strobes=QUARTERS,
            look=LineLookUp(config),
            head=LineHead(config),
        )

    def elaborate(self, platform):
        m = Module()
        # With one allocation per cycle, 128 slots and a memory of 64 cycles, a slot is written back
        # and confirmed just before its turn comes again; less time for that means more for
        # combining.
        m.submodules.table = table = SlotTable(
            config=self.config, slots=self.slots, lead=self.slots * 9 // 16
        )
        self._join(m, table)
        self._cover(m, table)
        newer, head_newer = self._newer(m, table)
        self._copies(m, table, head_newer)
        out_select = Signal(self.slots)
        m.d.comb += out_select.eq(one_hot(table.out.p.slot, self.slots))
        m.d.sync += self.write_back.strobes.eq(Cat((q & out_select).any() for q in newer))
        return m

    def _cover(self, m: Module, table: SlotTable) -> None:
        """Which quarters of each slot the ops ahead of the look-up store."""
        look = self.look
        cover = [Signal(self.slots, name=f"cover_{q}") for q in range(QUARTERS)]
        covered = Signal()
        m.d.comb += [
            covered.eq(
                Cat(
                    ~look.quarters[q] | (cover[q] & table.match).any() for q in range(QUARTERS)
                ).all()
            ),
            look.wait.eq(look.reads & ~covered),
            table.want_fill.eq(look.wait),
        ]
        attached = Mux(look.slot.fire, look.slot.select, 0)
        allocated = Mux(table.may_allocate, look.slot.select, 0)
        for q in range(QUARTERS):
            m.d.sync += cover[q].eq(
                (cover[q] & ~allocated) | Mux(look.stores & look.quarters[q], attached, 0)
            )

    def _newer(self, m: Module, table: SlotTable) -> tuple[list[Signal], Signal]:
        """Which quarters of each slot, and which of the op's at the head, have been stored. The
        latter is known early in the cycle, as `head.slot.filled` is."""
        head, slot = self.head, self.head.slot
        newer = [Signal(self.slots, name=f"newer_{q}") for q in range(QUARTERS)]
        head_newer, newer_there, newer_next = (Signal(QUARTERS) for _ in range(3))
        m.d.comb += [
            newer_there.eq(Cat((q & slot.there.select).any() for q in newer)),
            newer_next.eq(Cat((q & slot.next.select).any() for q in newer)),
            table.store_complete.eq(
                Cat(
                    head.mark_quarters[q] | (newer[q] & slot.mark.p).any() for q in range(QUARTERS)
                ).all()
            ),
        ]
        # What is stored in the cycle before counts. What an op is about to allocate is no slot of
        # one ahead of it. Of the op behind, what is known is put together a cycle later.
        moved, hit = Signal(), Signal()
        known_there, known_next, marks = (Signal(QUARTERS) for _ in range(3))
        here = slot.mark.valid & (slot.mark.p & slot.there.select).any()
        m.d.sync += [
            moved.eq(slot.moves),
            hit.eq((slot.mark.p & slot.next.select).any()),
            known_next.eq(newer_next),
            marks.eq(Mux(slot.mark.valid, head.mark_quarters, 0)),
            known_there.eq(newer_there | Mux(here, head.mark_quarters, 0)),
        ]
        m.d.comb += head_newer.eq(Mux(moved, known_next | Mux(hit, marks, 0), known_there))
        allocated = Mux(table.may_allocate, self.look.slot.select, 0)
        stored = Mux(slot.mark.valid, slot.mark.p, 0)
        for q in range(QUARTERS):
            m.d.sync += newer[q].eq((newer[q] & ~allocated) | Mux(head.mark_quarters[q], stored, 0))
        m.d.sync += Assert(
            ~head.may_read | (head_newer == newer_there),
            "the head was shown another slot's quarters",
        )
        return newer, head_newer

    def _copies(self, m: Module, table: SlotTable, head_newer: Signal) -> None:
        """Both copies, and the head's line out of them."""
        head = self.head
        fill = self._filled(m, head.read_slot)
        m.submodules.store = store = memory_of(
            WideMemory,
            depth=self.slots,
            shape=LINE_BITS,
            protect=self.config.protect,
            granularity=_PART_BITS if self.config.protect else QUARTER_BITS,
        )
        wants, held, used = Signal(), Signal(QUARTERS), Signal(QUARTERS)
        self._take_turns(m, table, wants)
        m.d.sync += [held.eq(head_newer), used.eq(head.read_quarters)]
        stored = head.store.p.quarters
        if self.config.protect:
            stored = _parts_of(stored)
        m.d.comb += [
            # For what is newer in the store. Critical path: does not wait for `head.read_en`.
            wants.eq(head.may_read & ~head.refuse & (head_newer & head.read_quarters).any()),
            store.write_address.eq(head.store.p.slot),
            store.write_data.eq(head.store.p.data),
            store.write_en.eq(Mux(head.store.valid, stored, 0)),
            store.read_en.eq(1),
            store.read_address.eq(Mux(wants, head.read_slot, table.out.p.slot)),
            self.write_back.data.eq(store.read_data),
            head.line.eq(
                Cat(
                    Mux(
                        held[q],
                        store.read_data.word_select(q, QUARTER_BITS),
                        fill.word_select(q, QUARTER_BITS),
                    )
                    for q in range(QUARTERS)
                )
            ),
        ]
        self._judge(m, table, (used & ~held).any())
        if self.config.protect:
            row, from_store = (store.corrected, store.uncorrected), _parts_of(used & held)
            self._fault(
                m,
                m.submodules.fill,
                (used & ~held).any(),
                row,
                [(parts & from_store).any() for parts in row],
                table.fault,
            )
        m.d.sync += Assert(
            ~head.read_en
            | table.fill_there()
            | ((head_newer & head.read_quarters) == head.read_quarters),
            "the head reads what is not there",
        )
