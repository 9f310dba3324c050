# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One bit per byte of each slot, cleared by one owner and set by another, in memories with one
write port each. One clear and one set a cycle, seen in `look_mask` after 1 cycle; reads are
combinational."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from kelp_spec.formats import LINE_BYTES

from .protected import CheckedWord, Fault, fault_ports, used

__all__ = ["ByteMask"]


class ByteMask(wiring.Component):
    """A mask of 64 bits per slot. A bit is set when its copies in two memories differ, so that
    clearing writes one memory and setting the other.

    Protected, the rows of both are code words, and so is what they differ in: the code is linear.
    A mask is decoded from that difference, and a set writes its row such that the difference is a
    code word again. So a row that was never written is no error: clearing makes the difference
    zero.

    Latency: reads are combinational; a clear or a set in `look_mask` is seen `LATENCY` cycle later,
    a set in `read_mask` in the same cycle (`READ_LATENCY`). One clear and one set in each cycle
    (`INTERVAL`). Errors: clearing and setting one slot in the same cycle is an assertion.

    Parameters
    ----------
    slots : int
        A power of two.
    protect : bool
        The rows carry check bits, with encoder and decoder combinational.

    Members
    -------
    clear_en, clear_slot : in
        Clears all bits of the slot.
    set_en, set_slot, set_bytes : in
        Sets the bits of `set_bytes` in the slot's mask.
    look_slot : in
    look_mask, look_set : out
        The slot's mask before this cycle's clear and set, and whether this cycle's set is of the
        slot.
    read_slot : in
    read_mask : out
        The slot's mask after this cycle's set and before its clear.
    look_fault, read_fault : out, Fault
        With `protect`: of `look_mask` and `read_mask`, whether these are used or not.
    set_fault : out, Fault
        With `protect`: of the mask to which bytes are added in this cycle.
    """

    LATENCY = 1
    READ_LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, slots: int, protect: bool = False):
        self.slots = slots
        self.word = CheckedWord(LINE_BYTES, protect=protect)
        bits = exact_log2(slots)
        super().__init__(
            {
                "clear_en": In(1),
                "clear_slot": In(bits),
                "set_en": In(1),
                "set_slot": In(bits),
                "set_bytes": In(LINE_BYTES),
                "look_slot": In(bits),
                "look_mask": Out(LINE_BYTES),
                "look_set": Out(1),
                "read_slot": In(bits),
                "read_mask": Out(LINE_BYTES),
                **fault_ports(protect, "look_fault", "read_fault", "set_fault"),
            }
        )

    def elaborate(self, platform):
        m = Module()
        word, bits = self.word, self.word.code_bits
        m.submodules.cleared = cleared = memory.Memory(shape=bits, depth=self.slots, init=())
        m.submodules.set = flipped = memory.Memory(shape=bits, depth=self.slots, init=())

        def read(rows: memory.Memory, slot: Value) -> Value:
            port = rows.read_port(domain="comb")
            m.d.comb += port.addr.eq(slot)
            return port.data

        def mask(slot: Value) -> tuple[Value, Value]:
            """A slot's mask, and its `Fault`."""
            row = read(flipped, slot) ^ read(cleared, slot)
            if not word.protect:
                return row, Const(0, 2)
            code = Signal(bits)
            m.d.comb += code.eq(row)
            row, single, double = word.decode(m, code)
            return row, Cat(single, double)

        clear, flip = cleared.write_port(), flipped.write_port()
        if word.protect:
            theirs, after = read(cleared, self.set_slot), Signal(LINE_BYTES)
            before, set_fault = mask(self.set_slot)
            set_row = theirs ^ word.encode(m, after)
            m.d.comb += [
                after.eq(before | self.set_bytes),
                self.set_fault.eq(used(Fault(set_fault), self.set_en)),
            ]
        else:
            ours, theirs = read(flipped, self.set_slot), read(cleared, self.set_slot)
            set_row = (ours & ~self.set_bytes) | (~theirs & self.set_bytes)
        m.d.comb += [
            clear.en.eq(self.clear_en),
            clear.addr.eq(self.clear_slot),
            clear.data.eq(read(flipped, self.clear_slot)),
            flip.en.eq(self.set_en),
            flip.addr.eq(self.set_slot),
            flip.data.eq(set_row),
        ]
        now = self.set_en & (self.set_slot == self.read_slot)
        (looked, look_fault), (known, read_fault) = mask(self.look_slot), mask(self.read_slot)
        m.d.comb += [
            self.look_mask.eq(looked),
            self.look_set.eq(self.set_en & (self.set_slot == self.look_slot)),
            self.read_mask.eq(known | (self.set_bytes & now.replicate(LINE_BYTES))),
        ]
        if word.protect:
            m.d.comb += [self.look_fault.eq(look_fault), self.read_fault.eq(read_fault)]
        m.d.sync += Assert(
            ~(self.clear_en & self.set_en & (self.clear_slot == self.set_slot)),
            "a slot is cleared and set at once",
        )
        return m
