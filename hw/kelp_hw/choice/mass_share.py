# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What share of its heads' attention each scored page has (docs/select.md, "Scores"). A list of one
page and one head is answered after 24 cycles, one of n pages after `latency(n)`."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.select import MASS_BITS, RATIO_BITS, RECIPROCAL_BITS, SHARE_BITS

from .signatures import EXPONENT, SelectLayouts, checked, give

__all__ = ["MassShare"]

_MOST_SHIFT = 31
_BITS = 2  #: of a reciprocal, in a cycle
#: First bits of a reciprocal that are zeros, since the largest of a head's masses is 2^15 at least.
_SKIPPED = 14


class MassShare(wiring.Component):
    """Takes the masses of a list of pages and gives, for each page in the same order, the sum over
    heads of its share of the head's whole mass, UQ0.16 each. The whole has `more` times the mass of
    the pages that are `named` in it, for those that were not scored.

    All heads at once: one pass sums, then each head divides, and a second pass multiplies. There is
    place for two lists, so that one comes in while the shares of the one before go out.

    Latency: `latency(n)` cycles from the last of n pages to the first at `o`; `LATENCY` of one page
    and one head. One page a cycle in and out (`INTERVAL`). Errors: none; more pages than `depth`
    are an assertion.

    Parameters
    ----------
    heads : int
    depth : int
        Pages at most.
    id_bits : int

    Members
    -------
    i : in, stream
        A page's mass, whether a head named it, and whether it is the last of the list; with the
        last one for each head `more`, UQ8.16.
    o : out, stream
        The page's `id`, its `mass`, and whether it is the last.
    """

    LATENCY = 24
    INTERVAL = 1

    def __init__(self, *, heads: int, depth: int, id_bits: int):
        layouts = SelectLayouts(heads=heads, id_bits=id_bits)
        self.heads, self.depth, self.id_bits = heads, checked("depth", depth, 2, 512), id_bits
        self.mass_bits = SHARE_BITS + (heads - 1).bit_length()
        self.more = data.ArrayLayout(RATIO_BITS, heads)
        row = {"mass": layouts.page_mass, "named": 1}
        self.row = data.StructLayout(row)
        self.page = data.StructLayout(row | {"last": 1, "more": self.more})
        shared = {"id": id_bits, "mass": self.mass_bits, "last": 1}
        super().__init__(
            {
                "i": In(stream.Signature(self.page)),
                "o": Out(stream.Signature(data.StructLayout(shared))),
            }
        )

    def latency(self, pages: int) -> int:
        """Cycles from the last of so many pages to the first at `o`."""
        return self.LATENCY + (pages - 1) + (self.heads - 1)

    def elaborate(self, platform):
        m = Module()
        s = _State(self, m)
        self._load(m, s)
        give(m, self.o, s.out, s.out_valid, s.moves)
        self._row(m, s)
        with m.FSM():
            with m.State("SUM"):
                m.d.comb += s.reads.eq(s.full.bit_select(s.bank, 1) & (s.place < s.count))
                with m.If(s.goes[2]):
                    for k in range(self.heads):
                        m.d.sync += s.whole[k].eq(s.whole[k] + s.aligned[k])
                        with m.If(s.named[2]):
                            m.d.sync += s.inside[k].eq(s.inside[k] + s.aligned[k])
                with m.If((s.place == s.count) & (s.place != 0) & ~s.goes[1]):
                    m.next = "MORE"
            with m.State("MORE"):
                # One multiplier, a head after another; a product is added in the next cycle.
                inside, more = Signal.like(s.inside[0]), Signal(RATIO_BITS)
                m.d.sync += s.grown.eq(inside * more >> SHARE_BITS)
                with m.Switch(s.head):
                    for k in range(self.heads):
                        with m.Case(k):
                            m.d.comb += [
                                inside.eq(s.inside[k]),
                                more.eq(Mux(s.bank, s.mores[1][k], s.mores[0][k])),
                            ]
                            if k > 0:
                                m.d.sync += s.whole[k - 1].eq(s.whole[k - 1] + s.grown)
                m.d.sync += [s.head.eq(s.head + 1), s.steps.eq(0)]
                with m.If(s.head == self.heads - 1):
                    m.d.sync += s.head.eq(0)
                    m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.d.comb += s.divides.eq(s.steps != 0)
                with m.If(s.steps == 0):
                    m.d.sync += s.whole[-1].eq(s.whole[-1] + s.grown)
                    m.d.sync += [reciprocal.eq(0) for reciprocal in s.reciprocal]
                m.d.sync += s.steps.eq(s.steps + 1)
                with m.If(s.steps == (RECIPROCAL_BITS - _SKIPPED) // _BITS):
                    m.d.sync += s.place.eq(0)
                    m.next = "SHARE"
            with m.State("SHARE"):
                m.d.comb += [s.reads.eq(s.place < s.count), s.shares.eq(1)]
                with m.If(self.o.valid & self.o.ready & self.o.p.last):
                    m.d.comb += s.empties.eq(1)
                    m.d.sync += [s.place.eq(0), s.bank.eq(~s.bank)]
                    m.d.sync += [sums.eq(0) for sums in (*s.whole, *s.inside)]
                    m.next = "SUM"
        for k in range(self.heads):
            self._divide(m, s, k)
        return m

    def _load(self, m, s):
        """Pages of a list into the bank that is being filled."""
        bank, place = Signal(), Signal(range(self.depth))
        full = s.full.bit_select(bank, 1)
        taken = self.i.valid & self.i.ready
        fills, empty = Signal(2), Signal(2)
        m.d.comb += [
            self.i.ready.eq(~full),
            s.put.en.eq(taken),
            s.put.addr.eq(Cat(place, bank)),
            s.put.data.mass.eq(self.i.p.mass),
            s.put.data.named.eq(self.i.p.named),
            fills.eq((taken & self.i.p.last) << bank),
            empty.eq(s.empties << s.bank),
            s.count.eq(Mux(s.bank, s.counts[1], s.counts[0])),
        ]
        m.d.sync += s.full.eq((s.full | fills) & ~empty)
        with m.If(taken):
            m.d.sync += [
                place.eq(Mux(self.i.p.last, 0, place + 1)),
                Assert((place != self.depth - 1) | self.i.p.last, "more pages than have a place"),
            ]
            with m.If(self.i.p.last):
                m.d.sync += bank.eq(~bank)
            for b in range(2):
                with m.If(bank == b):
                    m.d.sync += [s.counts[b].eq(place + 1), s.mores[b].eq(self.i.p.more)]
                    for k in range(self.heads):
                        new, top = self.i.p.mass.e[k], s.tops[b][k]
                        with m.If((place == 0) | (new > top)):
                            m.d.sync += top.eq(new)

    def _row(self, m, s):
        """A row on its way: 1, read; 2, masses aligned; 3, multiplied; 4, bounded; then summed."""
        row = s.get.data
        m.d.comb += [
            s.get.addr.eq(Cat(s.place[: s.place_bits], s.bank)),
            s.get.en.eq(s.moves),
            s.goes[0].eq(s.reads),
        ]
        last = [s.place + 1 == s.count, *(Signal(name=f"last{k}") for k in range(1, 5))]
        ids = [row.mass.id, *(Signal(self.id_bits, name=f"id{k}") for k in range(2, 5))]
        with m.If(s.moves):
            m.d.sync += [
                s.place.eq(s.place + s.reads),
                *(s.goes[k + 1].eq(s.goes[k]) for k in range(4)),
                *(last[k + 1].eq(last[k]) for k in range(4)),
                *(ids[k + 1].eq(ids[k]) for k in range(3)),
                s.named[2].eq(row.named),
                s.out_valid.eq(s.goes[4] & s.shares),
                s.out.id.eq(ids[3]),
                s.out.last.eq(last[4]),
            ]
            shares = []
            for k in range(self.heads):
                top = Mux(s.bank, s.tops[1][k], s.tops[0][k])
                by = Signal(EXPONENT.width, name=f"by_{k}")
                # A page is part of the whole, so its share is a whole one at most.
                product = Signal(RECIPROCAL_BITS + 1, name=f"product_{k}", reset_less=True)
                bounded = Signal(SHARE_BITS, name=f"bounded_{k}", reset_less=True)
                m.d.comb += by.eq(top - row.mass.e[k])
                m.d.sync += [
                    s.aligned[k].eq(row.mass.z[k] >> Mux(by > _MOST_SHIFT, _MOST_SHIFT, by)[:5]),
                    product.eq(s.aligned[k] * s.reciprocal[k]),
                    bounded.eq(_share(product)),
                ]
                shares.append(bounded)
            m.d.sync += s.out.mass.eq(_sum(shares))

    def _divide(self, m, s, k):
        """_BITS bits of ⌊2^RECIPROCAL_BITS / whole⌋. The dividend is a one, which goes with its
        first zeros, and zeros."""
        whole, remainder, reciprocal = s.whole[k], s.remainder[k], s.reciprocal[k]
        rest, bits = remainder, []
        # Critical path: as many subtractions.
        for n in range(_BITS):
            shifted = Signal(len(remainder) + 1, name=f"shifted_{k}_{n}")
            fits = Signal(name=f"fits_{k}_{n}")
            after = Signal.like(remainder, name=f"after_{k}_{n}")
            m.d.comb += [
                shifted.eq(Cat(0, rest)),
                fits.eq(shifted >= whole),
                after.eq(Mux(fits, shifted - whole, shifted)),
            ]
            rest, bits = after, [fits, *bits]
        m.d.sync += Assert(~s.divides | (whole >> _SKIPPED != 0), "a page's mass is 2^15 at least")
        m.d.sync += remainder.eq(1 << _SKIPPED)
        with m.If(s.divides):
            m.d.sync += [remainder.eq(rest), reciprocal.eq(Cat(*bits, reciprocal))]


class _State:
    """What the parts share: the memory, counters, and a row on its way."""

    def __init__(self, block: MassShare, m: Module):
        heads = range(block.heads)
        self.place_bits = (block.depth - 1).bit_length()
        m.submodules.rows = rows = memory.Memory(
            shape=block.row, depth=2 << self.place_bits, init=()
        )
        self.put, self.get = rows.write_port(), rows.read_port()
        width = MASS_BITS + self.place_bits  # of a sum over pages
        places = range(block.depth + 1)
        #: of either bank: whether its list is whole, how many pages it has, what is of its heads
        self.full = Signal(2)
        self.counts = [Signal(places, name=f"count_{b}") for b in range(2)]
        self.mores = [Signal(block.more, name=f"more_{b}") for b in range(2)]
        self.tops = [[Signal(EXPONENT, name=f"top_{b}_{k}") for k in heads] for b in range(2)]
        #: of the list whose shares are found
        self.bank, self.place, self.count = Signal(), Signal(places), Signal(places)
        self.empties, self.moves, self.reads, self.shares = Signal(), Signal(), Signal(), Signal()
        self.divides = Signal()
        self.out, self.out_valid = Signal(block.o.p.shape(), reset_less=True), Signal()
        self.head, self.steps = (
            Signal(range(max(2, block.heads))),
            Signal(range(RECIPROCAL_BITS + 2)),
        )
        whole = width + RATIO_BITS - SHARE_BITS + 1

        def each(bits, name, **options):
            return [Signal(bits, name=f"{name}_{k}", **options) for k in heads]

        self.inside, self.whole = each(width, "inside"), each(whole, "whole")
        self.reciprocal, self.remainder = (
            each(RECIPROCAL_BITS + 1, "reciprocal"),
            each(whole, "remainder"),
        )
        self.grown = Signal(width + RATIO_BITS - SHARE_BITS, reset_less=True)
        self.aligned = each(MASS_BITS, "aligned", reset_less=True)
        self.goes = [Signal(name=f"goes{k}") for k in range(5)]
        self.named = {2: Signal(name="named2", reset_less=True)}


def _sum(values):
    """A tree of adders, each a bit wider than what it adds."""
    while len(values) > 1:
        pairs = [a + b for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[2 * len(pairs) :]
    return values[0]


def _share(product):
    """The share in the product, at most all but one."""
    share = product[RECIPROCAL_BITS - SHARE_BITS :]
    return Mux(share[SHARE_BITS:].any(), ~0, share[:SHARE_BITS])
