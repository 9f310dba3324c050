# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Exact scores of stored keys (docs/select.md, "Scores"). With a product for each
element one line a cycle; a token's scores 11 cycles after its last line."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import (
    ALIGNED_BITS,
    ALIGNED_FRACTION,
    BLOCK_EXPONENT_BITS,
    SCORE_LEAST,
    SCORE_MOST,
)

from .block_form import unpack
from .signatures import SelectLayouts, checked, give

__all__ = ["KeyScore"]

_PRODUCT_BITS = 20  #: of 32 products of 8 × 8 bits, signed
_ALIGNED_MOST = (1 << ALIGNED_BITS - 1) - 1


class KeyScore(wiring.Component):
    """Scores of stored keys for all query heads of a group at once.

    Lines are brought into block form: int8 and int4 as they are stored, raw16 and fp8 as the
    quantiser would store them in int8. Of each line, for each head: d = Σ query · element, aligned
    to ALIGNED_FRACTION bits after the point and clamped. A token's lines are summed, and the sum is
    scaled and clamped. A token with a NaN has the least score.

    Latency: `LATENCY` cycles from a token's last line to `o`, one line in `INTERVAL` cycles: 11 and
    1 with 32 products. With fewer a line stays for `32 // products` cycles.
    While `o` waits, scores of one token and one line are taken where there is room for them, and
    all behind stands still.
    Errors: none; a line out of order is an assertion.

    Parameters
    ----------
    heads : int
        Query heads of a group.
    lines : int
        Lines of a token at most.
    id_bits : int
    banks : int, optional
        Groups whose queries have a place, 1 or 2.
    products : int, optional
        Elements that are multiplied in a cycle, 8, 16 or 32: each head has as many multipliers of
        8 × 8 bits.

    Members
    -------
    i : in, stream of stored_line
        The lines of a token, 0 … `last`, one token after another.
    bank, scale : in
        Of the line at `i`: whose queries it is scored by, and its token's scale.
    i_query : in, always-ready stream of query_line
        Into `put_bank`; of the bank that was used last only while `idle`.
    put_bank : in
    o : out, stream of scores
        `id` is that of the last line.
    idle : out
        No line is inside.
    """

    def __init__(
        self, *, heads: int, lines: int, id_bits: int, banks: int = 1, products: int = ELEMENTS
    ):
        layouts = self.layouts = SelectLayouts(heads=heads, lines=lines, id_bits=id_bits)
        self.heads, self.lines, self.id_bits = heads, lines, id_bits
        self.banks = checked("banks", banks, 1, 2)
        if products not in (8, 16, ELEMENTS):
            raise ValueError(f"products = {products!r} is refused; legal: 8, 16, {ELEMENTS}")
        self.products, self._beats = products, ELEMENTS // products
        super().__init__(
            {
                "i_query": In(stream.Signature(layouts.query_line, always_ready=True)),
                "bank": In(range(banks)),
                "put_bank": In(range(banks)),
                "scale": In(layouts.scale),
                "i": In(stream.Signature(layouts.stored_line)),
                "o": Out(stream.Signature(layouts.scores)),
                "idle": Out(1),
            }
        )

    @property
    def LATENCY(self) -> int:
        """Cycles from a token's last line to its scores at `o`."""
        return 10 + self._beats

    @property
    def INTERVAL(self) -> int:
        """Cycles from one line to the next at full rate."""
        return self._beats

    def elaborate(self, platform):
        m = Module()
        moves = Signal()
        # Stages 1 … 7 hold lines, 8 … 10 tokens; `o` is stage 11. Lines stay in stage 1 or come
        # into it while the others stand still; from there a part of the line goes on in each cycle,
        # and beyond stage 4, where parts are summed, the last one for all.
        valid = {k: Signal(name=f"valid{k}") for k in range(1, 11)}
        beat, ends = Signal(range(max(2, self._beats))), Signal()
        line, bank, scale = self._block_form(m, moves & ends, valid[1])
        out, out_valid = Signal(self.o.p.shape(), reset_less=True), Signal()
        inside = self.o.valid
        for each in valid.values():
            inside |= each
        give(m, self.o, out, out_valid, moves)
        m.d.comb += [
            ends.eq(beat == self._beats - 1),
            self.idle.eq(~(inside | self.i.valid)),
        ]
        if self._beats > 1:
            with m.If(valid[1] & moves):
                m.d.sync += beat.eq(beat + 1)
        used = Signal.like(bank)
        with m.If(valid[1]):
            m.d.sync += used.eq(bank)
        own = Mux(valid[1], bank, used) == self.put_bank
        m.d.sync += Assert(~self.i_query.valid | ~inside | ~own, "a query changes under a line")
        self._check_order(m, valid[1] & moves & ends, line)

        first = Signal()
        m.d.comb += first.eq(line.line == 0)
        ids = self._later(m, moves, line.id, "id", 10)
        if self._beats == 1:
            begins, ended = Const(1, 1), Const(1, 1)
        else:
            begins = self._later(m, moves, beat == 0, "begins", 4)[4]
            ended = self._later(m, moves, ends, "ended", 4)[4]
        lasts = self._later(m, moves, line.last, "last", 7)
        firsts = self._later(m, moves, first, "first", 7)
        nans = self._later(m, moves, line.nan, "nan", 7)
        factor = self._later(m, moves, scale.m, "factor", 8)[8]
        by = self._later(m, moves, scale.sh, "by", 9)[9]
        with m.If(moves):
            m.d.sync += [
                *(valid[k + 1].eq(valid[k]) for k in range(1, 10) if k not in (4, 7)),
                valid[5].eq(valid[4] & ended),
                valid[8].eq(valid[7] & lasts[7]),
                out_valid.eq(valid[10]),
                out.id.eq(ids[10]),
            ]
        # Whether the token so far has a NaN.
        none = Signal(reset_less=True)
        with m.If(moves & valid[7]):
            m.d.sync += none.eq(nans[7] | (none & ~firsts[7]))
        nones = self._later(m, moves, none, "none", 10, first=8)

        elements = [
            _part(line.element.as_value(), beat, self._beats)[8 * k : 8 * k + 8].as_signed()
            for k in range(self.products)
        ]
        element = [self._later(m, moves, each, "element", 2)[2] for each in elements]
        exponent = self._later(m, moves, line.exponent, "exponent", 2)[2]
        for head in range(self.heads):
            query, query_exponent = self._query(m, head, moves, line, bank, beat)
            up = Signal(signed(BLOCK_EXPONENT_BITS + 2), name=f"up_{head}")
            m.d.comb += up.eq(exponent + query_exponent - (12 - ALIGNED_FRACTION))
            product = self._product(m, head, moves, query, element, begins)
            aligned = self._aligned(m, head, moves, product, up)
            raw = Signal(self.layouts.token_sum, name=f"raw_{head}", reset_less=True)
            with m.If(moves & valid[7]):
                m.d.sync += raw.eq(Mux(firsts[7], 0, raw) + aligned)
            self._scaled(m, moves, raw, factor, by, nones[10], out.score[head], head)
        return m

    def _block_form(self, m, moves, held):
        """The line in stage 1, where one is `held`: in block form, with its bank and scale."""
        line = Signal(self.layouts.line)
        bank, scale = Signal.like(self.bank), Signal(self.layouts.scale)
        block = Signal(self.layouts.line)
        unpack(m, self.i.p, block.element, block.exponent, block.nan)
        m.d.comb += [
            self.i.ready.eq(~held | moves),
            *(block[name].eq(self.i.p[name]) for name in ("line", "last", "id")),
        ]
        with m.If(self.i.ready):
            m.d.sync += [
                held.eq(self.i.valid),
                line.eq(block),
                bank.eq(self.bank),
                scale.eq(self.scale),
            ]
        return line, bank, scale

    @staticmethod
    def _later(m, moves, value, name, last, first=1):
        """`value`, known in stage `first`, as it is in each stage up to `last`."""
        known = {first: value}
        for k in range(first, last):
            known[k + 1] = Signal.like(value, name=f"{name}{k + 1}", reset_less=True)
            with m.If(moves):
                m.d.sync += known[k + 1].eq(known[k])
        return known

    def _check_order(self, m, goes, line):
        """Lines come as 0, 1, … up to `last`."""
        expected = Signal(range(self.lines))
        with m.If(goes):
            m.d.sync += [
                expected.eq(Mux(line.last, 0, line.line + 1)),
                Assert(line.line == expected, "a token's lines are out of order"),
            ]

    def _query(self, m, head, moves, line, bank, beat):
        """Elements that are multiplied, and the exponent, of the head's line, in stage 2."""
        put, width = self.i_query.p, 8 * ELEMENTS
        depth = self.lines if self.banks == 1 else self.banks << len(put.line)
        rows = memory.Memory(shape=width + BLOCK_EXPONENT_BITS, depth=depth, init=())
        m.submodules[f"query_{head}"] = rows
        write, read = rows.write_port(), rows.read_port()
        m.d.comb += [
            write.en.eq(self.i_query.valid & (put.head == head)),
            write.addr.eq(Cat(put.line, self.put_bank)),
            write.data.eq(Cat(put.element.as_value(), put.exponent)),
            read.en.eq(moves),
            read.addr.eq(Cat(line.line, bank)),
        ]
        beat2 = Const(0) if self._beats == 1 else self._later(m, moves, beat, f"beat_{head}_", 2)[2]
        part = _part(read.data[:width], beat2, self._beats)
        elements = [part[8 * k : 8 * k + 8].as_signed() for k in range(self.products)]
        return elements, read.data[width:].as_signed()

    def _product(self, m, head, moves, query, element, begins):
        """Stages 2 … 4: the line's product with the query, in stage 5; `begins` in stage 4."""

        def register(bits, name):
            return Signal(signed(bits), name=f"{name}_{head}", reset_less=True)

        products = [register(16, f"product{k}") for k in range(self.products)]
        fours = [register(18, f"four{k}") for k in range(self.products // 4)]
        whole = register(_PRODUCT_BITS, "whole")
        with m.If(moves):
            for k, (q, product) in enumerate(zip(query, products, strict=True)):
                m.d.sync += product.eq(q * element[k])
            for k, four in enumerate(fours):
                a, b, c, d = products[4 * k : 4 * k + 4]
                m.d.sync += four.eq((a + b) + (c + d))
            sums = fours
            while len(sums) > 1:
                sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
            if self._beats == 1:
                m.d.sync += whole.eq(sums[0])
            else:
                m.d.sync += whole.eq(Mux(begins, 0, whole) + sums[0])
        return whole

    def _aligned(self, m, head, moves, whole, up):
        """`up`, in stage 2, goes with the product; stages 5 and 6: the product shifted by it and
        clamped, in stage 7."""
        kept = Signal(signed(ALIGNED_BITS.bit_length() + 1), name=f"kept_{head}")
        m.d.comb += kept.eq(_clamped(up, -ALIGNED_BITS, ALIGNED_BITS))
        kept5 = self._later(m, moves, kept, f"kept_{head}_", 5, first=2)[5]
        left, right = Signal(range(ALIGNED_BITS + 1)), Signal(range(ALIGNED_BITS + 1))
        shifted = Signal(
            signed(_PRODUCT_BITS + ALIGNED_BITS), name=f"shifted_{head}", reset_less=True
        )
        aligned = Signal(signed(ALIGNED_BITS), name=f"aligned_{head}", reset_less=True)
        m.d.comb += [left.eq(kept5), right.eq(-kept5)]
        with m.If(moves):
            m.d.sync += [
                shifted.eq(Mux(kept5[-1], whole >> right, whole << left)),
                aligned.eq(_clamped(shifted, -_ALIGNED_MOST, _ALIGNED_MOST)),
            ]
        return aligned

    def _scaled(self, m, moves, raw, factor, by, none, score, head):
        """Stages 8 … 10: the token's sum times m · 2^−sh, clamped, to `score`."""
        product = Signal(signed(len(raw) + 17), name=f"scaled_{head}", reset_less=True)
        down = Signal.like(product, name=f"down_{head}", reset_less=True)
        with m.If(moves):
            m.d.sync += [
                product.eq(raw * factor),
                down.eq(product >> by),
                score.eq(Mux(none, SCORE_LEAST, _clamped(down, SCORE_LEAST, SCORE_MOST))),
            ]


def _part(whole, beat, beats):
    """Of `whole` the part whose turn it is."""
    return whole.word_select(beat, len(whole) // beats) if beats > 1 else whole


def _clamped(value, least, most):
    return Mux(value > most, most, Mux(value < least, least, value))
