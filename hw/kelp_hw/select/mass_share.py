# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What share of its heads' attention each scored page has (docs/select.md, "Scores"). A list of one
page and one head is answered after 54 cycles, one of n pages after `latency(n)`."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.select import MASS_BITS, RATIO_BITS, RECIPROCAL_BITS, SHARE_BITS

from .signatures import EXPONENT, SelectLayouts, checked

__all__ = ["MassShare"]

_MOST_SHIFT = 31


class MassShare(wiring.Component):
    """Takes the masses of a list of pages and gives, for each page in the same order, the sum over
    heads of its share of the head's whole mass, UQ0.16 each. The whole has `more` times the mass of
    the pages that are `named` in it, for those that were not scored.

    Latency: `latency(n)` cycles from the last of n pages to the first at `o`; `LATENCY` of one page
    and one head. For each head there are two passes, one page a cycle, and a division. One page a
    cycle in and out (`INTERVAL`); the next list may begin when the last page is taken. Errors:
    none; more pages than `depth` are an assertion.

    Parameters
    ----------
    heads : int
    depth : int
        Pages at most.
    id_bits : int

    Members
    -------
    more : in
        For each head, UQ8.16; holds still from a list's first page to its last at `o`.
    i : in, stream
        A page's mass, whether a head named it, and whether it is the last of the list.
    o : out, stream
        The page's `id`, its `mass`, and whether it is the last.
    """

    LATENCY = 54
    INTERVAL = 1

    def __init__(self, *, heads: int, depth: int, id_bits: int):
        layouts = SelectLayouts(heads=heads, id_bits=id_bits)
        self.heads, self.depth, self.id_bits = heads, checked("depth", depth, 2, 512), id_bits
        self.mass_bits = SHARE_BITS + (heads - 1).bit_length()
        self.page = data.StructLayout({"mass": layouts.page_mass, "named": 1, "last": 1})
        shared = {"id": id_bits, "mass": self.mass_bits, "last": 1}
        super().__init__(
            {
                "more": In(data.ArrayLayout(RATIO_BITS, heads)),
                "i": In(stream.Signature(self.page)),
                "o": Out(stream.Signature(data.StructLayout(shared))),
            }
        )

    def latency(self, pages: int) -> int:
        """Cycles from the last of so many pages to the first at `o`."""
        return self.LATENCY + self.heads * (2 * pages + 50) - 52

    def elaborate(self, platform):
        m = Module()
        s = _State(self, m)
        self._row(m, s)
        with m.FSM():
            with m.State("LOAD"):
                self._load(m, s)
            with m.State("SUM"):
                self._sum(m, s)
            with m.State("MORE"):
                m.d.sync += [
                    s.whole.eq(s.whole + (s.inside * self._of_head(m, s.head) >> SHARE_BITS)),
                    s.steps.eq(0),
                ]
                m.next = "DIVIDE"
            with m.State("DIVIDE"):
                self._divide(m, s)
                with m.If(s.steps == RECIPROCAL_BITS):
                    m.d.sync += s.place.eq(0)
                    m.next = "SHARE"
            with m.State("SHARE"):
                self._share(m, s)
            with m.State("READ"):
                m.d.comb += s.read.addr.eq(s.place)
                m.next = "GIVE"
            with m.State("GIVE"):
                self._give(m, s)
        return m

    def _row(self, m, s):
        """A row on its way: 1, read; 2, its head's mass aligned; 3, multiplied; 4, bounded."""
        row = s.get.data.mass
        e, z, top = Signal(EXPONENT), Signal(MASS_BITS), Signal(EXPONENT)
        with m.Switch(s.head):
            for k in range(self.heads):
                with m.Case(k):
                    m.d.comb += [e.eq(row.e[k]), z.eq(row.z[k]), top.eq(s.tops[k])]
        by = Signal(EXPONENT.width)
        m.d.comb += [s.get.addr.eq(s.place), by.eq(top - e), s.read.addr.eq(s.places[3])]
        m.d.sync += [
            *(s.goes[k + 1].eq(s.goes[k]) for k in range(4)),
            *(s.places[k + 1].eq(s.places[k]) for k in range(4)),
            s.named.eq(s.get.data.named),
            s.aligned.eq(z >> Mux(by > _MOST_SHIFT, _MOST_SHIFT, by)[:5]),
            s.product.eq(s.aligned * s.reciprocal),
            s.bounded.eq(_share(s.product)),
        ]

    def _load(self, m, s):
        m.d.comb += [
            self.i.ready.eq(1),
            s.put.en.eq(self.i.valid),
            s.put.addr.eq(s.count),
            s.put.data.eq(self.i.p),
        ]
        with m.If(self.i.valid):
            m.d.sync += [
                s.count.eq(s.count + 1),
                Assert(s.count < self.depth, "more pages than have a place"),
            ]
            for k, top in enumerate(s.tops):
                new = self.i.p.mass.e[k]
                with m.If((s.count == 0) | (new > top)):
                    m.d.sync += top.eq(new)
            with m.If(self.i.p.last):
                m.d.sync += [s.head.eq(0), s.place.eq(0), s.inside.eq(0), s.whole.eq(0)]
                m.next = "SUM"

    def _sum(self, m, s):
        reads = s.goes[0]
        m.d.comb += reads.eq(s.place < s.count)
        m.d.sync += s.place.eq(s.place + reads)
        with m.If(s.goes[2]):
            m.d.sync += s.whole.eq(s.whole + s.aligned)
            with m.If(s.named):
                m.d.sync += s.inside.eq(s.inside + s.aligned)
        with m.If(~reads & ~s.goes[1] & ~s.goes[2]):
            m.next = "MORE"

    def _share(self, m, s):
        reads = s.goes[0]
        m.d.comb += [
            reads.eq(s.place < s.count),
            s.write.en.eq(s.goes[4]),
            s.write.addr.eq(s.places[4]),
            s.write.data.eq(s.bounded + Mux(s.head == 0, 0, s.read.data)),
        ]
        m.d.sync += s.place.eq(s.place + reads)
        on_the_way = reads
        for goes in s.goes[1:]:
            on_the_way |= goes
        with m.If(~on_the_way):
            m.d.sync += [s.place.eq(0), s.inside.eq(0), s.whole.eq(0)]
            with m.If(s.head == self.heads - 1):
                m.next = "READ"
            with m.Else():
                m.d.sync += s.head.eq(s.head + 1)
                m.next = "SUM"

    def _give(self, m, s):
        # The memories give the next row while this one is taken.
        following = s.place + (self.o.valid & self.o.ready)
        m.d.comb += [
            self.o.valid.eq(1),
            self.o.p.id.eq(s.get.data.mass.id),
            self.o.p.mass.eq(s.read.data),
            self.o.p.last.eq(s.place == s.count - 1),
            s.read.addr.eq(following),
            s.get.addr.eq(following),
        ]
        m.d.sync += s.place.eq(following)
        with m.If(self.o.ready & self.o.p.last):
            m.d.sync += s.count.eq(0)
            m.next = "LOAD"

    def _of_head(self, m, head):
        """`more` of the head."""
        more = Signal(RATIO_BITS)
        with m.Switch(head):
            for k in range(self.heads):
                with m.Case(k):
                    m.d.comb += more.eq(self.more[k])
        return more

    def _divide(self, m, s):
        """One bit of ⌊2^RECIPROCAL_BITS / whole⌋: the dividend is a one and zeros."""
        begins, shifted, fits = s.steps == 0, Signal(len(s.remainder) + 1), Signal()
        m.d.comb += [
            shifted.eq(Cat(begins, Mux(begins, 0, s.remainder))),
            fits.eq(shifted >= s.whole),
        ]
        m.d.sync += [
            s.steps.eq(s.steps + 1),
            s.remainder.eq(Mux(fits, shifted - s.whole, shifted)),
            s.reciprocal.eq(Cat(fits, Mux(begins, 0, s.reciprocal[:-1]))),
            Assert(s.whole != 0, "a page's mass is never nothing"),
        ]


