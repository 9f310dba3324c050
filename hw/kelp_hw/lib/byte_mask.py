# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One bit per byte of each slot, cleared by one owner and set by another, in memories with one
write port each. One clear and one set a cycle, seen in `look_mask` after 1 cycle; reads are
combinational."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from kelp_spec.formats import LINE_BYTES

__all__ = ["ByteMask"]


class ByteMask(wiring.Component):
    """A mask of 64 bits per slot. A bit is set when its copies in two memories differ, so that
    clearing writes one memory and setting the other.

    Latency: reads are combinational; a clear or a set in `look_mask` is seen `LATENCY` cycle later,
    a set in `read_mask` in the same cycle (`READ_LATENCY`). One clear and one set in each cycle
    (`INTERVAL`). Errors: clearing and setting one slot in the same cycle is an assertion.

    Parameters
    ----------
    slots : int
        A power of two.

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
    """

    LATENCY = 1
    READ_LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, slots: int):
        self.slots = slots
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
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.cleared = cleared = memory.Memory(shape=LINE_BYTES, depth=self.slots, init=())
        m.submodules.set = flipped = memory.Memory(shape=LINE_BYTES, depth=self.slots, init=())

        def read(rows: memory.Memory, slot: Value) -> Value:
            port = rows.read_port(domain="comb")
            m.d.comb += port.addr.eq(slot)
            return port.data

        clear, flip = cleared.write_port(), flipped.write_port()
        ours, theirs = read(flipped, self.set_slot), read(cleared, self.set_slot)
        m.d.comb += [
            clear.en.eq(self.clear_en),
            clear.addr.eq(self.clear_slot),
            clear.data.eq(read(flipped, self.clear_slot)),
            flip.en.eq(self.set_en),
            flip.addr.eq(self.set_slot),
            flip.data.eq((ours & ~self.set_bytes) | (~theirs & self.set_bytes)),
        ]
        now = self.set_en & (self.set_slot == self.read_slot)
        m.d.comb += [
            self.look_mask.eq(read(flipped, self.look_slot) ^ read(cleared, self.look_slot)),
            self.look_set.eq(self.set_en & (self.set_slot == self.look_slot)),
            self.read_mask.eq(
                read(flipped, self.read_slot) ^ read(cleared, self.read_slot)
                | (self.set_bytes & now.replicate(LINE_BYTES))
            ),
        ]
        m.d.sync += Assert(
            ~(self.clear_en & self.set_en & (self.clear_slot == self.set_slot)),
            "a slot is cleared and set at once",
        )
        return m
