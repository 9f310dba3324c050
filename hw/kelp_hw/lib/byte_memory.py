# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A memory with check bits that is written byte by byte. A read is answered after 1 cycle; one
access a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .protected import CheckedWord, Fault

__all__ = ["ByteMemory"]

_PART = 32  #: bits of a code word: what a host or the sequencer writes at once


class ByteMemory(wiring.Component):
    """Rows of 32-bit words, written by bytes. Each word is a code word: a write reads its row and
    stores the words that it touches, merged, in the next cycle. A word of which a part is written,
    and that is beyond repair, stays as it is.

    `read_data` is the row with what was written to it in the cycle before; `look_data`, where there
    is a second reader, what the row was then. Reset clears nothing, and after power-up a row may be
    no code word: the owner holds `clear`, or writes each word whole before it is used.

    Latency: `LATENCY` cycle from an address to its row. Interval: `INTERVAL`.

    Parameters
    ----------
    depth : int
    words : int
        32-bit words of a row.
    protect : bool
    look : bool
        A second reader.

    Members
    -------
    address, write, write_data : in
        A bit of `write` for each byte.
    clear : in
        Held high for `depth` cycles or more, it makes every row zero. What is written meanwhile is
        lost.
    read_data : out
    corrected, uncorrected : out
        A bit for each word of the row that was addressed; of a write for those alone that it has
        touched and not written whole. The owner says whether they are used.
    look_en, look_address : in
    look_data : out
        Stands while `look_en` is off.
    look_fault : out, Fault
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, depth: int, words: int, protect: bool, look: bool = False):
        self.depth, self.look, bits = depth, look, _PART * words
        self.word = CheckedWord(bits, protect=protect, parts=[_PART] * words if protect else None)
        second = {
            "look_en": In(1),
            "look_address": In(range(depth)),
            "look_data": Out(bits),
            "look_fault": Out(Fault),
        }
        super().__init__(
            {
                "address": In(range(depth)),
                "write": In(bits // 8),
                "write_data": In(bits),
                "clear": In(1),
                "read_data": Out(bits),
                "corrected": Out(words),
                "uncorrected": Out(words),
                **(second if look else {}),
            }
        )

    @property
    def fault(self) -> Value:
        """`Fault` of the row."""
        return Fault(Cat(self.corrected.any(), self.uncorrected.any()))

    def elaborate(self, platform):
        m = Module()
        word = self.word
        m.submodules.memory = self.memory_rows = rows = memory.Memory(
            shape=word.code_bits, depth=self.depth, init=()
        )
        write = rows.write_port(granularity=word.widths[0] if word.protect else 8)
        read = rows.read_port(transparent_for=(write,))
        m.d.comb += [read.en.eq(1), read.addr.eq(self.address)]
        row, single, double = word.decode(m, read.data)
        m.d.comb += self.read_data.eq(row)
        if self.look:
            look = rows.read_port(transparent_for=(write,))
            looked, *faults = word.decode(m, look.data)
            m.d.comb += [
                look.en.eq(self.look_en),
                look.addr.eq(self.look_address),
                self.look_data.eq(looked),
                self.look_fault.corrected.eq(faults[0].any()),
                self.look_fault.uncorrected.eq(faults[1].any()),
            ]
        if not word.protect:
            m.d.comb += [
                write.addr.eq(self.address),
                write.data.eq(self.write_data),
                write.en.eq(self.write),
            ]
            self._clear(m, write)
            return m
        given, strobe = Signal.like(self.write_data), Signal.like(self.write)
        given_at = Signal.like(self.address)
        m.d.sync += [
            given.eq(self.write_data),
            strobe.eq(Mux(self.clear, 0, self.write)),
            given_at.eq(self.address),
        ]
        mask = Cat(bit.replicate(8) for bit in strobe)
        parts = [strobe.word_select(i, _PART // 8) for i in range(len(word.parts))]
        whole = Cat(part.all() for part in parts)
        touched = Cat(part.any() for part in parts)
        counts = Mux(strobe.any(), touched & ~whole, ~0)
        m.d.comb += [
            self.read_data.eq((row & ~mask) | (given & mask)),
            write.addr.eq(given_at),
            write.data.eq(word.encode(m, self.read_data)),
            write.en.eq(touched & (whole | ~double)),
            self.corrected.eq(single & counts),
            self.uncorrected.eq(double & counts),
        ]
        self._clear(m, write)
        return m

    def _clear(self, m, write):
        """Takes the write port while `clear` is on: zero is a code word."""
        sweep = Signal(range(self.depth))
        with m.If(self.clear):
            m.d.sync += sweep.eq(Mux(sweep == self.depth - 1, 0, sweep + 1))
            m.d.comb += [write.addr.eq(sweep), write.data.eq(0), write.en.eq(~0)]
