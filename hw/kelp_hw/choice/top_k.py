# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The best of a list by score, exact, sorted (docs/select.md). One item a cycle in, and one a cycle
out, the first 1 cycle after the last came."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Shape, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .signatures import checked

__all__ = ["TopK"]


class TopK(wiring.Component):
    """Keeps the `depth` items of a list with the largest scores, and gives them the largest first;
    of equal ones, that which came first. Pages come in ascending order, so the lower page.

    Latency: `LATENCY` cycle from the last item of a list to the first one at `o`. One item in each
    cycle (`INTERVAL`); the next list may begin when the last of the kept ones is taken. No error
    cases.

    Parameters
    ----------
    depth : int
        Items kept at most: as many comparators.
    score : shape-like
    id_bits : int

    Members
    -------
    i : in, stream
        An item; `last` ends a list, `none` says that this is no item: so a list may be empty.
    o : out, stream
        The same; of a list without items one with `none`.
    idle : out
        Nothing is held.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, depth: int, score, id_bits: int):
        self.depth = checked("depth", depth, 1, 256)
        self.score, self.id_bits = Shape.cast(score), checked("id_bits", id_bits, 1, 32)
        item = data.StructLayout({"score": self.score, "id": id_bits, "none": 1, "last": 1})
        super().__init__(
            {"i": In(stream.Signature(item)), "o": Out(stream.Signature(item)), "idle": Out(1)}
        )

    def elaborate(self, platform):
        m = Module()
        kept = data.StructLayout({"score": self.score, "id": self.id_bits})
        cells = [Signal(kept, name=f"cell{k}", reset_less=True) for k in range(self.depth)]
        held, drains = Signal(self.depth), Signal()
        new = self.i.p
        m.d.comb += [
            self.i.ready.eq(~drains),
            self.idle.eq(~drains & ~held.any() & ~self.i.valid),
            self.o.valid.eq(drains),
            self.o.p.score.eq(cells[0].score),
            self.o.p.id.eq(cells[0].id),
            self.o.p.none.eq(~held[0]),
            self.o.p.last.eq(~held[1] if self.depth > 1 else 1),
        ]
        # Where the new one goes before; cells are sorted, so these are all from some place on.
        beats = Signal(self.depth)
        m.d.comb += beats.eq(
            Cat(~held[k] | (new.score > cell.score) for k, cell in enumerate(cells))
        )
        takes = self.i.valid & self.i.ready & ~new.none
        with m.If(takes):
            m.d.sync += held.eq(Cat(1, held))
            for k, cell in enumerate(cells):
                before = Mux(beats[k - 1], cells[k - 1].as_value(), Cat(new.score, new.id))
                with m.If(beats[k]):
                    m.d.sync += cell.eq(before if k else Cat(new.score, new.id))
        with m.If(self.i.valid & self.i.ready & new.last):
            m.d.sync += drains.eq(1)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += held.eq(held[1:])
            m.d.sync += [cell.eq(after) for cell, after in zip(cells[:-1], cells[1:], strict=True)]
            with m.If(self.o.p.last):
                m.d.sync += drains.eq(0)
        m.d.sync += [
            Assert((held & (held + 1)) == 0, "a cell is held behind an empty one"),
            Assert((~beats & (~beats + 1)[: self.depth]) == 0, "the cells are not sorted"),
        ]
        return m
