# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bounds of arithmetic, for the solver: for every operand, not for those of a test."""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.prefetch.throttle import CREDIT_MAX, SOURCES, Throttle
from kelp_hw.scores.ema import EmaStep

__all__ = ["EmaStepContract", "ThrottleContract"]


class EmaStepContract(wiring.Component):
    """For every score, x and α, the sum stays in 0 … 65535 (the block's own Assert), no α leaves
    the score as it is, and α of 256 and more takes x.

    The block is a pipeline without feedback, so its first result says what every later one is:
    `LATENCY` + 1 cycles are a proof.
    """

    def __init__(self, block=EmaStep):
        self.block = block()
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.step = e = self.block
        m.d.comb += [e.s.eq(AnySeq(16)), e.x.eq(AnySeq(16)), e.a.eq(AnySeq(9))]
        s, x, a = e.s, e.x, e.a
        count = Signal(range(e.LATENCY + 1))
        for k in range(e.LATENCY):
            then = [
                Signal.like(value, name=f"then_{k}_{name}")
                for name, value in zip("sxa", (s, x, a), strict=True)
            ]
            m.d.sync += [later.eq(value) for later, value in zip(then, (s, x, a), strict=True)]
            s, x, a = then
        with m.If(count != e.LATENCY):
            m.d.sync += count.eq(count + 1)
        known = count == e.LATENCY
        m.d.comb += [
            Assert(~(known & (a >= 256)) | (e.o == x)),
            Assert(~(known & (a == 0)) | (e.o == s)),
            Cover(known & (e.o == 65535) & (s == 0)),
            Cover(known & (e.o == 0) & (s == 65535)),
        ]
        return m


class ThrottleContract(wiring.Component):
    """Of a source, any one: its credit stays in 1 … 64, and of any 64 candidates in a row that it
    offers under one credit exactly `credit` pass."""

    def __init__(self, block=Throttle):
        self.block = block()
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.throttle = t = self.block
        for each in (t.offer, t.issued, t.useful):
            m.d.comb += [each.p.eq(AnySeq(len(each.p))), each.valid.eq(AnySeq(1))]
        m.d.comb += t.settle.eq(AnySeq(len(t.settle)))
        source = AnyConst(range(SOURCES))
        m.d.comb += [
            Assume((source >= 1) & (source < SOURCES)),
            Assume((t.offer.p >= 1) & (t.offer.p < SOURCES)),
        ]
        credit, was = t.credit[source], Signal(range(CREDIT_MAX + 1))
        offered, passed, position, same = (
            Signal(range(CREDIT_MAX + 1)),
            Signal(range(CREDIT_MAX + 1)),
            t.position[source],
            Signal(),
        )
        mine = t.offer.valid & (t.offer.p == source)
        m.d.sync += was.eq(credit)
        m.d.comb += same.eq((offered == 0) | (was == credit))
        # A run of offers begins where the group does, and ends where the credit changes.
        with m.If(
            ~same | (mine & (offered == CREDIT_MAX - 1)) | ((offered == 0) & (position != 0))
        ):
            m.d.sync += [offered.eq(0), passed.eq(0)]
        with m.Elif(mine):
            m.d.sync += [offered.eq(offered + 1), passed.eq(passed + t.allow)]
        m.d.comb += [
            Assert((credit >= 1) & (credit <= CREDIT_MAX)),
            Assert((offered == 0) | (position == offered)),
            Assert((passed == Mux(offered < was, offered, was)) | ~same),
            Assert((offered != 0) | (passed == 0)),
            Assert(~(mine & same & (offered == CREDIT_MAX - 1)) | (passed + t.allow == credit)),
            Cover((credit == CREDIT_MAX) & (passed == 3)),
        ]
        return m