class _State:
    """What the states share: memories, counters, and a row on its way."""

    def __init__(self, block: MassShare, m: Module):
        m.submodules.rows = rows = memory.Memory(shape=block.page, depth=block.depth, init=())
        m.submodules.sums = sums = memory.Memory(shape=block.mass_bits, depth=block.depth, init=())
        self.put, self.get = rows.write_port(), rows.read_port()
        self.write, self.read = sums.write_port(), sums.read_port()
        width = MASS_BITS + (block.depth - 1).bit_length()  # of a sum over pages
        places = range(block.depth + 1)
        self.count, self.place = Signal(places), Signal(places)
        self.head = Signal(range(max(2, block.heads)))
        self.tops = [Signal(EXPONENT, name=f"top_{k}") for k in range(block.heads)]
        self.inside, self.whole = Signal(width), Signal(width + RATIO_BITS - SHARE_BITS + 1)
        self.reciprocal, self.remainder = Signal(RECIPROCAL_BITS + 1), Signal(len(self.whole))
        self.steps = Signal(range(RECIPROCAL_BITS + 2))
        self.goes = [Signal(name=f"goes{k}") for k in range(5)]
        self.places = [self.place, *(Signal(places, name=f"place{k}") for k in range(1, 5))]
        self.named, self.aligned = Signal(reset_less=True), Signal(MASS_BITS, reset_less=True)
        self.product = Signal(MASS_BITS + RECIPROCAL_BITS + 1, reset_less=True)
        self.bounded = Signal(SHARE_BITS, reset_less=True)


def _share(product):
    """The share in the product, at most all but one."""
    share = product[RECIPROCAL_BITS - SHARE_BITS :]
    return Mux(share[SHARE_BITS:].any(), ~0, share[:SHARE_BITS])
