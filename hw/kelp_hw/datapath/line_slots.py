# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The buffer of DRAM lines that hold payloads (docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS

from ..lib.wide_memory import WideMemory
from .quarters import QUARTER_BITS, QUARTERS
from .signatures import FrameFlush, LineHead, LineLookUp, WriteBack, fill_layout, table_geometry
from .slot_table import SlotTable

__all__ = ["LineSlots"]


class LineSlots(wiring.Component):
    """`line_slots` DRAM lines, each in two copies: *fill*, written by R, and *store*, written by
    the head. Four bits per slot say which is newer.

    **Cover.** A line that all ops ahead of it together store needs no read: `look.wait` tells
    whether the op in D2 awaits the fill. **Write-back.** `write_back.due` falls while a read takes
    the store's only read port; after 15 such cycles in a row `head.refuse` keeps reads away for
    one.

    Latency: `head.read_slot` to `head.line` 1 cycle, `write_back.take` to `write_back.data` 1
    cycle. Throughput: one look-up, one read, one store and one fill a cycle.

    Contradictions are `Assert`ed; a fill with an error makes `head.error` of its reads.

    Parameters
    ----------
    config : Config

    Members
    -------
    look : In(LineLookUp), from the front
    head : In(LineHead), from the head
    fill : in, always-ready stream of fill_layout
        What memory answers, for the slot that awaits it.
    written : in, always-ready stream of a slot
        Memory confirms a write.
    write_back : Out(WriteBack)
        Dirty lines; one strobe per quarter.
    flush : In(FrameFlush)
    drain : in
        Everything dirty is due.
    idle : out
        Nothing is used, under way or dirty.
    """

    def __init__(self, *, config: Config):
        self.config = config
        self.slots = n = config.line_slots
        super().__init__(
            {
                "look": In(LineLookUp(config)),
                "head": In(LineHead(config)),
                "fill": In(stream.Signature(fill_layout(n), always_ready=True)),
                "written": In(stream.Signature(ceil_log2(n), always_ready=True)),
                "write_back": Out(
                    WriteBack(slots=n, address_bits=config.dram_line_bits, strobes=QUARTERS)
                ),
                "flush": In(FrameFlush(frame_bits=config.frame_bits)),
                "drain": In(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self.slots
        # With one allocation per cycle, 128 slots and a memory of 64 cycles, a slot is written back
        # and confirmed just before its turn comes again; less time for that means more for
        # combining.
        m.submodules.table = table = SlotTable(**table_geometry(self.config, n), lead=n * 9 // 16)
        look, head, back = self.look, self.head, self.write_back
        connect(m, flipped(look.slot), table.look)
        connect(m, flipped(head.slot), table.head)
        connect(m, flipped(self.written), table.written)
        connect(m, flipped(self.flush), table.flush)
        m.d.comb += [
            table.fill.valid.eq(self.fill.valid),
            table.fill.p.eq(self.fill.p.slot),
            table.drain.eq(self.drain),
            self.idle.eq(table.idle),
        ]

        # - which quarters: `cover` runs with the look-up, `newer` with the head -------------------
        cover = [Signal(n, name=f"cover_{q}") for q in range(QUARTERS)]
        newer = [Signal(n, name=f"newer_{q}") for q in range(QUARTERS)]
        covered = Signal()
        # of the op at the head: known early in the cycle, as `head_filled` is
        head_newer = Signal(QUARTERS)
        newer_there, newer_next = Signal(QUARTERS), Signal(QUARTERS)
        m.d.comb += [
            covered.eq(
                Cat(
                    ~look.quarters[q] | (cover[q] & table.match).any() for q in range(QUARTERS)
                ).all()
            ),
            look.wait.eq(look.reads & ~covered),
            table.want_fill.eq(look.wait),
            newer_there.eq(Cat((newer[q] & head.slot.there.select).any() for q in range(QUARTERS))),
            newer_next.eq(Cat((newer[q] & head.slot.next.select).any() for q in range(QUARTERS))),
            table.store_complete.eq(
                Cat(
                    head.mark_quarters[q] | (newer[q] & head.slot.mark.p).any()
                    for q in range(QUARTERS)
                ).all()
            ),
        ]
        # What is stored in the cycle before counts. What an op is about to allocate is no slot of
        # one ahead of it. Of the op behind, what is known is put together a cycle later.
        moved, hit, known_there, known_next, marks = (
            Signal(),
            Signal(),
            Signal(QUARTERS),
            Signal(QUARTERS),
            Signal(QUARTERS),
        )
        m.d.sync += [
            moved.eq(head.slot.moves),
            hit.eq((head.slot.mark.p & head.slot.next.select).any()),
            known_next.eq(newer_next),
            marks.eq(Mux(head.slot.mark.valid, head.mark_quarters, 0)),
            known_there.eq(
                newer_there
                | Mux(
                    head.slot.mark.valid & (head.slot.mark.p & head.slot.there.select).any(),
                    head.mark_quarters,
                    0,
                )
            ),
        ]
        m.d.comb += head_newer.eq(Mux(moved, known_next | Mux(hit, marks, 0), known_there))
        attached = Mux(look.slot.fire, look.slot.select, 0)
        allocated = Mux(table.may_allocate, look.slot.select, 0)
        stored = Mux(head.slot.mark.valid, head.slot.mark.p, 0)
        for q in range(QUARTERS):
            m.d.sync += [
                cover[q].eq(
                    (cover[q] & ~allocated) | Mux(look.stores & look.quarters[q], attached, 0)
                ),
                newer[q].eq((newer[q] & ~allocated) | Mux(head.mark_quarters[q], stored, 0)),
            ]

        # - the two copies -------------------------------------------------------------------------
        m.submodules.fill = fill = WideMemory(
            depth=n, shape=data.StructLayout({"data": LINE_BITS, "error": 1}), apart=True
        )
        m.submodules.store = store = WideMemory(depth=n, shape=LINE_BITS, granularity=QUARTER_BITS)
        m.d.comb += [
            fill.write_en.eq(self.fill.valid),
            fill.write_address.eq(self.fill.p.slot),
            fill.write_data.data.eq(self.fill.p.data),
            fill.write_data.error.eq(self.fill.p.error),
            fill.read_en.eq(1),
            fill.read_address.eq(head.read_slot),
            store.write_address.eq(head.store.p.slot),
            store.write_data.eq(head.store.p.data),
            store.write_en.eq(Mux(head.store.valid, head.store.p.quarters, 0)),
        ]

        # The store's one read port: the head takes it for what is newer there, write-back
        # otherwise.
        wants = Signal()
        held = Signal(QUARTERS)
        used = Signal(QUARTERS)
        starved = Signal(4)  # cycles that a due line has waited for the port
        # Whether the head does read comes too late to ask.
        m.d.comb += wants.eq(head.may_read & ~head.refuse & (head_newer & head.read_quarters).any())
        with m.If(~(table.out.valid & wants)):
            m.d.sync += starved.eq(0)
        with m.Elif(~head.refuse):
            m.d.sync += starved.eq(starved + 1)
        m.d.sync += [held.eq(head_newer), used.eq(head.read_quarters)]
        m.d.comb += [
            back.due.valid.eq(table.out.valid & ~wants),
            back.due.slot.eq(table.out.p.slot),
            back.due.address.eq(table.out.p.address),
            head.refuse.eq(starved.all()),
            store.read_en.eq(1),
            store.read_address.eq(Mux(wants, head.read_slot, table.out.p.slot)),
            table.out.ready.eq(back.take),
            back.data.eq(store.read_data),
            head.line.eq(
                Cat(
                    Mux(
                        held[q],
                        store.read_data.word_select(q, QUARTER_BITS),
                        fill.read_data.data.word_select(q, QUARTER_BITS),
                    )
                    for q in range(QUARTERS)
                )
            ),
            head.error.eq(fill.read_data.error & (used & ~held).any()),
        ]
        out_select = Signal(n)
        m.d.comb += out_select.eq(Cat(table.out.p.slot == i for i in range(n)))
        m.d.sync += back.strobes.eq(Cat((newer[q] & out_select).any() for q in range(QUARTERS)))

        m.d.sync += [
            Assert(~(head.read_en & head.refuse), "the head reads although refused"),
            Assert(~head.read_en | head.may_read, "the head reads unannounced"),
            Assert(
                ~head.read_en | (head.slot.filled == (~head.slot.there.waits | table.fill_there())),
                "the head was told of another slot's fill",
            ),
            Assert(
                ~head.may_read | (head_newer == newer_there),
                "the head was told of another slot's quarters",
            ),
            Assert(
                ~(back.take & wants),
                "write-back reads the store while the head needs it",
            ),
            Assert(
                ~head.read_en
                | table.fill_there()
                | ((head_newer & head.read_quarters) == head.read_quarters),
                "the head reads what is not there",
            ),
        ]
        return m
