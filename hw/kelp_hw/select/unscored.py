# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What pages that no head named add to the mass of those named (docs/select.md, "Scores"). One
group at a time; of one head after 52 cycles."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.select import BOUND_MASS_BITS, RATIO_BITS, SHARE_BITS

from .signatures import EXPONENT, SelectLayouts

__all__ = ["Unscored"]

_MOST_SHIFT = 31
_DIVIDEND_BITS = BOUND_MASS_BITS + SHARE_BITS


class Unscored(wiring.Component):
    """For each head (all − named) / named, of masses of bounds, UQ8.16; at least 0, and more than
    has a place is the most. A named mass of nothing counts as 1.

    Latency: `LATENCY` cycles for one head from the later of both inputs to `o`, 51 more for each
    further head. One group (`INTERVAL` for one head) at a time. No error cases.

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

    LATENCY = 52
    INTERVAL = 53

    def __init__(self, *, heads: int):
        layouts = SelectLayouts(heads=heads, mass_bits=BOUND_MASS_BITS)
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
        head, steps = Signal(range(max(2, self.heads))), Signal(range(_DIVIDEND_BITS + 1))
        e_all, e_named, by = Signal(EXPONENT), Signal(EXPONENT), Signal(EXPONENT.width)
        z_all, z_named = Signal(BOUND_MASS_BITS), Signal(BOUND_MASS_BITS)
        with m.Switch(head):
            for k in range(self.heads):
                with m.Case(k):
                    m.d.comb += [
                        e_all.eq(self.i_all.p.e[k]),
                        z_all.eq(self.i_all.p.z[k]),
                        e_named.eq(self.i_named.p.e[k]),
                        z_named.eq(self.i_named.p.z[k]),
                    ]
        m.d.comb += by.eq(e_all - e_named)
        divisor, rest = Signal(BOUND_MASS_BITS), Signal(_DIVIDEND_BITS)
        remainder, quotient = Signal(BOUND_MASS_BITS), Signal(_DIVIDEND_BITS)
        shifted, fits = Signal(BOUND_MASS_BITS + 1), Signal()
        m.d.comb += [shifted.eq(Cat(rest[-1], remainder)), fits.eq(shifted >= divisor)]
        with m.FSM():
            with m.State("WAIT"):
                with m.If(self.i_all.valid & self.i_named.valid):
                    m.d.sync += head.eq(0)
                    m.next = "ALIGN"
            with m.State("ALIGN"):
                m.d.sync += divisor.eq(z_named >> Mux(by > _MOST_SHIFT, _MOST_SHIFT, by)[:5])
                m.next = "BEGIN"
            with m.State("BEGIN"):
                m.d.sync += [
                    rest.eq(Mux(z_all > divisor, z_all - divisor, 0) << SHARE_BITS),
                    divisor.eq(Mux(divisor == 0, 1, divisor)),
                    remainder.eq(0),
                    steps.eq(0),
                ]
                m.next = "DIVIDE"
            with m.State("DIVIDE"):
                m.d.sync += [
                    rest.eq(rest << 1),
                    remainder.eq(Mux(fits, shifted - divisor, shifted)),
                    quotient.eq(Cat(fits, quotient)),
                    steps.eq(steps + 1),
                ]
                with m.If(steps == _DIVIDEND_BITS - 1):
                    m.next = "KEEP"
            with m.State("KEEP"):
                most = quotient[RATIO_BITS:].any()
                with m.Switch(head):
                    for k in range(self.heads):
                        with m.Case(k):
                            m.d.sync += self.o.p[k].eq(Mux(most, ~0, quotient))
                m.d.sync += head.eq(head + 1)
                m.next = "ALIGN"
                with m.If(head == self.heads - 1):
                    m.d.comb += [self.i_all.ready.eq(1), self.i_named.ready.eq(1)]
                    m.next = "GIVE"
            with m.State("GIVE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "WAIT"
        return m
