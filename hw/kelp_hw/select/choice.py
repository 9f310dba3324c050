# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which of the scored pages are chosen (docs/select.md, "Scores"). One page a cycle; those that are
always chosen at once, the others from 1 cycle after the last page on."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .signatures import checked
from .top_k import TopK

__all__ = ["Choice"]


class Choice(wiring.Component):
    """Of a list of pages with their masses: those that `always` are, in the order in which they
    come; then the best of those `present`, of equal ones the first, until the masses of all chosen
    reach `target`, at most `most`. Then one item that is `none`, with what is `missing`: the masses
    of pages that are neither.

    Latency: `LATENCY` cycle from the last page to the best one at `o`. One page in each cycle
    (`INTERVAL`); the next list may begin when the item that is `none` is taken. No error cases:
    `most` beyond `depth` counts as `depth`.

    Parameters
    ----------
    depth : int
        Pages chosen at most, beside those that always are.
    mass_bits, id_bits : int

    Members
    -------
    target : in
        Of a sum of masses; holds still while a list is inside, as `most`.
    most : in
    i : in, stream
        A page, and whether it is the last of the list.
    o : out, stream
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, depth: int, mass_bits: int, id_bits: int):
        self.depth = checked("depth", depth, 1, 256)
        self.mass_bits = checked("mass_bits", mass_bits, 1, 32)
        self.id_bits = checked("id_bits", id_bits, 1, 32)
        #: of a sum over 2^10 pages: with their candidates' scores no more have a place
        self.sum_bits = mass_bits + 10
        page = {"id": id_bits, "mass": mass_bits, "always": 1, "present": 1, "last": 1}
        chosen = {"id": id_bits, "mass": mass_bits, "none": 1, "missing": self.sum_bits}
        super().__init__(
            {
                "target": In(self.sum_bits),
                "most": In(range(depth + 1)),
                "i": In(stream.Signature(data.StructLayout(page))),
                "o": Out(stream.Signature(data.StructLayout(chosen))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.best = best = TopK(
            depth=self.depth, score=self.mass_bits, id_bits=self.id_bits
        )
        held, missing = Signal(self.sum_bits), Signal(self.sum_bits)
        count, takes = Signal(range(self.depth + 1)), Signal()
        page, found = self.i.p, best.o.p
        taken = self.o.valid & self.o.ready & ~self.o.p.none
        with m.If(taken):
            m.d.sync += held.eq(held + self.o.p.mass)
        m.d.sync += Assert(~(taken & (held + self.o.p.mass)[self.sum_bits]), "a sum has no place")
        with m.FSM():
            with m.State("LOAD"):
                competes = page.present & ~page.always
                m.d.comb += [
                    self.o.valid.eq(self.i.valid & page.always),
                    self.o.p.id.eq(page.id),
                    self.o.p.mass.eq(page.mass),
                    self.i.ready.eq(self.o.ready | ~page.always),
                    best.i.valid.eq(self.i.valid & self.i.ready & (competes | page.last)),
                    best.i.p.score.eq(page.mass),
                    best.i.p.id.eq(page.id),
                    best.i.p.none.eq(~competes),
                    best.i.p.last.eq(page.last),
                ]
                with m.If(self.i.valid & self.i.ready):
                    with m.If(~page.present & ~page.always):
                        m.d.sync += missing.eq(missing + page.mass)
                    with m.If(page.last):
                        m.next = "BEST"
                m.d.sync += Assert(best.i.ready, "the best of the list before are still inside")
            with m.State("BEST"):
                m.d.comb += [
                    takes.eq(~found.none & (held < self.target) & (count < self.most)),
                    self.o.valid.eq(best.o.valid & takes),
                    self.o.p.id.eq(found.id),
                    self.o.p.mass.eq(found.score),
                    best.o.ready.eq(self.o.ready | ~takes),
                ]
                with m.If(best.o.valid & best.o.ready):
                    m.d.sync += count.eq(count + takes)
                    with m.If(found.last):
                        m.next = "END"
            with m.State("END"):
                m.d.comb += [
                    self.o.valid.eq(1),
                    self.o.p.none.eq(1),
                    self.o.p.missing.eq(missing),
                ]
                with m.If(self.o.ready):
                    m.d.sync += [held.eq(0), missing.eq(0), count.eq(0)]
                    m.next = "LOAD"
        return m
