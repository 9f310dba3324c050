# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which of the scored pages are chosen (docs/select.md, "Scores"). One page a cycle; those that are
always chosen at once, the others from 1 cycle after the last page on."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .signatures import checked
from .top_k import TopK

__all__ = ["Choice"]


class Choice(wiring.Component):
    """Of a list of pages with their masses: those that `always` are, in the order in which they
    come; then the best of those `present` that have mass, of equal ones the first, until the masses
    of all chosen reach `target`, at most `most`. Then one item that is `none`, with what is
    `missing`: the masses of pages that are not `present`.

    With `wants` there are, between the best, items of pages that are `wanted`: pages that are not
    present and would be chosen, were all there; in that order, those that always are first, marked
    `always`, the others with their masses. Each comes before all that are chosen and worse.

    Latency: `LATENCY` cycle from the last page to the best one at `o`. One page in each cycle
    (`INTERVAL`); the next list may begin when the item that is `none` is taken. With `wants` that
    item comes 1 cycle later, and 1 more for each of them. No error cases:
    `most` beyond `depth` counts as `depth`.

    Parameters
    ----------
    depth : int
        Pages chosen at most, beside those that always are.
    mass_bits, id_bits : int
    wants : bool, optional
        At most two pages `always` are.

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

    def __init__(self, *, depth: int, mass_bits: int, id_bits: int, wants: bool = False):
        self.depth = checked("depth", depth, 1, 256)
        self.mass_bits = checked("mass_bits", mass_bits, 1, 32)
        self.id_bits, self.wants = checked("id_bits", id_bits, 1, 32), wants
        #: of a sum over 2^10 pages: with their candidates' scores no more have a place
        self.sum_bits = mass_bits + 10
        page = {"id": id_bits, "mass": mass_bits, "always": 1, "present": 1, "last": 1}
        chosen = {"id": id_bits, "mass": mass_bits, "none": 1, "missing": self.sum_bits}
        chosen |= {"wanted": 1, "always": 1} if wants else {}
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
        if self.wants:
            taken &= ~self.o.p.wanted
        loads, ends = Signal(), Signal()
        if self.wants:
            wanted, stands = self._want(m, loads, ends), Signal()
            wants = wanted.valid & ~stands
            m.d.sync += stands.eq(self.o.valid & ~self.o.ready & ~self.o.p.wanted)
        else:
            wants = Const(0)
        with m.If(taken):
            m.d.sync += held.eq(held + self.o.p.mass)
        m.d.sync += Assert(~(taken & (held + self.o.p.mass)[self.sum_bits]), "a sum has no place")
        m.d.comb += self.o.p.missing.eq(missing)
        with m.FSM() as fsm:
            m.d.comb += [loads.eq(fsm.ongoing("LOAD")), ends.eq(fsm.ongoing("END"))]
            with m.State("LOAD"):
                competes = page.present & ~page.always & (page.mass != 0)
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
                    with m.If(~page.present):
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
                    best.o.ready.eq((self.o.ready | ~takes) & ~wants),
                ]
                if self.wants:
                    with m.If(wants):
                        self._offer(m, wanted)
                with m.If(best.o.valid & best.o.ready):
                    m.d.sync += count.eq(count + takes)
                    with m.If(found.last):
                        m.next = "WANT" if self.wants else "END"
            if self.wants:
                with m.State("WANT"):
                    with m.If(wanted.valid):
                        self._offer(m, wanted)
                    with m.If(wanted.over):
                        m.next = "END"
            with m.State("END"):
                m.d.comb += [self.o.valid.eq(1), self.o.p.none.eq(1)]
                with m.If(self.o.ready):
                    m.d.sync += [held.eq(0), missing.eq(0), count.eq(0)]
                    m.next = "LOAD"
        return m

    def _offer(self, m, wanted):
        m.d.comb += [
            self.o.valid.eq(1),
            self.o.p.wanted.eq(1),
            self.o.p.id.eq(wanted.id),
            self.o.p.mass.eq(wanted.mass),
            self.o.p.always.eq(wanted.always),
            wanted.ready.eq(self.o.ready),
        ]

    def _want(self, m, loads, ends):
        """What is wanted, one page after another: the best of all are gone through while those
        chosen leave."""
        m.submodules.all = every = TopK(
            depth=self.depth, score=self.mass_bits, id_bits=self.id_bits + 1
        )
        page, found, all_held = self.i.p, every.o.p, Signal(self.sum_bits)
        count, gone = Signal(range(self.depth + 1)), [Signal(self.id_bits) for _ in range(2)]
        lacks, competes, asks, over = Signal(2), Signal(), Signal(), Signal()
        w = SimpleNamespace(valid=Signal(), id=Signal(self.id_bits), ready=Signal(), over=over)
        w.mass, w.always = Mux(lacks.any(), 0, found.score), lacks.any()
        loaded = loads & self.i.valid & self.i.ready
        m.d.comb += [
            competes.eq((page.mass != 0) & ~page.always),
            every.i.valid.eq(loaded & (competes | page.last)),
            every.i.p.score.eq(page.mass),
            every.i.p.id.eq(Cat(~page.present, page.id)),
            every.i.p.none.eq(~competes),
            every.i.p.last.eq(page.last),
            asks.eq(~found.none & (all_held < self.target) & (count < self.most)),
            w.valid.eq(lacks.any() | (every.o.valid & asks & found.id[0])),
            w.id.eq(Mux(lacks[0], gone[0], Mux(lacks[1], gone[1], found.id[1:]))),
            every.o.ready.eq(~asks | ~found.id[0] | (w.ready & ~lacks.any())),
            over.eq(~lacks.any() & ~every.o.valid),
        ]
        with m.If(loaded & page.always):
            m.d.sync += all_held.eq(all_held + page.mass)
            with m.If(~page.present):
                m.d.sync += lacks.eq(Mux(lacks[0], 3, 1))
                for k in range(2):
                    with m.If(lacks == k):
                        m.d.sync += gone[k].eq(page.id)
        with m.If(every.o.valid & every.o.ready & asks):
            m.d.sync += [all_held.eq(all_held + found.score), count.eq(count + 1)]
        with m.If(w.ready & lacks.any()):
            m.d.sync += lacks.eq(lacks & (lacks - 1))
        with m.If(ends & self.o.ready):
            m.d.sync += [all_held.eq(0), count.eq(0)]
        m.d.sync += Assert(~loaded | every.i.ready, "the best of the list before are still inside")
        return w
