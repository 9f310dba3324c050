# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How any engine's figures become a result: a :class:`Meter` step by step, :func:`summarise` at the
end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kelp_golden.endpoint import Endpoint
from kelp_spec.metadata import PageState, PrefetchSource

from ..trace.accesses import AccessSequence
from .plan import Plan
from .reference import references
from .result import PageResidency, ReplayResult

__all__ = ["Meter", "summarise"]


@dataclass
class Meter:
    """Figures of a replay step by step, from a golden endpoint's own counters: `begin` after the
    history, `end_step` after each step."""

    endpoint: Endpoint
    queues: int
    _marks: list = field(default_factory=list)

    def begin(self) -> None:
        self._marks = [self._mark()]

    def end_step(self) -> None:
        self._marks.append(self._mark())

    def _mark(self):
        c, q, n = self.endpoint.counters, self.endpoint.queue_counters, self.queues
        prefetched = sum(c[f"prefetch_issued_{s.name.lower()}"] for s in PrefetchSource if s)
        return (
            q["misses"][:n],
            [q["hits"][i] + q["misses"][i] + q["allocations"][i] for i in range(n)],
            c["fetches"] - prefetched,
            prefetched,
            c["write_backs"],
            [len(pages) for pages in self.endpoint.queues.listed[:n]],
        )

    def _differences(self, column: int) -> np.ndarray:
        return np.diff(np.array([m[column] for m in self._marks]), axis=0)

    def columns(self, steps: int) -> dict:
        """The per-step fields of a ReplayResult; steps that a comparison did not live to see are
        empty."""
        self._marks += [self._marks[-1]] * (steps + 1 - len(self._marks))
        demand, prefetch, write_back = (self._differences(c) for c in (2, 3, 4))
        return dict(
            step_misses=self._differences(0),
            step_accesses=self._differences(1),
            flash_demand=demand,
            flash_prefetch=prefetch,
            flash_write_back=write_back,
            resident_pages=np.array([m[5] for m in self._marks[1:]]),
        )

    def residency_map(self, pages: int) -> np.ndarray:
        """[pages, queues] of PageResidency as things stand."""
        states = np.zeros((pages, self.queues), np.int64)
        tracker, frames = self.endpoint.tracker, self.endpoint.frames
        for queue in range(self.queues):
            for page in range(pages):
                word = tracker.word(queue, page)
                if word.state in (PageState.RESIDENT, PageState.WRITING_BACK):
                    states[page, queue] = (
                        PageResidency.DIRTY if frames[word.place].dirty else PageResidency.CLEAN
                    )
                elif word.state in (PageState.COLD, PageState.FETCHING):
                    states[page, queue] = PageResidency.COLD
        return states


def summarise(
    done: Plan,
    *,
    engine: str,
    command: str,
    meter: Meter,
    counters: dict[str, int],
    mismatches: int,
    examples: Sequence[str] = (),
    line_requests: int,
    lockstep_accesses: int = 0,
    lockstep: dict[str, int] | None = None,
    seconds: float,
    cycles: int = 0,
    flash_bytes: tuple[int, int],
    latency: tuple[np.ndarray, np.ndarray] = (np.zeros(1, np.int64), np.zeros(1, np.int64)),
    ladder: bool = False,
    on_start: Callable[[str], None] | None = None,
) -> ReplayResult:
    """A result from an engine's counters (`counters`: the totals of the replay without its history)
    and its meter."""
    sequence = done.sequence
    return ReplayResult(
        trace=done.trace.name,
        engine=engine,
        command=command,
        config=done.setup.config.name,
        config_hash=done.setup.config.digest,
        policy=done.policy,
        seed=done.seed,
        residency=done.residency,
        capacity=done.capacity,
        kv_heads=sequence.kv_heads,
        formats=done.formats,
        accesses=len(sequence),
        lockstep_accesses=lockstep_accesses,
        line_requests=line_requests,
        mismatches=mismatches,
        mismatch_examples=tuple(examples),
        lockstep=lockstep or {},
        hit_rate=1 - counters["misses"] / counters["accesses"],
        demand_misses=counters["misses"],
        victims=counters["evictions"],
        write_backs=counters["write_backs"],
        prefetches=sum(counters[f"prefetch_issued_{s.name.lower()}"] for s in PrefetchSource if s),
        flash_reads=counters["fetches"],
        flash_read_bytes=flash_bytes[0],
        flash_write_bytes=flash_bytes[1],
        cycles=cycles,
        lines_per_second=line_requests / seconds,
        **meter.columns(sequence.steps),
        residency_map=meter.residency_map(sequence.final_pages),
        hit_latency=np.asarray(latency[0]),
        miss_latency=np.asarray(latency[1]),
        references=references(sequence, done.capacity, on_start=on_start),
        ladder=_ladder(sequence, done.capacity) if ladder else {},
    )


def _ladder(sequence: AccessSequence, capacity: int) -> dict[str, tuple[int, int]]:
    from ..lab.study import ladder  # compiles; only where it is asked for

    return ladder(sequence, capacity)
