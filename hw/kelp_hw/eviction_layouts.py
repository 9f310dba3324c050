# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Payloads between the blocks of the score and eviction engines (docs/design.md §6, §7)."""

from __future__ import annotations

from amaranth.lib import data

from kelp_spec.config import Config
from kelp_spec.metadata import SCORE_BITS, STEP_BITS
from kelp_spec.policy import PROFILE_BITS

from .layouts import POOL_BITS, Layouts

__all__ = ["EvictionLayouts", "CLASS_BITS"]

CLASS_BITS = 2  #: 0 ordinary, 1 touched in the sweep's step, 2 the queue's newest page


class EvictionLayouts(Layouts):
    """`Layouts` and, beside them:

    Attributes
    ----------
    scanned : layout
        A page as its SCAN found it: `eligible` = RESIDENT and not pinned, `cold` = COLD. Policy
        `kelp`: `score` is its common value, `count` that of its queue's profile, `over` that its
        turn in this step has passed.
    candidate : layout
        A place in a sweep's list.
    look : layout
        What the queue state knows of a squeue: `listed` = it has a listed page; its recency
        constant.
    root : layout
        The queue of a pool with the largest excess, or that offers a page most gladly (policy
        `kelp`); `excess` 0 when none.
    config_write : layout
        Broadcast of one queue's configuration.
    """

    def __init__(self, config: Config):
        super().__init__(config)
        c = config
        S = data.StructLayout
        self.scanned = S(
            {
                "page": c.page_bits,
                "slot": 4,
                "tag": 1,
                "eligible": 1,
                "cold": 1,
                "last_step": STEP_BITS,
                "score": SCORE_BITS,
                "count": PROFILE_BITS,
                "over": 1,
            }
        )
        self.candidate = S(
            {
                "kind": CLASS_BITS,
                "priority": SCORE_BITS,
                "page": c.page_bits,
                "last_step": STEP_BITS,
            }
        )
        self.look = S(
            {
                "listed": 1,
                "pool": POOL_BITS,
                "newest": c.page_bits,
                "newest_valid": 1,
                "policy": 1,
                "tau_m": 16,
                "tau_sh": 5,
            }
        )
        self.root = S({"squeue": c.squeue_bits, "excess": max(c.dram_line_bits, SCORE_BITS)})
        self.config_write = S({"squeue": c.squeue_bits, "queue_config": self.queue_config})
