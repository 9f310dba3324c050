# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The timeline of a recording under a read rule: the recorded one, or Quest's bounds computed from
the recording's own queries and keys.

``quest``: a page's bound is the largest q·k that its keys' ranges allow, Σ_d max(q_d·min_d,
q_d·max_d), mean over the group's query heads; at each step the :data:`QUEST_PAGES` − 1 whole pages
with the largest bounds are read, and the page being written. A fixed page budget, as Quest has.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from ..trace.accesses import access_sequence
from ..trace.trace import Trace, TraceError, read
from .engine import Timeline

__all__ = ["QUEST_PAGES", "RULES", "quest_reads", "timeline"]

RULES = ("recorded", "quest")
QUEST_PAGES = 12  #: the recorded rule reads 11 pages a queue and step in the mean


def quest_reads(trace: Trace) -> np.ndarray:
    """[layers, kv_heads, steps, pages] bool."""
    if trace.q is None or trace.k is None:
        raise TraceError(f"{trace.path}: has no queries and keys (q, k), which --reads quest needs")
    group = trace.q_heads // trace.kv_heads
    newest = (trace.prefill_tokens + np.arange(trace.steps)) // trace.page_tokens
    reads = np.zeros((trace.layers, trace.kv_heads, trace.steps, trace.pages), bool)
    whole = trace.tokens // trace.page_tokens
    for layer in range(trace.layers):
        for head in range(trace.kv_heads):
            keys = (
                trace.k[layer, head, : whole * trace.page_tokens]
                .astype(np.float32)
                .reshape(whole, trace.page_tokens, -1)
            )
            low, high = keys.min(axis=1), keys.max(axis=1)
            bound = np.zeros((trace.steps, trace.pages), np.float32)
            for query in trace.q[layer, head * group : (head + 1) * group].astype(np.float32):
                bound[:, :whole] += np.maximum(query, 0) @ high.T + np.minimum(query, 0) @ low.T
            bound[np.arange(trace.pages) >= newest[:, None]] = -np.inf
            best = np.argsort(-bound, axis=1, kind="stable")[:, : QUEST_PAGES - 1]
            chosen = reads[layer, head]
            np.put_along_axis(
                chosen, best, np.take_along_axis(bound, best, axis=1) > -np.inf, axis=1
            )
            chosen[np.arange(trace.steps), newest] = True
    return reads


def timeline(
    path: str | Path, rule: str = "recorded", accesses: int | None = None, first_step: int = 0
) -> Timeline:
    """The accesses of a recording from ``first_step`` on (whole steps holding at least
    ``accesses``; all by default); TraceError where it cannot be used."""
    trace = read(path)
    if rule not in RULES:
        raise ValueError(f"read rule {rule!r} is refused; legal: {', '.join(RULES)}")
    if rule == "quest":
        trace = dataclasses.replace(trace, reads=quest_reads(trace))
    sequence = access_sequence(trace, first_step=first_step, accesses=accesses)
    mass = trace.mass.reshape(trace.queues, trace.steps, trace.pages)[
        sequence.queue, first_step + sequence.step, sequence.page
    ]
    return Timeline.of(sequence, mass)
