# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Logarithm to base 2, linear between powers of two: a priority encoder and a shift
(docs/policy.md). One value a cycle, given after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.policy import LOG_BITS

__all__ = ["Log2"]


class Log2(wiring.Component):
    """With w the place of the highest bit of `x`: `o` = (w − least) · 256 + (x · 256 >> w) − 256.

    Latency: `LATENCY` cycles. One value in each cycle (`INTERVAL`), never stalls. Of an `x` below
    2^least the logarithm means nothing; nothing reports it.

    Parameters
    ----------
    bits : int
        Of `x`.
    least : int
        0 … bits − 1: x is at least 2^least.

    Members
    -------
    x : in
    o : out
        log2(x) − least, LOG_BITS of it after the point.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, bits: int, least: int):
        if not 0 <= least < bits:
            raise ValueError(f"least = {least!r} is refused; legal: 0 … {bits - 1}")
        self.bits, self.least = bits, least
        super().__init__({"x": In(bits), "o": Out(LOG_BITS + (bits - 1 - least).bit_length())})

    def elaborate(self, platform):
        m = Module()
        padded = Cat(Const(0, LOG_BITS), self.x)
        whole, part = Signal(len(self.o) - LOG_BITS, reset_less=True), Signal(LOG_BITS)
        kept = Signal(len(padded), reset_less=True)
        # What stands below the highest bit, wherever that is.
        m.d.comb += part.eq(
            Array(kept[p : p + LOG_BITS] for p in range(self.least, self.bits))[whole]
        )
        m.d.sync += [
            whole.eq(_highest(self.x[self.least :])[1]),
            kept.eq(padded),
            self.o.eq(Cat(part, whole)),
        ]
        return m


def _highest(bits: Value) -> tuple[Value, Value]:
    """Whether a bit is set, and the place of the highest: halves, so that it is a tree."""
    if len(bits) == 1:
        return bits, Const(0, 0)
    half = 1 << (len(bits) - 1).bit_length() - 1
    (low, low_place), (high, high_place) = _highest(bits[:half]), _highest(bits[half:])
    place = Mux(high, high_place, low_place)[: (half - 1).bit_length()]
    return low | high, Cat(place, high)
