# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Constants of policy 2, the table policy (docs/select_tables.md): how likely a page is read
in its queue's next turn, learnt from what choices took and from guessed queries."""

from __future__ import annotations

from fractions import Fraction

__all__ = [
    "BACKLOG",
    "COST",
    "CREDIT_MOST",
    "EARLY_MOST",
    "EARNED",
    "FAST",
    "FAST_FOLD",
    "FETCH",
    "FLYING_SHARE",
    "FOLDED",
    "GUESS_SHIFT",
    "LATER_READ",
    "ONE",
    "PROFILE_STEPS",
    "SLOW",
    "SLOW_FOLD",
    "THRESHOLD",
    "THRESHOLD_CREDIT",
    "T_SHIFT",
    "T_SIDE",
    "V_SHIFT",
    "start_of_t",
    "start_of_v",
]

ONE = 65535  #: a certainty
FAST, SLOW = 56, 8  #: weights of a read in the two frequencies (UQ0.12), of 256
FOLDED = 255  #: idle steps that the fold tables tell apart
PROFILE_STEPS = 64  #: after which a profile's counts are halved
V_SHIFT, T_SHIFT = 7, 6  #: how slowly V and T learn
GUESS_SHIFT = 4  #: a likelihood of 16 bits is a frequency of 12
T_SIDE = 12  #: entries of a side of T: an octave each
LATER_READ = 200  #: of 256: what a read one turn later is worth
FLYING_SHARE = 8  #: of the frames one in so many may wait for the tier
BACKLOG = 64  #: pages that the tier may have before it when one is asked for that nobody waits for
EARLY_MOST = 32  #: pages fetched early for a queue
#: credit that a read earns which LRU would have made, and that one of ours costs. LRU's shadow
#: reads what is wanted, of which estimates say too much, so its reads count as seven eighths
EARNED, COST, CREDIT_MOST = 7, 8, 2048
FETCH = 1024  #: mass, of each query head's 65536, from which on a page that is wanted is fetched
#: a page is fetched early from this likelihood on, less by THRESHOLD_CREDIT for each COST
THRESHOLD, THRESHOLD_CREDIT = 26214, 87


def _fold(weight: int) -> tuple[int, ...]:
    """[FOLDED + 1]: 65536 · (1 − weight/256)^n, rounded half up; nothing is left at the end."""
    rows = (Fraction(256 - weight, 256) ** n * 65536 + Fraction(1, 2) for n in range(FOLDED))
    return (*map(int, rows), 0)


FAST_FOLD, SLOW_FOLD = _fold(FAST), _fold(SLOW)


def start_of_v() -> list[int]:
    """[4 · 8 · 8]: V of a new session, by buckets of fast, slow and profile."""
    return [
        round(min(1.0, 0.7 * 2.0 ** (i - 3) + 0.7 * 2.0 ** (j - 7) + 0.5 * 2.0 ** (k - 7)) * ONE)
        for i in range(4)
        for j in range(8)
        for k in range(8)
    ]


def start_of_t() -> list[int]:
    """[12 · 12]: T of a new session, by octaves of value and of guessed mass."""
    return [
        round(0.9 * 2.0 ** (i - T_SIDE + 1) * ONE) for i in range(T_SIDE) for _ in range(T_SIDE)
    ]
