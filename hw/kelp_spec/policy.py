# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Eviction policies of a queue, and the constants of policy `kelp` (docs/policy.md). Plain Python;
numbers only, no arithmetic.

Everything here was tuned on recordings attn_0 and attn_3 alone (docs/lab.md); nothing names a
layer, a head or a trace.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "ALPHA_FAST",
    "ALPHA_SLOW",
    "COMMON_BITS",
    "CREDIT_MOST",
    "DUEL_MOST",
    "EPOCH_BITS",
    "EPOCH_SHIFT",
    "EXPLORE",
    "FAST_BITS",
    "FIRST_REGRET",
    "FOLDED",
    "GIVEN_BITS",
    "MARGIN_SHIFT",
    "MARGINAL_SHIFT",
    "MISS_RATE_SHIFT",
    "NEAR_LEAST",
    "NEAR_MOST",
    "NEAR_SHIFT",
    "OCTILE_BITS",
    "POLICIES",
    "PROFILE_BITS",
    "PROFILE_SHIFT",
    "Policy",
    "SCORE_WORD_BITS",
    "SECOND_REGRET",
    "SHADOW_STEPS",
    "SLOW_BITS",
    "SWEEPS",
    "SWEEPS_MOST",
    "WANTED",
    "WEIGHT_FAST",
]


class Policy(IntEnum):
    """The field `policy` of a queue's configuration."""

    EMA = 0  #: score by attention mass or accesses, budgets per queue: the plain formula
    KELP = 1  #: frequencies, a profile over distance and one pool


POLICIES = {p.name.lower(): p for p in Policy}

#: a page's two access frequencies, UQ0.9 and UQ0.12, in one word
FAST_BITS, SLOW_BITS = 9, 12
SCORE_WORD_BITS = FAST_BITS + SLOW_BITS
ALPHA_FAST, ALPHA_SLOW = 56, 8  #: their α · 256
FOLDED = 511  #: idle steps beyond this count as this many
WEIGHT_FAST = 6  #: common value = 6 · fast + slow
COMMON_BITS = 13

#: an entry of a queue's profile: reads at one distance, and when that was last counted
PROFILE_BITS, EPOCH_BITS = 7, 2
EPOCH_SHIFT = 6  #: the count halves every 64 steps
PROFILE_SHIFT = 6  #: first opinion = common value + count · 64

#: factor (in 1/256) of a page whose turn in this step is over: it falls by the miss rate >> 7
NEAR_MOST, NEAR_LEAST, NEAR_SHIFT = 216, 128, 7
MISS_RATE_SHIFT = 10
MARGINAL_SHIFT = 3  #: the marginal value follows victims by 1/8
MARGIN_SHIFT = 1  #: a prefetch must be worth twice the marginal value
CREDIT_MOST = 256
#: of disputed evictions, one in so many goes to the opinion that is not followed
EXPLORE = 8
DUEL_MOST = 1024
#: what a flash read of a page counts that the first, the second opinion alone gave away
FIRST_REGRET, SECOND_REGRET = 2, 4
#: who gave a page away, in the lowest bits of a cold word's `place`
GIVEN_BITS = 2
#: queues swept for one victim: so many that have a page to give, so many in all
SWEEPS, SWEEPS_MOST = 2, 16

SHADOW_STEPS = 256  #: steps that the LRU shadow remembers
#: it orders the pages of one step by up to 2^3 groups of queues
OCTILE_BITS = 3
WANTED = 32  #: pages that one look ahead may ask for
