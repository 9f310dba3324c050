# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Who waits, and how long a token takes: what a page that is on flash costs the host
(docs/replay.md, "Who waits").

A layer waits when any page that it reads is missed. An engine without a clock, the lab among them,
takes its cycles from a model of the closed loop, :func:`waiting`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace.accesses import AccessSequence
from ..trace.trace import LINE_BYTES

__all__ = ["ANSWER", "TIER_BYTES", "TIER_LATENCY", "Waiting", "slot_bytes", "waiting"]

TIER_LATENCY = 25_000  #: cycles of 1 ns from a page's miss to its first byte
TIER_BYTES = 14  #: of the cold tier a cycle
ANSWER = 84  #: cycles from a layer's last request to its answer: 64 of memory, 20 of the endpoint
_SECTOR = 512


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Of one replay. `cycles` and `resident_cycles` are the model's, of all steps together."""

    layers: float  #: share of (step, layer) with at least one miss
    tokens: float  #: share of steps with at least one miss
    cycles: int
    resident_cycles: int  #: the same with everything resident

    @property
    def token_time(self) -> float:
        """A step's cycles over those with everything resident, of the sums."""
        return self.cycles / self.resident_cycles


def slot_bytes(stored_lines: int) -> int:
    """Bytes of a page's cold slot: its stored lines and a sector for validity and poison, in whole
    sectors."""
    return (-(-stored_lines * LINE_BYTES // _SECTOR) + 1) * _SECTOR


def waiting(
    sequence: AccessSequence,
    misses: np.ndarray,
    *,
    slots: np.ndarray | int | None = None,
    tier_latency: int = TIER_LATENCY,
) -> Waiting:
    """From the misses of each step and queue, [steps, queues].

    A (step, layer) of n line requests lasts n + ANSWER cycles with everything resident. When k of
    its accesses miss, the tier's time takes the place of n where that is longer: ``tier_latency``
    and k slots at TIER_BYTES a cycle. ``slots``: bytes of a slot, of each queue; those of a raw16
    page by default.
    """
    if slots is None:
        slots = slot_bytes(2 * sequence.page_tokens * sequence.lines_per_token)
    by_layer = sequence.steps, sequence.layers, sequence.kv_heads
    fetched = (misses * slots).reshape(by_layer).sum(axis=2)
    missed = misses.reshape(by_layer).any(axis=2)
    lines = sequence.line_counts().reshape(by_layer).sum(axis=2)
    tier = np.where(missed, tier_latency + -(-fetched // TIER_BYTES), 0)
    return Waiting(
        layers=float(missed.mean()),
        tokens=float(missed.any(axis=1).mean()),
        cycles=int((np.maximum(lines, tier) + ANSWER).sum()),
        resident_cycles=int((lines + ANSWER).sum()),
    )
