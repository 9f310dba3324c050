# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What pages that no head named add to the mass of those named (docs/select.md, "Scores"). One
group at a time, after 50 cycles."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.select import ESTIMATE_MASS_BITS, RATIO_BITS, SHARE_BITS

from .signatures import EXPONENT, SelectLayouts

__all__ = ["Unscored"]

_MOST_SHIFT = 31
_DIVIDEND_BITS = ESTIMATE_MASS_BITS + SHARE_BITS


class Unscored(wiring.Component):
    """For each head (all − named) / named, of masses of estimates, UQ8.16; at least 0, and more
    than has a place is the most. A named mass of nothing counts as 1.

    Latency: `LATENCY` cycles from the later of both inputs to `o`; each head has a divider of its
    own. One group in `INTERVAL` cycles. No error cases.

    Parameters
    ----------
    heads : int

    Members
    -------
    i_all, i_named : in, streams of page_mass
        Of all pages, and of those named.
    o : out, stream
        For each head.
    """

    LATENCY = 50
    INTERVAL = 51

    def __init__(self, *, heads: int):
        layouts = SelectLayouts(heads=heads, mass_bits=ESTIMATE_MASS_BITS)
        self.heads = heads
        super().__init__(
            {
                "i_all": In(stream.Signature(layouts.page_mass)),
                "i_named": In(stream.Signature(layouts.page_mass)),
                "o": Out(stream.Signature(data.ArrayLayout(RATIO_BITS, heads))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        steps = Signal(range(_DIVIDEND_BITS + 1))
        heads = [self._head(m, k) for k in range(self.heads)]
        with m.FSM():
            with m.State("ALIGN"):
                for align, *_ in heads:
                    m.d.sync += align
                with m.If(self.i_all.valid & self.i_named.valid):
                    m.next = "BEGIN"
            with m.State("BEGIN"):
                for _, begin, *_ in heads:
                    m.d.sync += begin
                m.d.sync += steps.eq(0)
                m.next = "DIVIDE"
            with m.State("DIVIDE"):
                for *_, divide, _ in heads:
                    m.d.sync += divide
                m.d.sync += steps.eq(steps + 1)
                with m.If(steps == _DIVIDEND_BITS - 1):
                    m.d.comb += [self.i_all.ready.eq(1), self.i_named.ready.eq(1)]
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "ALIGN"
        m.d.comb += [self.o.p[k].eq(given) for k, (*_, given) in enumerate(heads)]
        return m

    def _head(self, m, k):
        """What a head's division does in ALIGN, BEGIN and DIVIDE, and its quotient, bounded."""
        all_, named = self.i_all.p, self.i_named.p
        by = Signal(EXPONENT.width, name=f"by_{k}")
        m.d.comb += by.eq(all_.e[k] - named.e[k])
        divisor = Signal(ESTIMATE_MASS_BITS, name=f"divisor_{k}")
        # What is left of the dividend, and from below the quotient.
        rest = Signal(_DIVIDEND_BITS, name=f"rest_{k}")
        remainder = Signal(ESTIMATE_MASS_BITS, name=f"remainder_{k}")
        shifted, fits = (
            Signal(ESTIMATE_MASS_BITS + 1, name=f"shifted_{k}"),
            Signal(name=f"fits_{k}"),
        )
        m.d.comb += [shifted.eq(Cat(rest[-1], remainder)), fits.eq(shifted >= divisor)]
        z = all_.z[k]
        align = [divisor.eq(named.z[k] >> Mux(by > _MOST_SHIFT, _MOST_SHIFT, by)[:5])]
        begin = [
            rest.eq(Mux(z > divisor, z - divisor, 0) << SHARE_BITS),
            divisor.eq(Mux(divisor == 0, 1, divisor)),
            remainder.eq(0),
        ]
        divide = [
            rest.eq(Cat(fits, rest)),
            remainder.eq(Mux(fits, shifted - divisor, shifted)),
        ]
        return align, begin, divide, Mux(rest[RATIO_BITS:].any(), ~0, rest[:RATIO_BITS])
