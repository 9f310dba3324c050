# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One bit per byte of each slot, cleared by one owner and set by another, in memories with one write port each."""

from __future__ import annotations

from amaranth.hdl import Module, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from kelp_spec.formats import LINE_BYTES

__all__ = ["ByteMask"]


class ByteMask(wiring.Component):
    """A mask of 64 bits per slot. A bit is set when its copies in two memories differ, so that clearing writes one memory and setting the other.

    Reads show the state before this cycle's clear and set; both take effect at the end of the cycle. Clearing and setting one slot in the same cycle is
    not allowed. Throughput: one clear and one set per cycle.

    Parameters
    ----------
    slots : int

    Members
    -------
    clear_en, clear_slot
    set_en, set_slot, set_bytes; `set_mask` is the mask of `set_slot`
    read_slot, read_mask
    """

    def __init__(self, *, slots: int):
        self.slots = slots
        bits = exact_log2(slots)
        super().__init__({
            "clear_en": In(1), "clear_slot": In(bits),
            "set_en": In(1), "set_slot": In(bits), "set_bytes": In(LINE_BYTES), "set_mask": Out(LINE_BYTES),
            "read_slot": In(bits), "read_mask": Out(LINE_BYTES),
        })

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
            clear.en.eq(self.clear_en), clear.addr.eq(self.clear_slot), clear.data.eq(read(flipped, self.clear_slot)),
            flip.en.eq(self.set_en), flip.addr.eq(self.set_slot), flip.data.eq((ours & ~self.set_bytes) | (~theirs & self.set_bytes)),
            self.set_mask.eq(ours ^ theirs),
            self.read_mask.eq(read(flipped, self.read_slot) ^ read(cleared, self.read_slot)),
        ]
        return m
