# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The timeline of a recording under a read rule: the recorded one, or Quest's bounds computed from
the recording's own queries and keys, or another share and limit on the recording's own mass.

``top-p=P,k=K``: the largest mass first until P of it, at most K pages, and the page being written.
A recording that keeps no small masses (``mass_floor``) serves only rules that need none of them.

``quest``: a page's bound is the largest q·k that its keys' ranges allow, Σ_d max(q_d·min_d,
q_d·max_d), mean over the group's query heads; at each step the :data:`QUEST_PAGES` − 1 whole pages
with the largest bounds are read, and the page being written. A fixed page budget, as Quest has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path

import numpy as np

from ..trace.accesses import access_sequence
from ..trace.trace import Trace, TraceError, read
from .engine import Timeline
from .recorder import ReadRule

__all__ = ["QUEST_PAGES", "RULES", "derived_reads", "quest_reads", "timeline"]

RULES = ("recorded", "quest", "top-p=P,k=K")
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


#: Cells (queue, step) that a derived rule may leave short where the recording keeps no mass.
_SHORT = 0.001


def derived_reads(trace: Trace, rule: ReadRule) -> np.ndarray:
    """[layers, kv_heads, steps, pages] bool: ``rule`` on the recorded mass. TraceError where pages
    that it reads were recorded without their mass."""
    newest = (trace.prefill_tokens + np.arange(trace.steps)) // trace.page_tokens
    reads = np.zeros((trace.layers, trace.kv_heads, trace.steps, trace.pages), bool)
    short = 0
    for layer in range(trace.layers):
        for head in range(trace.kv_heads):
            mass = trace.mass[layer, head].astype(np.int64)
            chosen = reads[layer, head] = rule.chosen(mass, newest, whole=1 << 16)
            # rounding to 16 bits may take half a unit from each page
            held = np.where(chosen, mass, 0).sum(axis=1) + trace.pages / 2
            counted = chosen.sum(axis=1) < rule.max_pages
            short += int((counted & (held < rule.top_p * (1 << 16))).sum())
    if short > _SHORT * trace.queues * trace.steps:
        raise TraceError(
            f"{trace.path}: has not the masses that --reads top-p={rule.top_p:g},k="
            + f"{rule.max_pages} needs in {short} of {trace.queues * trace.steps} cells; record "
            + "again with a smaller --mass-floor, or read less"
        )
    return reads


def _read_rule(text: str) -> ReadRule:
    """Of ``top-p=P,k=K``; ValueError says what is legal."""
    found = re.fullmatch(r"top-p=([0-9.]+),k=([0-9]+)", text)
    with contextlib.suppress(ValueError):
        if found and 0 < float(found[1]) <= 1 and int(found[2]) > 0:
            return ReadRule(float(found[1]), int(found[2]))
    raise ValueError(
        f"read rule {text!r} is refused; legal: {', '.join(RULES)}, P up to 1 and K from 1"
    )


def timeline(
    path: str | Path, rule: str = "recorded", accesses: int | None = None, first_step: int = 0
) -> Timeline:
    """The accesses of a recording from ``first_step`` on (whole steps holding at least
    ``accesses``; all by default); TraceError where it cannot be used."""
    trace = read(path)
    if rule == "quest":
        trace = dataclasses.replace(trace, reads=quest_reads(trace))
    elif rule != "recorded":
        trace = dataclasses.replace(trace, reads=derived_reads(trace, _read_rule(rule)))
    sequence = access_sequence(trace, first_step=first_step, accesses=accesses)
    mass = trace.mass.reshape(trace.queues, trace.steps, trace.pages)[
        sequence.queue, first_step + sequence.step, sequence.page
    ]
    return Timeline.of(sequence, mass)
