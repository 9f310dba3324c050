# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Exponential decay of a number of steps: 65536 · 2^(−steps·m·2^−sh / 65536) (spec §5). One value a
cycle, given after 11 cycles."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.metadata import STEP_BITS

__all__ = ["Exp2", "EXP2_TABLE"]

#: T[i] = round(65536 · 2^(−i/256)), i = 0 … 256.
EXP2_TABLE = tuple(round(65536 * 2.0 ** (-i / 256)) for i in range(257))

_T_BITS = 21  # t saturates at 2^21 − 1: 31 halvings leave nothing of 17 bits
_SHIFT_BITS = 5


class Exp2(wiring.Component):
    """2 to a negative power, for recency and idle decay: a pipeline that never stalls. Its user
    carries valid and payload beside it, `LATENCY` cycles long.

    t = min(⌊steps · mantissa · 2^−(shift − bias)⌋, 2^21 − 1); n = t >> 16; i = (t >> 8) & 255; e =
    T[i] − ((T[i] − T[i+1]) · (t & 255) >> 8); `halving` = e >> n, 0 … 65536.

    Latency: `LATENCY` cycles. One value in each cycle (`INTERVAL`). No error cases: every input has
    a value.

    Parameters
    ----------
    bias : int
        0 … 8; what the shift field adds to the shift (kelp_spec.scores).

    Members
    -------
    steps, mantissa, shift : in
        24, 16 and 5 bits.
    halving : out
        17 bits.
    """

    LATENCY = 11
    INTERVAL = 1

    def __init__(self, *, bias: int):
        if not isinstance(bias, int) or isinstance(bias, bool) or not 0 <= bias <= 8:
            raise ValueError(f"bias = {bias!r} is refused; legal: 0 … 8")
        self.bias = bias
        super().__init__(
            {
                "steps": In(STEP_BITS),
                "mantissa": In(16),
                "shift": In(_SHIFT_BITS),
                "halving": Out(17),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # The table holds T[i] and the drop to T[i+1], so that one read serves the interpolation.
        rows = [EXP2_TABLE[i] | (EXP2_TABLE[i] - EXP2_TABLE[i + 1]) << 17 for i in range(256)]
        m.submodules.table = table = memory.Memory(shape=25, depth=256, init=rows)
        row = table.read_port()

        def reg(name, shape):
            return Signal(shape, name=name, reset_less=True)

        # 1: multiplier inputs, the steps in two parts since a hardware multiplier is 18 bits wide.
        low, high, mantissa, shift1 = (
            reg("low", 16),
            reg("high", STEP_BITS - 16),
            reg("mantissa1", 16),
            reg("shift1", _SHIFT_BITS),
        )
        # 2: products
        low_product, high_product, shift2 = (
            reg("low_product", 32),
            reg("high_product", STEP_BITS),
            reg("shift2", _SHIFT_BITS),
        )
        # 3: steps · mantissa
        product, shift3 = reg("product", STEP_BITS + 16), reg("shift3", _SHIFT_BITS)
        # 4, 5: shifted right, by multiples of eight and then by the rest
        wide = STEP_BITS + 16 + self.bias
        coarse, shift4 = reg("coarse", wide), reg("shift4", 3)
        fine = reg("fine", wide)
        m.d.sync += [
            low.eq(self.steps[:16]),
            high.eq(self.steps[16:]),
            mantissa.eq(self.mantissa),
            shift1.eq(self.shift),
            low_product.eq(low * mantissa),
            high_product.eq(high * mantissa),
            shift2.eq(shift1),
            product.eq(low_product + (high_product << 16)),
            shift3.eq(shift2),
            coarse.eq((product << self.bias) >> (shift3[3:] << 3)),
            shift4.eq(shift3[:3]),
            fine.eq(coarse >> shift4),
        ]

        # 6: saturated; t is a register before the address of a block RAM
        t = reg("t", _T_BITS)
        # 7: table read
        n7, fraction7 = reg("n7", _T_BITS - 16), reg("fraction7", 8)
        # 8: table out, critical path of a block RAM: registered as row8 before the multiplier;
        # 9: interpolation product; 10: e; 11: halved n times
        row8, fraction8, n8 = reg("row8", 25), reg("fraction8", 8), reg("n8", _T_BITS - 16)
        value9, drop9, n9 = reg("value9", 17), reg("drop9", 8), reg("n9", _T_BITS - 16)
        e, n10 = reg("e", 17), reg("n10", _T_BITS - 16)
        drop = Signal(16)
        m.d.comb += [row.addr.eq(t[8:16]), drop.eq(row8[17:] * fraction8)]
        m.d.sync += [
            t.eq(Mux(fine[_T_BITS:].any(), ~0, fine)),
            n7.eq(t[16:]),
            fraction7.eq(t[:8]),
            row8.eq(row.data),
            n8.eq(n7),
            fraction8.eq(fraction7),
            value9.eq(row8[:17]),
            drop9.eq(drop >> 8),
            n9.eq(n8),
            e.eq(value9 - drop9),
            n10.eq(n9),
            self.halving.eq(e >> n10),
        ]
        return m
