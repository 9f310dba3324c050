# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`hyperbolic`: one frequency over the turns since a page was read, in logarithms; the sweeps and
the pool's tree are `kelp`'s (docs/policy.md).

It has none of `kelp`'s second frequency, duel, LRU shadow and prefetch. Where a frequency has
faded, what is left is recency, so that it falls back to LRU over one pool.
"""

from __future__ import annotations

from kelp_spec import policy as spec

from ..engine import Pool
from .kelp import Constants, Kelp

__all__ = ["RATE", "Hyperbolic"]

#: What `hyperbolic` sets of `kelp`'s constants: those that are 0, or 256 of 256, leave a part out.
RATE = Constants(
    alpha_fast=0,
    alpha_slow=4,
    weight_fast=0,
    weight_profile=4,
    near_most=256,
    near_least=256,
    explore=0,
    finished=1,
    once=6,
    late=2,
)


class Hyperbolic(Kelp):
    id = "hyperbolic"
    bits = spec.SLOW_BITS + 24 + spec.PROFILE_BITS + spec.EPOCH_BITS
    prefetches = False

    def __init__(self, pool: Pool, constants: Constants = RATE):
        super().__init__(pool, constants)
