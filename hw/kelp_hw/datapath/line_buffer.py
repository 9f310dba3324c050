# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the two buffers of DRAM lines have in common (docs/design.md §4): slot table, the copy that
memory fills, and who reads the copy that the head stores to. One look-up, one read, one store and
one fill a cycle; a read gives its line after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS

from ..lib.protected import CheckedWord, Fault, fault_ports, memory_of, merged
from ..lib.wide_memory import WideMemory
from .signatures import FrameFlush, SlotErrors, WriteBack, fill_layout, written_layout
from .slot_table import SlotTable

__all__ = ["LineBuffer"]


class LineBuffer(wiring.Component):
    """`slots` DRAM lines, each in two copies: *fill*, written by R, and *store*, written by the
    head. :class:`.line_slots.LineSlots` and :class:`.scale_slots.ScaleSlots` add what says which of
    them is newer.

    **Write-back.** A due line is not taken while a read takes the store's only read port; after 15
    such cycles in a row `head.refuse` keeps reads away for one.

    Latency `LATENCY` cycle, from a read of a slot to its line and from `write_back.take` to
    `write_back.data`. Throughput: one look-up, one read, one store and one fill a cycle.
    Contradictions are `Assert`ed; memory's errors make `head.error` of the reads that they concern,
    and are for `errors` to report (:class:`.slot_table.SlotTable`).

    Parameters
    ----------
    config : Config
    slots : int
    strobes : int
        Parts of a line that write-back tells apart.
    look, head : wiring.Signature
        What the front and the head ask.

    Members
    -------
    look : in, from the front
    head : in, from the head
    fill : in, always-ready stream of fill_layout
        What memory answers, for the slot that awaits it.
    written : in, always-ready stream of written_layout
        Memory answers a write.
    errors : In(SlotErrors)
    write_back : Out(WriteBack)
        Dirty lines. `due.address` is a code word, as it was read.
    flush : In(FrameFlush)
    drain : in
        Everything dirty is due.
    idle : out
        Nothing is used, under way or dirty.
    fault : out, Fault
        With `config.protect`: of what is read and used of either copy and of the slot table. None
        can be rebuilt.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(
        self,
        *,
        config: Config,
        slots: int,
        strobes: int,
        look: wiring.Signature,
        head: wiring.Signature,
    ):
        self.config, self.slots = config, slots
        address_bits = CheckedWord(config.dram_line_bits, protect=config.protect).code_bits
        super().__init__(
            {
                "look": In(look),
                "head": In(head),
                "fill": In(stream.Signature(fill_layout(slots), always_ready=True)),
                "written": In(stream.Signature(written_layout(slots), always_ready=True)),
                "errors": In(SlotErrors(config, slots)),
                "write_back": Out(
                    WriteBack(slots=slots, address_bits=address_bits, strobes=strobes)
                ),
                "flush": In(FrameFlush(frame_bits=config.frame_bits)),
                "drain": In(1),
                "idle": Out(1),
                **fault_ports(config.protect, "fault"),
            }
        )

    def _join(self, m: Module, table: SlotTable) -> None:
        """Connect the ports that are the slot table's."""
        connect(m, flipped(self.look.slot), table.look)
        connect(m, flipped(self.head.slot), table.head)
        connect(m, flipped(self.written), table.written)
        connect(m, flipped(self.flush), table.flush)
        connect(m, flipped(self.errors), table.errors)
        m.d.comb += [
            table.fill.valid.eq(self.fill.valid),
            table.fill.p.slot.eq(self.fill.p.slot),
            table.fill.p.error.eq(self.fill.p.error),
            table.drain.eq(self.drain),
            self.idle.eq(table.idle),
        ]

    def _filled(self, m: Module, slot: Value) -> Value:
        """The copy *fill*: what memory gave for `slot`, one cycle later."""
        m.submodules.fill = fill = memory_of(
            WideMemory,
            depth=self.slots,
            shape=LINE_BITS,
            protect=self.config.protect,
            transparent=False,
            block=self.config.wide_blocks,
        )
        m.d.comb += [
            fill.write_en.eq(self.fill.valid),
            fill.write_address.eq(self.fill.p.slot),
            fill.write_data.eq(self.fill.p.data),
            fill.read_en.eq(1),
            fill.read_address.eq(slot),
        ]
        return fill.read_data

    def _judge(self, m: Module, table: SlotTable, from_fill: Value) -> None:
        """Whether what the head has read is no good. `from_fill`: some of it is the fill's, one
        cycle after the slot was addressed."""
        select, bad, lost = Signal(self.slots), Signal(), Signal()
        there = self.head.slot.there.select
        m.d.sync += [
            select.eq(there),
            bad.eq((table.bad & there).any()),
            lost.eq((table.lost & there).any()),
        ]
        m.d.comb += [
            self.head.error.eq(lost | (bad & from_fill)),
            # What is lost already will be poisoned, or has been.
            table.spoil.eq(Mux(self.head.merge & bad & from_fill & ~lost, select, 0)),
        ]

    def _fault(self, m: Module, fill, from_fill, row, from_store, *others) -> None:
        """`fault` of what the head has read of the memory `fill` and of the store, and write-back
        of the latter, one cycle before, and of `others`. `from_fill`: the head uses some of the
        fill; `row`: (corrected, uncorrected) parts of the store's row; `from_store`: whether the
        head uses some of either."""
        copies, read, taken = Signal(Fault), Signal(), Signal()
        m.d.sync += [read.eq(self.head.read_en), taken.eq(self.write_back.take)]
        strobes = self.write_back.strobes
        written = Cat(strobe.replicate(len(row[0]) // len(strobes)) for strobe in strobes)
        # Where memory's errors leave no line, nothing that is read counts, and a row of the fill
        # may never have been written.
        good = read & ~self.head.error
        for kind, parts, shown, used in zip(
            Fault.members, row, (fill.corrected, fill.uncorrected), from_store, strict=True
        ):
            m.d.comb += copies[kind].eq(
                (good & from_fill & shown.any()) | Mux(taken, (parts & written).any(), good & used)
            )
        m.d.comb += self.fault.eq(merged(copies, *others))

    def _take_turns(self, m: Module, table: SlotTable, wants: Value) -> None:
        """The store's one read port: the head's while it `wants` it, else write-back's."""
        head, back = self.head, self.write_back
        starved = Signal(4)  # cycles that a due line has waited for the port
        # Critical path: `head.refuse` is a register, for it decides whether the head's op goes.
        with m.If(~(table.out.valid & wants)):
            m.d.sync += [starved.eq(0), head.refuse.eq(0)]
        with m.Elif(~head.refuse):
            m.d.sync += [starved.eq(starved + 1), head.refuse.eq(starved == 14)]
        m.d.comb += [
            back.due.valid.eq(table.out.valid),
            back.due.slot.eq(table.out.p.slot),
            back.due.address.eq(table.out.p.address),
            # Critical path: `wants`, which meets nothing else on its way to the slot table.
            back.take.eq(table.out.valid & back.turn & ~wants),
            table.out.ready.eq(back.turn & ~wants),
        ]
        there = ~head.slot.there.waits | table.fill_there()
        m.d.sync += [
            Assert(head.refuse == starved.all()),
            Assert(~(head.read_en & head.refuse), "the head reads although refused"),
            Assert(~head.read_en | head.may_read, "the head reads unannounced"),
            Assert(
                ~head.read_en | (head.slot.filled == there),
                "the head was shown another slot's fill",
            ),
            Assert(~(back.take & wants), "write-back reads the store while the head needs it"),
        ]
