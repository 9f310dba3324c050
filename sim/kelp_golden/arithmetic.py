# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Scores, the executable specification: EMA, lazy fold, recency, priority (spec §5;
docs/arithmetic.md, "EMA" … "Priority").

Every function takes Python integers or NumPy integer arrays alike and is exact in 64 bits. ``m``
and ``sh`` are a decay constant; ``sh`` is the signed shift, not its biased field
(``kelp_spec.scores``). The plain-integer forms are also what the transaction-level endpoint calls
once per event, so they are kept free of conversions; :class:`Decay` remembers the recency of the
ages it has met.
"""

import functools

import numpy as np

from kelp_spec.policy import LOG_BITS

__all__ = [
    "AGE_MASK",
    "EXP2_TABLE",
    "T_MAX",
    "Decay",
    "age",
    "decay",
    "ema",
    "exponent",
    "fold",
    "halving",
    "initial",
    "log2",
    "mass",
    "priority",
    "touch",
]

AGE_MASK = (1 << 24) - 1  #: steps and ages are modulo 2^24
T_MAX = (1 << 21) - 1  #: largest exponent, in units of 2^-16
_TOP = 65535  #: UQ0.16's largest value

#: T[i] = round(65536 · 2^(-i/256)), i = 0 … 256.
EXP2_TABLE = tuple(round(65536 * 2.0 ** (-i / 256)) for i in range(257))
_TABLE = np.array(EXP2_TABLE, np.int64)


def _is_array(*values) -> bool:
    return any(isinstance(v, np.ndarray) for v in values)


def ema(s, x, a):
    """One step of the exponential moving average: s' = s + ((x - s)·a + 128 >> 8); s, x UQ0.16; a =
    α·256 in 0 … 256, more counts as 256."""
    if _is_array(s, x, a):
        s, x, a = (np.asarray(v, np.int64) for v in (s, x, a))
        return s + ((x - s) * np.minimum(a, 256) + 128 >> 8)
    return s + ((x - s) * (a if a < 256 else 256) + 128 >> 8)


def exponent(steps, m, sh):
    """t = min(⌊steps · m · 2^-sh⌋, 2^21 - 1): how many halvings ``steps`` steps mean, in units of
    2^-16; sh -4 … 30."""
    if _is_array(steps, m, sh):
        steps, m, sh = (np.asarray(v, np.int64) for v in (steps, m, sh))
        return np.minimum(steps * m << 4 >> sh + 4, T_MAX)
    t = steps * m << 4 >> sh + 4
    return t if t < T_MAX else T_MAX


def halving(t):
    """65536 · 2^(-t/65536), by table and linear interpolation: e >> n of spec §5; 0 … 65536."""
    i = t >> 8 & 255
    if _is_array(t):
        high = _TABLE[i]
        return high - ((high - _TABLE[i + 1]) * (t & 255) >> 8) >> (t >> 16)
    high = EXP2_TABLE[i]
    return high - ((high - EXP2_TABLE[i + 1]) * (t & 255) >> 8) >> (t >> 16)


def decay(steps, m, sh):
    """Recency of an age: 1 - exp(-age/τ) in UQ0.16 = min(65535, 65536 - halving)."""
    d = 65536 - halving(exponent(steps, m, sh))
    if _is_array(d):
        return np.minimum(d, _TOP)
    return d if d < _TOP else _TOP


def age(step, last_step):
    """Steps since ``last_step`` on the page's own session clock, which wraps."""
    return step - last_step & AGE_MASK


def priority(s, d):
    """How willingly a page is evicted: (65535 - s)·decay >> 16; the highest goes first."""
    if _is_array(s, d):
        s, d = np.asarray(s, np.int64), np.asarray(d, np.int64)
    return (_TOP - s) * d >> 16


def fold(s, idle, m, sh):
    """The score after ``idle`` steps without a touch, each an EMA step with x = 0, in one: s ·
    min(65535, halving) >> 16; unchanged for none."""
    if _is_array(s, idle, m, sh):
        s, idle = np.asarray(s, np.int64), np.asarray(idle, np.int64)
        return np.where(idle == 0, s, s * np.minimum(halving(exponent(idle, m, sh)), _TOP) >> 16)
    if idle == 0:
        return s
    d = halving(exponent(idle, m, sh))
    return s * (d if d < _TOP else _TOP) >> 16


def touch(s, gap, a, m, sh):
    """Observed score at a page's first demand in a step, ``gap`` steps after its last: fold the gap
    - 1 idle steps, then one EMA step with x = 65535.

    A gap of 0 counts as 1.
    """
    if type(gap) is int:
        if gap > 1:
            s = s * _kept(gap - 1, m, sh) >> 16
        return s + ((_TOP - s) * (a if a < 256 else 256) + 128 >> 8)
    return ema(fold(s, np.maximum(np.asarray(gap, np.int64) - 1, 0), m, sh), _TOP, a)


@functools.lru_cache(1 << 16)
def _kept(idle: int, m: int, sh: int) -> int:
    """What `fold` leaves of 65536 after `idle` steps."""
    return min(_TOP, halving(exponent(idle, m, sh)))


def mass(s, pushed, k, a):
    """Pushed score: one EMA step with x = min(65535, pushed << k); k 0 … 15."""
    if _is_array(s, pushed, k, a):
        pushed = np.asarray(pushed, np.int64)
        return ema(s, np.minimum(pushed << k, _TOP), a)
    x = pushed << k
    return ema(s, x if x < _TOP else _TOP, a)


def initial(a):
    """The score of a page that has just been allocated: one touch from zero, since its allocation
    is an access."""
    return ema(0, _TOP, a)


class Decay:
    """Recency under one constant, remembered per age: ``Decay.of(m, sh)[age]``."""

    __slots__ = ("known", "m", "sh")

    def __init__(self, m: int, sh: int):
        self.m, self.sh, self.known = m, sh, {}

    @staticmethod
    @functools.cache
    def of(m: int, sh: int) -> "Decay":
        return Decay(m, sh)

    def __getitem__(self, steps: int) -> int:
        found = self.known.get(steps)
        if found is None:
            found = self.known[steps] = decay(steps, self.m, self.sh)
        return found


def log2(x: int) -> int:
    """log2 of x ≥ 1 with LOG_BITS after the point, linear between powers of two."""
    whole = x.bit_length() - 1
    return (whole << LOG_BITS) + (x << LOG_BITS >> whole) - (1 << LOG_BITS)
