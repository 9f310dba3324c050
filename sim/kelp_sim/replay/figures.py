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
from .waiting import slot_bytes, waiting

__all__ = ["LockStepPart", "Measured", "Meter", "summarise"]


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


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """What an engine did, of the replay without its history."""

    counters: dict[str, int]  #: by the names of `kelp_spec.registers.COUNTERS`
    mismatches: int
    examples: Sequence[str] = ()
    line_requests: int
    seconds: float
    cycles: int = 0  #: 0: the engine has no clock
    flash_bytes: tuple[int, int]  #: read, written
    #: as :class:`ReplayResult` has them
    step_cycles: np.ndarray | None = None
    resident_step_cycles: np.ndarray | None = None
    #: of hits and of misses, as :class:`ReplayResult` has them
    latency: tuple[np.ndarray, np.ndarray] = (np.zeros(1, np.int64), np.zeros(1, np.int64))


@dataclass(frozen=True, kw_only=True)
class LockStepPart:
    """How many accesses were also replayed in lock-step, and what they met."""

    accesses: int = 0
    counts: dict[str, int] = field(default_factory=dict)


def summarise(
    done: Plan,
    measured: Measured,
    meter: Meter,
    *,
    engine: str,
    command: str,
    lockstep: LockStepPart = LockStepPart(),
    ladder: bool = False,
    on_start: Callable[[str], None] | None = None,
) -> ReplayResult:
    """A result from what an engine did and its meter."""
    sequence, counters = done.sequence, measured.counters
    columns = meter.columns(sequence.steps)
    found = references(sequence, done.capacity, on_start=on_start)
    slots = np.array([slot_bytes(done.setup.stored_lines(q)) for q in range(sequence.queues)])
    tier = {"slots": slots, "tier_latency": done.tier_latency}
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
        first_layer=done.first_layer,
        formats=done.formats,
        accesses=len(sequence),
        lockstep_accesses=lockstep.accesses,
        line_requests=measured.line_requests,
        mismatches=measured.mismatches,
        mismatch_examples=tuple(measured.examples),
        lockstep=lockstep.counts,
        tier_latency=done.tier_latency,
        waiting=waiting(sequence, columns["step_misses"], **tier),
        reference_waiting={
            name: waiting(sequence, one.misses, **tier) for name, one in found.items()
        },
        step_cycles=measured.step_cycles,
        resident_step_cycles=measured.resident_step_cycles,
        hit_rate=1 - counters["misses"] / counters["accesses"],
        demand_misses=counters["misses"],
        victims=counters["evictions"],
        write_backs=counters["write_backs"],
        prefetches=sum(counters[f"prefetch_issued_{s.name.lower()}"] for s in PrefetchSource if s),
        flash_reads=counters["fetches"],
        flash_read_bytes=measured.flash_bytes[0],
        flash_write_bytes=measured.flash_bytes[1],
        cycles=measured.cycles,
        lines_per_second=measured.line_requests / measured.seconds,
        **columns,
        residency_map=meter.residency_map(sequence.final_pages),
        hit_latency=np.asarray(measured.latency[0]),
        miss_latency=np.asarray(measured.latency[1]),
        references=found,
        ladder=_ladder(sequence, done.capacity) if ladder else {},
    )


def _ladder(sequence: AccessSequence, capacity: int) -> dict[str, tuple[int, int]]:
    from ..lab.study import ladder  # compiles; only where it is asked for

    return ladder(sequence, capacity)
