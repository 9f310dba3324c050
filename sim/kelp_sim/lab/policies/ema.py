# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""`ema`: policy 0 of the device as it stands: (1 − score) · recency, the score an EMA of observed
accesses folded at the next touch.

docs/arithmetic.md has the integers; tau 1000 and alpha 26/256 are the defaults of `kelp replay`.
The highest priority goes first; ties: lower queue, page.
"""

from __future__ import annotations

import numpy as np

from kelp_golden import arithmetic
from kelp_spec.scores import idle_constants, recency_constants

from .lfu import Scored

__all__ = ["Ema"]


class Ema(Scored):
    id = "ema"
    bits = 16 + 24

    def __init__(self, pool, alpha=26, tau=1000):
        """The device's registers of these names: α in 1/256, τ in steps."""
        super().__init__(pool)
        self.alpha, self.idle, self.recency = alpha, idle_constants(alpha), recency_constants(tau)
        # all history was written before the first step
        self.score = np.full(len(pool.known), arithmetic.initial(alpha), np.int64)
        self.last = np.full(len(pool.known), -1, np.int64)

    def seen(self, now, missed):
        key = now.key
        if self.pool.known[key]:
            self.score[key] = arithmetic.touch(
                int(self.score[key]), now.step - int(self.last[key]), self.alpha, *self.idle
            )
        else:
            self.score[key] = arithmetic.initial(self.alpha)
        self.last[key] = now.step

    def value(self, keys, now):
        return -arithmetic.priority(
            self.score[keys], arithmetic.decay(now.step - self.last[keys], *self.recency)
        )
