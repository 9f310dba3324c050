# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a replay of a recording found: filled by an engine (RTL or golden model), read by
:mod:`kelp_sim.report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from .reference import REFERENCES, Reference
from .waiting import TIER_LATENCY, Waiting

__all__ = ["PageResidency", "ReplayResult"]


class PageResidency(IntEnum):
    """One cell of :attr:`ReplayResult.residency_map`."""

    ABSENT = 0  #: never written
    COLD = 1  #: on flash only
    CLEAN = 2  #: in DRAM, same as on flash
    DIRTY = 3  #: in DRAM, differs from flash or is not there


@dataclass(frozen=True, eq=False, kw_only=True)
class ReplayResult:
    """Counts are of the free-running replay unless they say lock-step; an access is the first
    demand line of a page in a step.

    A misfilled field (a fraction outside 0 … 1, an array of another shape) is a ValueError that
    names it.
    """

    # What ran.
    trace: str  #: the recording's name
    engine: str  #: "rtl" or "golden"
    command: str  #: what to type to get this result again
    config: str
    config_hash: str
    policy: str
    seed: int
    residency: float  #: asked for
    capacity: int  #: frames that makes
    kv_heads: int  #: queue = (layer − first_layer) · kv_heads + head
    #: where → stored format, for example "layers 0–2, K" → "fp8_e4m3"
    formats: Mapping[str, str]

    # Agreement with the golden model.
    accesses: int
    lockstep_accesses: int
    line_requests: int
    #: unequal lines + decisions + counters, free-running and lock-step together
    mismatches: int
    mismatch_examples: tuple[str, ...] = ()
    #: counts of the lock-step part: "misses", "victims", "write_backs", …
    lockstep: Mapping[str, int] = field(default_factory=dict)

    # Who waits (docs/replay.md).
    tier_latency: int = TIER_LATENCY  #: cycles from a page's miss to its first byte
    waiting: Waiting  #: of the engine's misses; its cycles are the model's
    reference_waiting: Mapping[str, Waiting]  #: the same of each of `references`
    #: [steps] cycles of the engine's clock, and of the same requests with everything resident; None
    #: where there is no clock, or they were not replayed
    step_cycles: np.ndarray | None = None
    resident_step_cycles: np.ndarray | None = None

    # What the policy did, from the engine's own counters.
    hit_rate: float  #: 1 − misses / accesses
    demand_misses: int
    victims: int
    write_backs: int
    prefetches: int
    flash_reads: int  #: pages read from flash, demand and prefetch
    flash_read_bytes: int
    flash_write_bytes: int

    # Speed.
    cycles: int  #: 0: the engine has no clock
    lines_per_second: float  #: line requests per second of wall-clock time of the simulation

    # Per step and queue (head).
    step_accesses: np.ndarray  #: [steps, queues]
    step_misses: np.ndarray  #: [steps, queues]
    flash_demand: np.ndarray  #: [steps] pages read on demand
    flash_prefetch: np.ndarray  #: [steps] pages read ahead
    flash_write_back: np.ndarray  #: [steps] pages written
    residency_map: np.ndarray  #: [pages, queues] of PageResidency, at the end
    #: [steps, queues] resident pages when each step ends
    resident_pages: np.ndarray | None = None

    # Latency from request to answer in cycles: bin b counts 2^b … 2^(b+1) − 1, bin 0 also 0.
    hit_latency: np.ndarray
    miss_latency: np.ndarray

    #: kelp_sim.replay.reference.references(sequence, capacity): the same reads, the same capacity
    references: Mapping[str, Reference]
    #: kelp_sim.lab.study.ladder: policy → (misses, flash reads) on the same reads with the same
    #: capacity, worst idea first; empty where not asked for.
    ladder: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    first_layer: int = 0  #: which of the recording's layers queue 0 is of

    def __post_init__(self) -> None:
        for name in ("residency", "hit_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} is refused; legal: 0 … 1")
        for name in ("accesses", "line_requests", "kv_heads"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} = {getattr(self, name)} is refused; legal: above 0")
        if self.cycles < 0:
            raise ValueError(f"cycles = {self.cycles} is refused; legal: 0 (no clock) and up")
        if set(self.references) != set(REFERENCES):
            raise ValueError(
                f"references = {sorted(self.references)} are refused; legal: {sorted(REFERENCES)}"
            )
        steps, queues = np.shape(self.step_accesses)
        shapes = {
            "step_misses": (steps, queues),
            "flash_demand": (steps,),
            "flash_prefetch": (steps,),
            "flash_write_back": (steps,),
            "residency_map": (len(self.residency_map), queues),
            "resident_pages": (steps, queues),
            "step_cycles": (steps,),
            "resident_step_cycles": (steps,),
            "hit_latency": (len(self.hit_latency),),
            "miss_latency": (len(self.miss_latency),),
        }
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and np.shape(value) != shape:
                raise ValueError(f"{name} has shape {np.shape(value)}; legal: {shape}")
        if set(self.reference_waiting) != set(self.references):
            raise ValueError(
                f"reference_waiting = {sorted(self.reference_waiting)} is refused; legal: those of "
                + "references"
            )
        for name, reference in self.references.items():
            if reference.accesses.shape != (steps, queues):
                raise ValueError(
                    f"references[{name!r}] is over {reference.accesses.shape} steps and "
                    + f"queues; legal: {(steps, queues)}"
                )

    @property
    def steps(self) -> int:
        return self.step_accesses.shape[0]

    @property
    def queues(self) -> int:
        return self.step_accesses.shape[1]

    @property
    def token_time(self) -> float:
        """A step's cycles over those with everything resident, of the sums: measured where both
        were replayed, else the model's."""
        if not self.token_time_measured:
            return self.waiting.token_time
        return float(self.step_cycles.sum() / self.resident_step_cycles.sum())

    @property
    def token_time_measured(self) -> bool:
        return self.step_cycles is not None and self.resident_step_cycles is not None

    @property
    def lru_hit_rate(self) -> float:
        return self.references["LRU per queue"].hit_rate

    @property
    def lru_pooled_hit_rate(self) -> float:
        return self.references["LRU pooled"].hit_rate

    @property
    def belady_hit_rate(self) -> float:
        return self.references["Belady pooled"].hit_rate

    @property
    def flash_reads_per_access(self) -> float:
        return self.flash_reads / self.accesses

    @property
    def flash_bytes(self) -> int:
        return self.flash_read_bytes + self.flash_write_bytes

    @property
    def lines_per_cycle(self) -> float:
        return self.line_requests / self.cycles if self.cycles else 0.0
