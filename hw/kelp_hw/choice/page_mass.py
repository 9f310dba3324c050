# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mass of a page from its tokens' scores, for each query head (docs/select.md, "Scores"). One
token a cycle; a page's mass 3 cycles after its last token."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.select import MASS_BITS, SCORE_FRACTION, WEIGHT_BITS

from .signatures import EXPONENT, SelectLayouts

__all__ = ["PageMass"]

#: 2^(f / 256) with 15 bits after the point.
_WEIGHTS = [
    round(2.0 ** (WEIGHT_BITS - 1 + f / (1 << SCORE_FRACTION))) for f in range(1 << SCORE_FRACTION)
]
_MOST_SHIFT = 31


class PageMass(wiring.Component):
    """Sums 2^score of the tokens of a page: z · 2^(e − 15), e the largest whole part of a score so
    far. What an addition shifts out is lost, so the order of tokens counts.

    Latency: `LATENCY` cycles from a page's last token to `o`. One token in each cycle (`INTERVAL`).
    Errors: none; a sum that has no place is the largest that has.

    Parameters
    ----------
    heads : int
    id_bits : int
    mass_bits : int, optional
        Of z.

    Members
    -------
    i : in, stream of page_scores
        The tokens of a page; `last` ends it. Of a page with one that is `alone` nothing before that
        counts.
    o : out, stream of page_mass
        `id` is that of the last token.
    """

    LATENCY = 3
    INTERVAL = 1

    def __init__(self, *, heads: int, id_bits: int, mass_bits: int = MASS_BITS):
        layouts = self.layouts = SelectLayouts(heads=heads, id_bits=id_bits, mass_bits=mass_bits)
        self.heads, self.id_bits, self.mass_bits = heads, id_bits, mass_bits
        super().__init__(
            {
                "i": In(stream.Signature(layouts.page_scores)),
                "o": Out(stream.Signature(layouts.page_mass)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        moves = Signal()
        m.d.comb += [moves.eq(self.o.ready | ~self.o.valid), self.i.ready.eq(moves)]
        # 1: the weight is read, and how far to shift is found; 2: summed; `o`
        valid1, last1, ends2, first1 = Signal(), Signal(), Signal(), Signal(init=1)
        id1, id2 = Signal(self.id_bits, reset_less=True), Signal(self.id_bits, reset_less=True)
        with m.If(moves):
            m.d.sync += [
                valid1.eq(self.i.valid),
                last1.eq(self.i.p.last),
                id1.eq(self.i.p.id),
                ends2.eq(valid1 & last1),
                id2.eq(id1),
                self.o.valid.eq(ends2),
                self.o.p.id.eq(id2),
            ]
            with m.If(valid1):
                m.d.sync += first1.eq(last1)
            with m.If(self.i.valid & self.i.p.alone):
                m.d.sync += first1.eq(1)
        for head in range(self.heads):
            score = self.i.p.score[head]
            m.submodules[f"weights_{head}"] = table = memory.Memory(
                shape=WEIGHT_BITS, depth=1 << SCORE_FRACTION, init=_WEIGHTS
            )
            read = table.read_port()
            n1 = Signal(EXPONENT, name=f"n1_{head}", reset_less=True)
            m.d.comb += [read.en.eq(moves), read.addr.eq(score[:SCORE_FRACTION])]
            e = Signal(EXPONENT, name=f"e_{head}", reset_less=True)
            z = Signal(self.mass_bits, name=f"z_{head}", reset_less=True)
            by = Signal(signed(EXPONENT.width + 1), name=f"by_{head}")
            grows = Signal(name=f"grows_{head}", reset_less=True)
            down, less = (
                Signal(range(_MOST_SHIFT + 1), name=f"{name}_{head}", reset_less=True)
                for name in ("down", "less")
            )
            held = Signal(self.mass_bits, name=f"held_{head}")
            added = Signal(WEIGHT_BITS, name=f"added_{head}")
            total = Signal(self.mass_bits + 1, name=f"total_{head}")
            # Critical path: a shifter and an adder from z to z. What e is going to be is known in
            # the cycle before: the score in stage 1, where that begins a page or is larger.
            m.d.comb += [
                by.eq(score[SCORE_FRACTION:].as_signed() - Mux(valid1 & (first1 | grows), n1, e)),
                held.eq(z >> down),
                added.eq(read.data >> less),
                total.eq(held + added),
            ]
            with m.If(moves):
                m.d.sync += [
                    n1.eq(score[SCORE_FRACTION:]),
                    grows.eq(by > 0),
                    down.eq(_bounded(by)),
                    less.eq(_bounded(-by)),
                    self.o.p.e[head].eq(e),
                    self.o.p.z[head].eq(z),
                ]
            with m.If(moves & valid1):
                with m.If(first1):
                    m.d.sync += [e.eq(n1), z.eq(read.data)]
                with m.Else():
                    m.d.sync += z.eq(Mux(total[-1], ~0, total))
                    with m.If(grows):
                        m.d.sync += e.eq(n1)
        return m


def _bounded(by):
    """A shift, at most what empties any mass; none where it is negative."""
    return Mux(by < 0, 0, Mux(by > _MOST_SHIFT, _MOST_SHIFT, by))
