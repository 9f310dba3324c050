# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a replay asks of a device: :func:`plan` turns a recording, a configuration and the user's
choices into one :class:`Plan`.

Every engine carries out the same one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from kelp_golden.setup import LayerFormats, Setup
from kelp_spec.config import POOLS, Config
from kelp_spec.formats import Format
from kelp_spec.hints import ENTRIES, SEQUENCE_BITS, mass_lines, pack
from kelp_spec.metadata import PrefetchSource, ScoreSource
from kelp_spec.policy import Policy

from ..trace.accesses import AccessSequence, access_sequence
from ..trace.trace import LINE_BYTES, Trace, TraceError
from .waiting import TIER_LATENCY

__all__ = ["BUDGETS", "Excerpt", "Plan", "Prefetch", "Retention", "capacity_shares", "plan"]

#: Who gives way when a pool runs short: queues above an equal share of its frames, or (no budgets)
#: the queue that asks.
BUDGETS = ("equal", "none")
_UNLIMITED = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class Excerpt:
    """The part of a recording that is replayed: whole steps that hold so many accesses, from a step
    on where a page opens; what was written before is the history. Of all that, some layers."""

    accesses: int | None = None  #: all that are left
    first_step: int = 0
    layers: tuple[int, int] | None = None  #: first and last; all of them


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What decides which pages stay; `tau`, `alpha`, `source` and `mass_shift` are policy 0's."""

    policy: Policy = Policy.EMA
    tau: float = 1000
    alpha: int = 26
    source: ScoreSource = ScoreSource.OBSERVED
    mass_shift: int = 0
    budget: str = "equal"
    low_water: int = 1
    high_water: int = 4

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise ValueError(f"budget = {self.budget!r} is refused; legal: {', '.join(BUDGETS)}")

    def setup(self) -> dict:
        """The fields of a Setup; budgets follow from its pools."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "budget"}


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """The sources that are switched on, and how many pages each side the window source fetches."""

    sources: frozenset[PrefetchSource] = frozenset()
    window: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """One replay, the same for every engine."""

    trace: Trace
    sequence: AccessSequence
    setup: Setup
    residency: float
    capacity: int
    budget: str
    seed: int
    tier_latency: int = TIER_LATENCY  #: cycles; of a replay at full speed

    @property
    def policy(self) -> str:
        """Policy and what it was given, for people."""
        s = self.setup
        budgets = "equal budgets" if self.budget == "equal" else "no budgets"
        plain = [f"policy ema, τ {s.tau:g}", f"α {s.alpha}/256", s.source.name.lower(), budgets]
        parts = plain if s.policy == Policy.EMA else [f"policy {s.policy.name.lower()}"]
        prefetch = "+".join(sorted(source.name.lower() for source in s.prefetch))
        return ", ".join([*parts, *([f"prefetch {prefetch}"] if prefetch else [])])

    @cached_property
    def requests(self) -> np.ndarray:
        """History and replay as LINE_REQUEST, in order."""
        return np.concatenate([self.sequence.history_requests(), self.sequence.line_requests()])

    @property
    def history(self) -> int:
        """Requests of `requests` that come before the first step."""
        return self.sequence.history_pages * self.sequence.queues * 2 * self.trace.half_lines

    @cached_property
    def step(self) -> np.ndarray:
        """[requests]: the step of each, −1 in the history."""
        return np.append(self.sequence.step, -1)[self.requests["access"]]

    @cached_property
    def row(self) -> np.ndarray:
        """[requests]: each one's row in `lines`."""
        r = self.requests
        return (
            (r["queue"].astype(np.int64) * self.trace.pages + r["page"]) * 2 + r["kv"]
        ) * self.trace.half_lines + r["line"]

    @property
    def lines(self) -> np.ndarray:
        """uint8 [rows, 64]: the recording's own lines."""
        return self.trace.lines.reshape(-1, LINE_BYTES)

    @cached_property
    def hints(self) -> tuple[tuple[bytes, ...], ...]:
        """[steps]: the hint lines that the host pushes when a step is over: the attention mass of
        every page written so far, queue after queue."""
        s = self.sequence
        if self.setup.source != ScoreSource.PUSHED:
            return ((),) * s.steps
        mass = self.trace.mass.reshape(self.trace.queues, self.trace.steps, self.trace.pages)
        steps, sequence = [], 0
        for step in range(s.steps):
            lines = []
            for queue in range(s.queues):
                masses = mass[queue, s.first_step + step, : int(s.newest_page(step)) + 1].tolist()
                packed = mass_lines(
                    session=0, queue=queue, first_page=0, masses=masses, sequence=sequence
                )
                lines += [pack(line, self.setup.config) for line in packed]
                sequence = (sequence + -(-len(masses) // ENTRIES)) % (1 << SEQUENCE_BITS)
            steps.append(tuple(lines))
        return tuple(steps)

    @cached_property
    def resident_setup(self) -> Setup | None:
        """The same device with a frame for every page, or None where it has too few: nothing is
        evicted, nothing fetched."""
        setup = self.setup
        held = np.bincount(setup.pools, minlength=len(POOLS)) * setup.used_pages
        keep = max(setup.low_water, setup.high_water, 1)
        frames = setup.config.frames
        if any(n and n + keep > limit for n, limit in zip(held.tolist(), frames, strict=True)):
            return None
        return replace(setup, limits=frames, prefetch=frozenset())

    @property
    def first_layer(self) -> int:
        """Which of the recording's layers is replayed as layer 0."""
        return self.trace.first_layer or 0

    @cached_property
    def formats(self) -> dict[str, str]:
        """Where → stored format, for people."""
        found, first, shift = {}, 0, self.first_layer
        for r in self.setup.formats:
            if first >= self.setup.layers:
                break
            last = min(r.last_layer, self.setup.layers - 1)
            where = (
                "all layers"
                if (first, last) == (0, self.setup.layers - 1)
                else f"layers {shift + first}–{shift + last}"
            )
            found |= {f"{where}, K": r.k.label, f"{where}, V": r.v.label}
            first = last + 1
        return found


def capacity_shares(capacity: int, pools: Sequence[int]) -> tuple[int, ...]:
    """Frames of each pool: `capacity` in proportion to the queues it holds (`pools`: each queue's
    pool), the rest to the largest remainders."""
    held = np.bincount(pools, minlength=len(POOLS))
    whole, rest = np.divmod(capacity * held, len(pools))
    for pool in np.argsort(-rest, kind="stable")[: capacity - int(whole.sum())]:
        whole[pool] += 1
    return tuple(whole.tolist())


def plan(
    trace: Trace,
    config: Config,
    *,
    residency: float = 0.25,
    excerpt: Excerpt = Excerpt(),
    formats: Iterable[LayerFormats] = (
        LayerFormats(last_layer=1023, k=Format.RAW16, v=Format.RAW16),
    ),
    retention: Retention = Retention(),
    prefetch: Prefetch = Prefetch(),
    seed: int = 1,
) -> Plan:
    """Everything that a replay is, checked: TraceError where the recording cannot be used,
    ValueError for a choice outside its range. `formats` go by the recording's layers, whichever of
    them `excerpt` takes."""
    if excerpt.layers is not None:
        trace = trace.of_layers(*excerpt.layers)
        first = excerpt.layers[0]
        formats = [
            replace(part, last_layer=part.last_layer - first)
            for part in formats
            if part.last_layer >= first
        ]
    sequence = access_sequence(trace, first_step=excerpt.first_step, accesses=excerpt.accesses)
    try:
        capacity = sequence.capacity(residency)
    except ValueError as error:
        raise ValueError(f"{trace.path}: {error}") from None
    rest = dict(
        config=config,
        layers=trace.layers,
        kv_heads=trace.kv_heads,
        used_lines=trace.half_lines,
        used_pages=sequence.final_pages,
        formats=tuple(formats),
        prefetch=prefetch.sources,
        window=prefetch.window,
        **retention.setup(),
    )
    try:
        # Pools follow from the formats; their frames from the pools.
        pools = Setup(**rest, limits=config.frames, budgets=(0,) * len(POOLS)).pools
        limits = capacity_shares(capacity, pools)
        held = np.bincount(pools, minlength=len(POOLS))
        shares = [
            limit // max(1, int(queues)) * lines
            for limit, queues, lines in zip(limits, held, config.frame_lines, strict=True)
        ]
        equal = retention.budget == "equal"
        budgets = tuple(shares) if equal else (_UNLIMITED,) * len(POOLS)
        setup = Setup(**rest, limits=limits, budgets=budgets)
    except ValueError as error:
        raise TraceError(f"{trace.path}: does not fit: {error}") from None
    return Plan(
        trace=trace,
        sequence=sequence,
        setup=setup,
        residency=residency,
        capacity=capacity,
        budget=retention.budget,
        seed=seed,
    )
