# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Eviction policies of a queue, and the constants of policy `kelp` (docs/policy.md). Plain Python;
numbers only, no arithmetic.

How they were tuned: docs/lab.md. Nothing here names a layer, a head or a trace.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "ALPHA",
    "EPOCH_BITS",
    "EPOCH_SHIFT",
    "FADE_SHIFT",
    "FOLDED",
    "FREQUENCY_BITS",
    "LATE",
    "LEFT",
    "LOG_BITS",
    "LOG_MOST",
    "ONCE",
    "POLICIES",
    "PROFILE_BITS",
    "PROFILE_SHIFT",
    "Policy",
    "SWEEPS",
    "SWEEPS_MOST",
]


class Policy(IntEnum):
    """The field `policy` of a queue's configuration."""

    EMA = 0  #: score by attention mass or accesses, budgets per queue: the plain formula
    KELP = 1  #: how often a page was read over how long ago, in one pool


POLICIES = {p.name.lower(): p for p in Policy}

#: a page's frequency of accesses, UQ0.12, in the lowest bits of its score; those above are 0
FREQUENCY_BITS = 12
ALPHA = 4  #: its α · 256
FOLDED = 511  #: idle steps beyond this count as this many

#: an entry of a queue's profile: reads at one distance, and when that was last counted
PROFILE_BITS, EPOCH_BITS = 7, 2
EPOCH_SHIFT = 6  #: the count halves every 64 steps
PROFILE_SHIFT = 5  #: a count of the profile weighs 32

ONCE = 8  #: what every page has beside its frequency: an eighth of what its first read adds
FADE_SHIFT = 1  #: in a value, n idle steps leave what 2 · n do of a frequency
LATE = 1  #: quarters of a step that a page is idle for when its turn in this step is over
LOG_BITS = 8  #: of a logarithm, after the point
LOG_MOST = 26 << LOG_BITS  #: log2 of the quarters of idle steps that a page word can tell

#: queues swept for one victim: so many that have a page to give, so many in all
SWEEPS, SWEEPS_MOST = 2, 16
#: queues left behind that wait to be valued anew, at most, the latest: those of a layer
LEFT = 8
