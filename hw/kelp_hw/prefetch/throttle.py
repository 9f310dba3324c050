# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Credit of the prefetch sources (spec §7). One offer a cycle, allowed combinationally and counted
after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.metadata import PrefetchSource

from ..layouts import code_shape
from ..lib.power_of_two import power_of_two

__all__ = ["CREDIT_MAX", "ISSUED_PERIOD", "SOURCES", "USEFUL_LEAST", "Throttle"]

SOURCES = len(PrefetchSource)  #: codes 1 … SOURCES − 1
#: also the group: a source may pass `credit` of every 64 candidates it offers
CREDIT_MAX = 64
ISSUED_PERIOD = 256  #: prefetches issued between two looks at a source
USEFUL_LEAST = 64  #: fewer useful ones among them halve the credit


class Throttle(wiring.Component):
    """Gives each source a credit of 1 … 64: of every 64 candidates that a source offers, the first
    `credit` pass.

    Credits start at 64 (everything passes). After every 256 prefetches of a source that were
    issued, the useful ones since the last time decide: fewer than 64 halve the credit (not below
    1), else it grows by one (not above 64). A new credit counts from the next cycle with `settle`
    on, so that the candidates of one access are all judged by the same credit. A source that is
    throttled to 1 still passes one candidate in 64 and can earn its credit back.

    Latency: `LATENCY`, combinational, from `offer` to `allow`; `COUNT_LATENCY` cycle from an offer,
    an issue, a use or `settle` to what follows from it. Interval: `INTERVAL`, one offer, one issue
    and one use per cycle.

    Members
    -------
    offer : in, always-ready stream of source code
        Source of the candidate that is being judged.
    allow : out
        It may pass.
    issued : in, always-ready stream of source code
        Source of a prefetch that M3 took.
    useful : in, always-ready stream of source code
        Source of a prefetched page that was demanded while resident.
    settle : in
        New credits take effect.
    credit : out
        The credits in effect, by source code.
    """

    LATENCY = 0
    COUNT_LATENCY = 1
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "offer": In(stream.Signature(code_shape(PrefetchSource), always_ready=True)),
                "allow": Out(1),
                "issued": In(stream.Signature(code_shape(PrefetchSource), always_ready=True)),
                "useful": In(stream.Signature(code_shape(PrefetchSource), always_ready=True)),
                "settle": In(1),
                "credit": Out(
                    data.ArrayLayout(CREDIT_MAX.bit_length(), SOURCES), init=[CREDIT_MAX] * SOURCES
                ),
            }
        )
        # State that proofs look at (kelp_verif.formal.arithmetic_specs): candidates offered, modulo
        # the group.
        self.position = Array(
            Signal(range(power_of_two("CREDIT_MAX", CREDIT_MAX)), name=f"position_{s}")
            for s in range(SOURCES)
        )

    def elaborate(self, platform):
        m = Module()
        position, period = self.position, power_of_two("ISSUED_PERIOD", ISSUED_PERIOD)
        m.d.comb += self.allow.eq(position[self.offer.p] < self.credit[self.offer.p])
        m.d.sync += Assert(
            ~self.offer.valid | ((self.offer.p >= 1) & (self.offer.p < SOURCES)),
            "a candidate of no source",
        )
        for s in range(1, SOURCES):
            earned = Signal(range(CREDIT_MAX + 1), init=CREDIT_MAX, name=f"earned_{s}")
            issued = Signal(range(period), name=f"issued_{s}")
            useful = Signal(range(USEFUL_LEAST + 1), name=f"useful_{s}")  # stops at USEFUL_LEAST
            one_useful = self.useful.valid & (self.useful.p == s)
            with m.If(self.offer.valid & (self.offer.p == s)):
                m.d.sync += position[s].eq(position[s] + 1)
            with m.If(one_useful & (useful != USEFUL_LEAST)):
                m.d.sync += useful.eq(useful + 1)
            with m.If(self.issued.valid & (self.issued.p == s)):
                m.d.sync += issued.eq(issued + 1)
                with m.If(issued == ISSUED_PERIOD - 1):
                    # A use in this very cycle belongs to the next period.
                    m.d.sync += [
                        useful.eq(one_useful),
                        earned.eq(
                            Mux(
                                useful == USEFUL_LEAST,
                                Mux(earned == CREDIT_MAX, earned, earned + 1),
                                Mux(earned == 1, 1, earned >> 1),
                            )
                        ),
                    ]
            with m.If(self.settle):
                m.d.sync += self.credit[s].eq(earned)
            m.d.comb += Assert(
                (self.credit[s] >= 1)
                & (self.credit[s] <= CREDIT_MAX)
                & (earned >= 1)
                & (earned <= CREDIT_MAX)
            )
        return m
