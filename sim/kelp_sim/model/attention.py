# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How much of the attention mass lies on the newest pages, measured on recordings: what a window of
recent tokens can hope for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..trace.trace import Trace, TraceError, read
from .findings import Finding, finding
from .inputs import Inputs

__all__ = ["findings", "measured", "recent_mass"]


def recent_mass(trace: Trace, share: float) -> float:
    """Mean over steps, layers and heads of the mass on the newest ⌈share · pages⌉ pages, of the
    mass on all. TraceError where a step has none."""
    mass = trace.mass.reshape(trace.queues, trace.steps, trace.pages).astype(np.float64)
    total = np.cumsum(mass, axis=2)
    newest = (trace.prefill_tokens + np.arange(trace.steps)) // trace.page_tokens
    # pages that are not among the newest
    before = newest + 1 - np.ceil(share * (newest + 1)).astype(int)
    older = np.where(
        before > 0,
        np.take_along_axis(total, np.maximum(0, before - 1)[None, :, None], axis=2)[..., 0],
        0.0,
    )
    everything = total[:, :, -1]
    if not everything.all():
        raise TraceError(f"{trace.path}: has steps without attention mass; record again")
    return float(1 - (older / everything).mean())


def measured(inputs: Inputs, recordings: Sequence[Path]) -> Inputs:
    """``inputs`` with the recent mass of recordings; each counts the same."""
    traces = [read(path) for path in recordings]
    values = tuple(
        float(np.mean([recent_mass(trace, share) for trace in traces]))
        for share in inputs.policy.residency
    )
    return replace(inputs, policy=replace(inputs.policy, recent_mass=values))


def findings(inputs: Inputs) -> list[Finding]:
    policy = inputs.policy
    more = f"; on the newest {policy.residency[1]:.0%}: {100 * policy.recent_mass[1]:.1f} %"
    return [
        finding(
            "attention",
            "mass captured by a window",
            "%",
            "72",
            100 * policy.recent_mass[0],
            f"recordings: on the newest {policy.residency[0]:.1%} of the pages{more}",
            within=0.02,
        ),
        finding(
            "attention",
            "mass on the most recent few K tokens, at least",
            "%",
            ">70",
            100 * policy.recent_mass[0],
            f"recordings of 2048 tokens: the newest {policy.residency[0]:.1%}",
        ),
    ]
