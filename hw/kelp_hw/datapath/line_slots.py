# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The buffer of DRAM lines that hold payloads (docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS, Format

from ..lib.wide_memory import WideMemory
from .slot_table import SlotTable

__all__ = [
    "LineSlots",
    "QUARTERS",
    "aligned_payload",
    "alignment_of",
    "placed_payload",
    "placement_of",
    "quarters_of",
]

QUARTERS = 4  #: grain of the line buffer: the smallest payload, an int4 line
_QUARTER_BITS = LINE_BITS // QUARTERS


def is_eight_bit(code: Value) -> Value:
    return (code == Format.FP8_E4M3) | (code == Format.FP8_E5M2) | (code == Format.INT8)


def quarters_of(code: Value, part: Value) -> Value:
    """Which quarters of its DRAM line a payload takes: all (raw16), half `part`, or quarter `part`
    (int4)."""
    half = Mux(part[0], 0b1100, 0b0011)
    return Mux(
        code == Format.INT4,
        Cat(part == n for n in range(QUARTERS)),
        Mux(is_eight_bit(code), half, 0b1111),
    )


def alignment_of(code: Value, part: Value) -> Value:
    """What steers :func:`aligned_payload`: the first quarter of the payload, and whether it is an
    upper half. To be registered: each bit has 128 loads."""
    int4, upper = code == Format.INT4, is_eight_bit(code) & part[0]
    return Cat(int4 & part[0], Mux(int4, part[1], upper), upper)


def aligned_payload(line: Value, alignment: Value) -> Value:
    """A payload of a DRAM line, moved to the lowest bits; what lies above it is left as it is."""
    q = [line.word_select(n, _QUARTER_BITS) for n in range(QUARTERS)]
    odd, high, upper = alignment
    return Cat(
        Mux(high, Mux(odd, q[3], q[2]), Mux(odd, q[1], q[0])), Mux(upper, q[3], q[1]), q[2], q[3]
    )


def placement_of(code: Value) -> Value:
    """What steers :func:`placed_payload`: int4, eight bits, either. To be registered."""
    return Cat(code == Format.INT4, is_eight_bit(code), (code == Format.INT4) | is_eight_bit(code))


def placed_payload(payload: Value, placement: Value) -> Value:
    """A payload repeated over the DRAM line, so that every quarter that it may be meant for holds
    the right bits."""
    q = [payload.word_select(n, _QUARTER_BITS) for n in range(QUARTERS)]
    int4, eight, narrow = placement
    return Cat(
        q[0],
        Mux(int4, q[0], q[1]),
        Mux(narrow, q[0], q[2]),
        Mux(int4, q[0], Mux(eight, q[1], q[3])),
    )


