# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The summary of a page from its stored keys (docs/select.md, "Summaries"). One line a cycle in any
order; the summary follows 3 cycles after the last, one line a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import BLOCK_EXPONENT_BITS, BLOCK_EXPONENT_LEAST, SUMMARY_BITS

from .block_form import unpack
from .signatures import SelectLayouts

__all__ = ["SummaryBuild"]

_MOST_SHIFT = 8  #: leaves nothing of an element but its sign


class SummaryBuild(wiring.Component):
    """Accumulates least and largest values of a page's lines, each place in a token by itself, and
    gives the summary when the page ends.

    Latency: `LATENCY` cycles from a page's last line to the summary's first. One line in each cycle
    (`INTERVAL`); the next page may begin when its last is taken. Errors: none; a line with a NaN
    does not count, and of a place without a line the bounds are 0.

    Parameters
    ----------
    lines : int
        Lines of a token at most.
    id_bits : int

    Members
    -------
    token_lines : in
        Lines of a token, less one; holds still while a page is inside.
    i : in, stream of stored_line
        The lines of a page that were written, in any order; `last` ends the page, not a token.
    o : out, stream of summary_line
        Line 0 … `token_lines`; `id` is that of the page's last line.
    """

    LATENCY = 3
    INTERVAL = 1

    def __init__(self, *, lines: int, id_bits: int):
        layouts = self.layouts = SelectLayouts(heads=1, lines=lines, id_bits=id_bits)
        self.lines, self.id_bits = lines, id_bits
        super().__init__(
            {
                "token_lines": In(range(lines)),
                "i": In(stream.Signature(layouts.stored_line)),
                "o": Out(stream.Signature(layouts.summary_line)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # The high bounds are kept negated: both are minima then.
        bounds = data.ArrayLayout(signed(SUMMARY_BITS), 2 * ELEMENTS)
        row = data.StructLayout({"bound": bounds, "exponent": signed(BLOCK_EXPONENT_BITS)})
        m.submodules.rows = rows = memory.Memory(shape=row, depth=self.lines, init=())
        # Asynchronous: a line changes the row that the one before it may have written.
        write, read = rows.write_port(), rows.read_port(domain="comb")
        counted = Signal(self.lines)
        block, at = Signal(self.layouts.line), Signal(range(self.lines))
        gives, valid = Signal(), Signal()
        line = Signal.like(block, reset_less=True)
        unpack(m, self.i.p, block.low, block.exponent, block.nan)
        m.d.comb += self.i.ready.eq(~gives & ~(valid & line.last))
        taken = self.i.valid & self.i.ready
        m.d.comb += [block[name].eq(self.i.p[name]) for name in ("line", "last", "id")]
        m.d.sync += valid.eq(taken)
        with m.If(taken):
            m.d.sync += line.eq(block)
        self._combine(m, line, read.data, counted, write.data)
        m.d.comb += [
            read.addr.eq(Mux(gives, at, line.line)),
            write.addr.eq(line.line),
            write.en.eq(valid & ~line.nan),
        ]
        m.d.sync += Assert(~valid | (line.line <= self.token_lines), "a line beyond its token")
        with m.If(write.en):
            m.d.sync += counted.eq(counted | (Const(1, self.lines) << line.line)[: self.lines])
        with m.If(valid & line.last):
            m.d.sync += [gives.eq(1), at.eq(0)]
        moves = self.o.ready | ~self.o.valid
        with m.If(moves):
            some = counted.bit_select(at, 1)
            exponent = Mux(some, read.data.exponent, BLOCK_EXPONENT_LEAST)
            kept = Mux(some, read.data.bound.as_value(), 0)
            m.d.sync += [
                self.o.valid.eq(gives),
                self.o.p.data.eq(Cat(kept, exponent[:BLOCK_EXPONENT_BITS])),
                self.o.p.line.eq(at),
                self.o.p.last.eq(at == self.token_lines),
                self.o.p.id.eq(line.id),
            ]
            with m.If(gives):
                m.d.sync += at.eq(at + 1)
                with m.If(at == self.token_lines):
                    m.d.sync += [gives.eq(0), counted.eq(0)]
        return m

    def _combine(self, m, line, kept, counted, changed):
        """The row with the line in it. Both are rounded down to the larger exponent, the line to
        one bit less."""
        by = Signal(signed(BLOCK_EXPONENT_BITS + 1))
        grows, down = Signal(range(_MOST_SHIFT + 1)), Signal(range(_MOST_SHIFT + 1))
        some = Signal()
        m.d.comb += [
            some.eq(counted.bit_select(line.line, 1)),
            by.eq(line.exponent - kept.exponent),
            grows.eq(_bounded(by)),
            down.eq(Mux(some & (by < 0), _bounded(1 - by), 1)),
        ]
        with m.If(some & (by < 0)):
            m.d.comb += changed.exponent.eq(kept.exponent)
        with m.Else():
            m.d.comb += changed.exponent.eq(line.exponent)
        for k in range(2 * ELEMENTS):
            element = line.low[k % ELEMENTS]
            new = Signal(signed(SUMMARY_BITS), name=f"new{k}")
            old = Signal(signed(SUMMARY_BITS), name=f"old{k}")
            m.d.comb += [
                new.eq((-element if k >= ELEMENTS else element) >> down),
                old.eq(kept.bound[k] >> grows),
                changed.bound[k].eq(Mux(some & (old < new), old, new)),
            ]


def _bounded(by):
    """A shift, 0 … _MOST_SHIFT."""
    return Mux(by < 0, 0, Mux(by > _MOST_SHIFT, _MOST_SHIFT, by))
