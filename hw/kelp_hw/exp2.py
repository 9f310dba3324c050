# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Exponential decay of a number of steps: 65536 · 2^(−steps·m·2^−sh / 65536) (spec §5)."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.metadata import STEP_BITS

__all__ = ["Exp2", "EXP2_TABLE"]

#: T[i] = round(65536 · 2^(−i/256)), i = 0 … 256.
EXP2_TABLE = tuple(round(65536 * 2.0 ** (-i / 256)) for i in range(257))

_T_BITS = 21          # t saturates at 2^21 − 1: 31 halvings leave nothing of 17 bits
_SHIFT_BITS = 5


class Exp2(wiring.Component):
    """Recency and idle decay share this pipeline; whoever uses it carries its own valid and payload beside it.

    t = min(⌊steps · mantissa · 2^−(shift − bias)⌋, 2^21 − 1); n = t >> 16; i = (t >> 8) & 255; e = T[i] − ((T[i] − T[i+1]) · (t & 255) >> 8);
    `halving` = e >> n, 0 … 65536.

    Latency: `LATENCY` cycles; throughput: one per cycle. No error cases: every input has a value.

    Parameters
    ----------
    bias : int
        0 … 8; what the shift field adds to the shift (kelp_spec.scores).

    Members
    -------
    steps : in, 24; mantissa : in, 16; shift : in, 5
    halving : out, 17
    """

    LATENCY = 10

    def __init__(self, *, bias: int):
        if not isinstance(bias, int) or isinstance(bias, bool) or not 0 <= bias <= 8:
            raise ValueError(f"bias = {bias!r} is refused; legal: 0 … 8")
        self.bias = bias
        super().__init__({"steps": In(STEP_BITS), "mantissa": In(16), "shift": In(_SHIFT_BITS), "halving": Out(17)})

    def elaborate(self, platform):
        m = Module()
        # The table holds T[i] and the drop to T[i+1], so that one read serves the interpolation.
        rows = [EXP2_TABLE[i] | (EXP2_TABLE[i] - EXP2_TABLE[i + 1]) << 17 for i in range(256)]
        m.submodules.table = table = memory.Memory(shape=25, depth=256, init=rows)
        row = table.read_port()

        def reg(name, shape):
            return Signal(shape, name=name, reset_less=True)

        # 1: multiplier inputs, the steps in two parts since a hardware multiplier is 18 bits wide.
        low, high, mantissa, shift1 = reg("low", 16), reg("high", STEP_BITS - 16), reg("mantissa1", 16), reg("shift1", _SHIFT_BITS)
        # 2: products
        low_product, high_product, shift2 = reg("low_product", 32), reg("high_product", STEP_BITS), reg("shift2", _SHIFT_BITS)
        # 3: steps · mantissa
        product, shift3 = reg("product", STEP_BITS + 16), reg("shift3", _SHIFT_BITS)
        # 4, 5: shifted right, by multiples of eight and then by the rest
        wide = STEP_BITS + 16 + self.bias
        coarse, shift4 = reg("coarse", wide), reg("shift4", 3)
        fine = reg("fine", wide)
        m.d.sync += [
            low.eq(self.steps[:16]), high.eq(self.steps[16:]), mantissa.eq(self.mantissa), shift1.eq(self.shift),
            low_product.eq(low * mantissa), high_product.eq(high * mantissa), shift2.eq(shift1),
            product.eq(low_product + (high_product << 16)), shift3.eq(shift2),
            coarse.eq((product << self.bias) >> (shift3[3:] << 3)), shift4.eq(shift3[:3]),
            fine.eq(coarse >> shift4),
        ]

        # 6: table read
        t = Signal(_T_BITS)
        n6, fraction6 = reg("n6", _T_BITS - 16), reg("fraction6", 8)
        m.d.comb += [t.eq(Mux(fine[_T_BITS:].any(), ~0, fine)), row.addr.eq(t[8:16])]
        # 7: table out, kept from the multiplier since a block RAM is slow to answer; 8: interpolation product; 9: e; 10: halved n times
        row7, fraction7, n7 = reg("row7", 25), reg("fraction7", 8), reg("n7", _T_BITS - 16)
        value8, drop8, n8 = reg("value8", 17), reg("drop8", 8), reg("n8", _T_BITS - 16)
        e, n9 = reg("e", 17), reg("n9", _T_BITS - 16)
        drop = Signal(16)
        m.d.comb += drop.eq(row7[17:] * fraction7)
        m.d.sync += [
            n6.eq(t[16:]), fraction6.eq(t[:8]),
            row7.eq(row.data), n7.eq(n6), fraction7.eq(fraction6),
            value8.eq(row7[:17]), drop8.eq(drop >> 8), n8.eq(n7),
            e.eq(value8 - drop8), n9.eq(n8),
            self.halving.eq(e >> n9),
        ]
        return m