class LineSlots(wiring.Component):
    """`line_slots` DRAM lines, each in two copies: *fill*, written by R, and *store*, written by
    the head. Four bits per slot say which is newer.

    The look-up, release, memory and flush ports are those of :class:`.slot_table.SlotTable` (member
    `table`). Beyond it:

    **Cover.** A line that all ops ahead of it together store needs no read: `wait` tells whether
    the op in the look-up stage has to await the fill, given `quarters` (what it touches), `reads`
    and `stores`. **Head.** `read_slot` (one-hot in `table.read_select`) is read in every cycle; one
    cycle later `line` is what the slot held, as far as `read_quarters` go, and `error` tells that a
    quarter of them came with an error response. `may_read` keeps write-back from the store; it
    comes with every `read_en`, which says that the line counts. There must be no `read_en` under
    `refuse`, which lets write-back at the store once in 16 cycles. `store_*` writes quarters; it
    follows the head's `table.store_en`, which has set the masks by `head_quarters`, by one cycle.
    **Write-back.** `out_take` (only with `out_ready`) reads the slot offered; one cycle later
    `out_data` and `out_quarters` stand for one cycle.

    Parameters
    ----------
    config : Config
    position_bits : int
    """

    def __init__(self, *, config: Config, position_bits: int):
        n = config.line_slots
        # With one allocation per cycle, 128 slots and a memory of 64 cycles, a slot is written back
        # and confirmed just before its turn comes again; less time for that means more for
        # combining.
        self.table = SlotTable(
            slots=n,
            frame_bits=config.frame_bits,
            offset_bits=config.offset_bits,
            address_bits=config.dram_line_bits,
            position_bits=position_bits,
            lead=n * 9 // 16,
        )
        self.slots = n
        bits = self.table.slot_bits
        super().__init__(
            {
                "quarters": In(QUARTERS),
                "reads": In(1),
                "stores": In(1),
                "wait": Out(1),
                "fill_en": In(1),
                "fill_slot": In(bits),
                "fill_data": In(LINE_BITS),
                "fill_error": In(1),
                "head_quarters": In(QUARTERS),
                "full": Out(1),
                "may_read": In(1),
                "read_en": In(1),
                "read_slot": In(bits),
                "read_quarters": In(QUARTERS),
                "line": Out(LINE_BITS),
                "error": Out(1),
                "store_en": In(1),
                "store_slot": In(bits),
                "store_quarters": In(QUARTERS),
                "store_data": In(LINE_BITS),
                "out_ready": Out(1),
                "refuse": Out(1),
                "out_take": In(1),
                "out_data": Out(LINE_BITS),
                "out_quarters": Out(QUARTERS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.table = table = self.table
        n = self.slots

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
                    ~self.quarters[q] | (cover[q] & table.match).any() for q in range(QUARTERS)
                ).all()
            ),
            self.wait.eq(self.reads & ~covered),
            table.want_fill.eq(self.wait),
            newer_there.eq(Cat((newer[q] & table.read_select).any() for q in range(QUARTERS))),
            newer_next.eq(Cat((newer[q] & table.next_select).any() for q in range(QUARTERS))),
            self.full.eq(
                Cat(
                    self.head_quarters[q] | (newer[q] & table.head_select).any()
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
            moved.eq(table.head_moves),
            hit.eq((table.head_select & table.next_select).any()),
            known_next.eq(newer_next),
            marks.eq(Mux(table.store_en, self.head_quarters, 0)),
            known_there.eq(
                newer_there
                | Mux(
                    table.store_en & (table.head_select & table.read_select).any(),
                    self.head_quarters,
                    0,
                )
            ),
        ]
        m.d.comb += head_newer.eq(Mux(moved, known_next | Mux(hit, marks, 0), known_there))
        attached = Mux(table.fire, table.select, 0)
        allocated = Mux(table.may_allocate, table.select, 0)
        stored = Mux(table.store_en, table.head_select, 0)
        for q in range(QUARTERS):
            m.d.sync += [
                cover[q].eq(
                    (cover[q] & ~allocated) | Mux(self.stores & self.quarters[q], attached, 0)
                ),
                newer[q].eq((newer[q] & ~allocated) | Mux(self.head_quarters[q], stored, 0)),
            ]

        # - the two copies -------------------------------------------------------------------------
        m.submodules.fill = fill = WideMemory(
            depth=n, shape=data.StructLayout({"data": LINE_BITS, "error": 1}), apart=True
        )
        m.submodules.store = store = WideMemory(depth=n, shape=LINE_BITS, granularity=_QUARTER_BITS)
        m.d.comb += [
            fill.write_en.eq(self.fill_en),
            fill.write_address.eq(self.fill_slot),
            fill.write_data.data.eq(self.fill_data),
            fill.write_data.error.eq(self.fill_error),
            fill.read_en.eq(1),
            fill.read_address.eq(self.read_slot),
            store.write_address.eq(self.store_slot),
            store.write_data.eq(self.store_data),
            store.write_en.eq(Mux(self.store_en, self.store_quarters, 0)),
        ]

        # The store's one read port: the head takes it for what is newer there, write-back
        # otherwise.
        wants = Signal()
        held = Signal(QUARTERS)
        used = Signal(QUARTERS)
        starved = Signal(4)  # cycles that a due line has waited for the port
        with m.If(~table.out_valid | self.out_ready):
            m.d.sync += starved.eq(0)
        with m.Elif(~self.refuse):
            m.d.sync += starved.eq(starved + 1)
        # Whether the head does read comes too late to ask.
        m.d.comb += wants.eq(self.may_read & ~self.refuse & (head_newer & self.read_quarters).any())
        m.d.sync += [held.eq(head_newer), used.eq(self.read_quarters)]
        m.d.comb += [
            self.out_ready.eq(~wants),
            self.refuse.eq(starved.all()),
            store.read_en.eq(1),
            store.read_address.eq(Mux(wants, self.read_slot, table.out_slot)),
            table.out_take.eq(self.out_take),
            self.out_data.eq(store.read_data),
            self.line.eq(
                Cat(
                    Mux(
                        held[q],
                        store.read_data.word_select(q, _QUARTER_BITS),
                        fill.read_data.data.word_select(q, _QUARTER_BITS),
                    )
                    for q in range(QUARTERS)
                )
            ),
            self.error.eq(fill.read_data.error & (used & ~held).any()),
        ]
        out_select = Signal(n)
        m.d.comb += out_select.eq(Cat(table.out_slot == i for i in range(n)))
        m.d.sync += self.out_quarters.eq(
            Cat((newer[q] & out_select).any() for q in range(QUARTERS))
        )

        m.d.sync += [
            Assert(~(self.read_en & self.refuse), "the head reads although refused"),
            Assert(~self.read_en | self.may_read, "the head reads unannounced"),
            Assert(
                ~self.may_read | (head_newer == newer_there),
                "the head was told of another slot's quarters",
            ),
            Assert(
                ~self.out_take | self.out_ready,
                "write-back reads the store while the head needs it",
            ),
            Assert(
                ~self.read_en
                | (table.read_select & table.filled).any()
                | ((head_newer & self.read_quarters) == self.read_quarters),
                "the head reads what is not there",
            ),
        ]
        return m
