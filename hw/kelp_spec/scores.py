# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How a queue's score constants are programmed: τ and α as the integers of its configuration (spec
§5, docs/arithmetic.md).

A decay constant is a mantissa `m` (16 bits) and a shift `sh` (5 bits, held with a bias so that it
is never negative): age · m · 2^−sh is the exponent of 2 in units of 2^−16. This is what a driver
computes once per queue; nothing here runs in the device.
"""

from __future__ import annotations

import math

__all__ = [
    "RECENCY_SHIFTS",
    "IDLE_SHIFTS",
    "MANTISSA",
    "RECENCY_BIAS",
    "IDLE_BIAS",
    "recency_constants",
    "idle_constants",
]

MANTISSA = (1 << 15, (1 << 16) - 1)  #: legal mantissas
RECENCY_SHIFTS = (-1, 15)  #: legal shifts of τ_m, τ_sh: τ = 1 … 65536 steps
IDLE_SHIFTS = (-4, 15)  #: legal shifts of the idle decay: α = 1/256 … 1
RECENCY_BIAS = 1  #: the field `tau_sh` holds sh + 1
IDLE_BIAS = 4  #: the field `idle_sh` holds sh + 4


def _normalised(rate: float, shifts: tuple[int, int]) -> tuple[int, int]:
    """`rate` = m · 2^−sh with m in MANTISSA, rounded to nearest; the ends of the range where it
    lies outside."""
    sh = 15 - math.floor(math.log2(rate))
    m = round(rate * 2.0**sh)
    if m > MANTISSA[1]:
        m, sh = MANTISSA[0], sh - 1
    if sh < shifts[0]:
        return MANTISSA[1], shifts[0]
    return (m, sh) if sh <= shifts[1] else (MANTISSA[0], shifts[1])


def recency_constants(tau: float) -> tuple[int, int]:
    """(m, sh) of a recency time constant in steps: m · 2^−sh ≈ 65536 · log₂e / τ. τ = 1000 gives
    (48409, 9)."""
    if not 1 <= tau <= 65536:
        raise ValueError(f"tau = {tau!r} is refused; legal: 1 … 65536 steps")
    return _normalised(65536 / math.log(2) / tau, RECENCY_SHIFTS)


def idle_constants(alpha: int) -> tuple[int, int]:
    """(m, sh) of the decay of one idle step under α = alpha/256: m · 2^−sh ≈ −65536 · log₂(1 − α);
    α = 1 takes the fastest decay."""
    if not 1 <= alpha <= 256:
        raise ValueError(f"alpha = {alpha!r} is refused; legal: 1 … 256 (in units of 1/256)")
    if alpha == 256:
        return MANTISSA[1], IDLE_SHIFTS[0]
    return _normalised(-65536 * math.log2(1 - alpha / 256), IDLE_SHIFTS)
