# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The policy lab: what a controller-resident policy is worth on recorded accesses (docs/lab.md).

A policy of one's own derives from :class:`Policy`; ``kelp lab TRACE --policy my.py:Class`` runs it
beside the others.
"""

from .engine import Access, Outcome, Policy, Pool, Timeline, run

__all__ = ["Access", "Outcome", "Policy", "Pool", "Timeline", "run"]
