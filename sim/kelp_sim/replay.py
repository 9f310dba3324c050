# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Replaying a recording: what is asked of a device (:class:`Plan`), the golden engine, and how any engine's figures become a result.

:func:`plan` turns a recording, a configuration and the user's choices into one :class:`Plan`; every engine carries out the same one.
:func:`golden` does so with the golden endpoint alone, one request at a time, with no look at hardware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from kelp_golden.endpoint import Endpoint
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.setup import LayerFormats, Setup
from kelp_spec.config import POOLS, Config
from kelp_spec.formats import Format
from kelp_spec.hints import ENTRIES, SEQUENCE_BITS, mass_lines, pack
from kelp_spec.metadata import Op, PageState, PrefetchSource, ScoreSource
from kelp_spec.policy import Policy

from .accesses import AccessSequence, access_sequence
from .reference import references
from .result import PageResidency, ReplayResult
from .trace import LINE_BYTES, Trace, TraceError

__all__ = ["BUDGETS", "GoldenRun", "Meter", "Plan", "capacity_shares", "golden", "plan", "run_golden", "summarise"]

#: Who gives way when a pool runs short: queues above an equal share of its frames, or (no budgets) the queue that asks.
BUDGETS = ("equal", "none")
_SECTOR = 512
_UNLIMITED = (1 << 31) - 1


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
        return ((r["queue"].astype(np.int64) * self.trace.pages + r["page"]) * 2 + r["kv"]) * self.trace.half_lines + r["line"]

    @property
    def lines(self) -> np.ndarray:
        """uint8 [rows, 64]: the recording's own lines."""
        return self.trace.lines.reshape(-1, LINE_BYTES)

    @cached_property
    def hints(self) -> tuple[tuple[bytes, ...], ...]:
        """[steps]: the hint lines that the host pushes when a step is over: the attention mass of every page written so far, queue after queue."""
        s = self.sequence
        if self.setup.source != ScoreSource.PUSHED:
            return ((),) * s.steps
        mass = self.trace.mass.reshape(self.trace.queues, self.trace.steps, self.trace.pages)
        steps, sequence = [], 0
        for step in range(s.steps):
            lines = []
            for queue in range(s.queues):
                masses = mass[queue, s.first_step + step, : int(s.newest_page(step)) + 1].tolist()
                packed = mass_lines(session=0, queue=queue, first_page=0, masses=masses, sequence=sequence)
                lines += [pack(line, self.setup.config) for line in packed]
                sequence = (sequence + -(-len(masses) // ENTRIES)) % (1 << SEQUENCE_BITS)
            steps.append(tuple(lines))
        return tuple(steps)

    @cached_property
    def formats(self) -> dict[str, str]:
        """Where → stored format, for people."""
        found, first = {}, 0
        for r in self.setup.formats:
            last = min(r.last_layer, self.setup.layers - 1)
            where = "all layers" if (first, last) == (0, self.setup.layers - 1) else f"layers {first}–{last}"
            found |= {f"{where}, K": r.k.label, f"{where}, V": r.v.label}
            first = last + 1
        return found


def capacity_shares(capacity: int, pools: Sequence[int]) -> tuple[int, ...]:
    """Frames of each pool: `capacity` in proportion to the queues it holds (`pools`: each queue's pool), the rest to the largest remainders."""
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
    accesses: int | None = None,
    first_step: int = 0,
    formats: Iterable[LayerFormats] = (LayerFormats(last_layer=1023, k=Format.RAW16, v=Format.RAW16),),
    prefetch: Iterable[PrefetchSource] = (),
    window: int = 0,
    tau: float = 1000,
    alpha: int = 26,
    source: ScoreSource = ScoreSource.OBSERVED,
    mass_shift: int = 0,
    policy: Policy = Policy.EMA,
    budget: str = "equal",
    low_water: int = 1,
    high_water: int = 4,
    seed: int = 1,
) -> Plan:
    """Everything that a replay is, checked: TraceError where the recording cannot be used, ValueError for a choice outside its range."""
    sequence = access_sequence(trace, first_step=first_step, accesses=accesses)
    capacity = sequence.capacity(residency)
    sequence.share(capacity)
    if budget not in BUDGETS:
        raise ValueError(f"budget = {budget!r} is refused; legal: {', '.join(BUDGETS)}")
    sizes = dict(
        config=config,
        layers=trace.layers,
        kv_heads=trace.kv_heads,
        used_lines=trace.half_lines,
        used_pages=sequence.final_pages,
        formats=tuple(formats),
        tau=tau,
        alpha=alpha,
        source=source,
        mass_shift=mass_shift,
        policy=policy,
        prefetch=frozenset(prefetch),
        window=window,
        low_water=low_water,
        high_water=high_water,
    )
    try:
        # Pools follow from the formats; their frames from the pools.
        pools = Setup(**sizes, limits=config.frames, budgets=(0,) * len(POOLS)).pools
        limits = capacity_shares(capacity, pools)
        held = np.bincount(pools, minlength=len(POOLS))
        shares = [limit // max(1, int(queues)) * lines for limit, queues, lines in zip(limits, held, config.frame_lines, strict=True)]
        setup = Setup(**sizes, limits=limits, budgets=tuple(shares) if budget == "equal" else (_UNLIMITED,) * len(POOLS))
    except ValueError as error:
        raise TraceError(f"{trace.path}: does not fit: {error}") from None
    return Plan(trace=trace, sequence=sequence, setup=setup, residency=residency, capacity=capacity, budget=budget, seed=seed)


@dataclass
class Meter:
    """Figures of a replay step by step, from a golden endpoint's own counters: `begin` after the history, `end_step` after each step."""

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
        """The per-step fields of a ReplayResult; steps that a comparison did not live to see are empty."""
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
                    states[page, queue] = PageResidency.DIRTY if frames[word.place].dirty else PageResidency.CLEAN
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
    on_start: Callable[[str], None] | None = None,
) -> ReplayResult:
    """A result from an engine's counters (`counters`: the totals of the replay without its history) and its meter."""
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
    )


# --- golden engine ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class GoldenRun:
    """What the golden engine did. `seconds` are of the replay alone, without set-up, history and the resolving of answers."""

    endpoint: Endpoint
    lockstep: LockStep
    meter: Meter
    counters: dict[str, int]  #: of the replay, without the history
    page_reads: list[int]  #: pages fetched, by queue
    page_writes: list[int]  #: pages written back, by queue
    mismatches: int
    examples: tuple[str, ...]
    seconds: float


def run_golden(done: Plan, *, progress: Callable[[int], None] | None = None) -> GoldenRun:
    """Carry out a plan with the golden endpoint, every line request of it; `progress` hears the accesses done, once a step.

    Requests go in order, one at a time. Of an access, what may change anything is a request of its own; reads of further lines of a page
    that the access has just touched are hits that change nothing, and are taken together. Where the recording has keys and values, each
    answer is compared with them.
    """
    setup, sequence = done.setup, done.sequence
    endpoint = setup.endpoint()
    engine = LockStep(endpoint, evict_target=max(1, setup.low_water, setup.high_water), enable=setup.prefetch)
    engine.open(0, setup.descriptor)
    data = _Data(done) if done.trace.k is not None else None
    half, used = setup.config.half_lines, done.trace.half_lines
    requests = done.requests
    for r in requests[: done.history].tolist():
        _, _, queue, page, kv, line = r
        engine.request(TrackerOp(Op.WRITE, 0, queue, page, kv * half + line, 1, origin=data and data.origin(queue, page, kv, line)))
    meter = Meter(endpoint, setup.queues)
    meter.begin()
    before, queues_before = dict(endpoint.counters), {name: list(values) for name, values in endpoint.queue_counters.items()}
    answers: list[tuple[int, int, int, int]] = []  # queue, page, kv_line, version

    per_token = done.trace.lines_per_token
    newest, written = sequence.newest.tolist(), (sequence.written_tokens * per_token).tolist()
    queue_of, page_of, starts = sequence.queue.tolist(), sequence.page.tolist(), sequence.step_starts.tolist()
    masks = [((1 << n) - 1) * (1 | 1 << half) for n in range(used + 1)]
    request, again = engine.request, endpoint.read_again
    began = time.perf_counter()
    for step in range(sequence.steps):
        engine.step(0)
        for access in range(starts[step], starts[step + 1]):
            queue, page, lines = queue_of[access], page_of[access], written[access]
            rest, count = masks[lines], 2 * lines
            if newest[access]:
                for kv in (0, 1):
                    for line in range(lines - per_token, lines):
                        request(
                            TrackerOp(Op.WRITE, 0, queue, page, kv * half + line, 1, origin=data and data.origin(queue, page, kv, line))
                        )
            else:
                answer = request(TrackerOp(Op.READ, 0, queue, page))
                answers.append((queue, page, 0, -9 if answer.poison else answer.version))
                rest, count = rest & ~1, count - 1
            if not again(queue, page, rest, count):
                for kv_line in (b for b in range(rest.bit_length()) if rest >> b & 1):
                    answer = request(TrackerOp(Op.READ, 0, queue, page, kv_line))
                    answers.append((queue, page, kv_line, -9 if answer.poison else answer.version))
        for line in done.hints[step] if step + 1 < sequence.steps else ():
            engine.hint(line)
        meter.end_step()
        if progress is not None:
            progress(starts[step + 1])
    seconds = time.perf_counter() - began
    counters = {name: value - before[name] for name, value in endpoint.counters.items()}
    per_queue = {
        name: [b - a for a, b in zip(queues_before[name], values, strict=True)] for name, values in endpoint.queue_counters.items()
    }
    reads = [m + p for m, p in zip(per_queue["misses"], per_queue["prefetch_issued"], strict=True)]
    wrong, examples = data.compare(endpoint, answers) if data else (0, ())
    return GoldenRun(
        endpoint=endpoint,
        lockstep=engine,
        meter=meter,
        counters=counters,
        page_reads=reads,
        page_writes=per_queue["write_backs"],
        mismatches=wrong,
        examples=examples,
        seconds=seconds,
    )


class _Data:
    """The bytes of a recording as its host writes them, and as its host must read them."""

    def __init__(self, done: Plan):
        self._plan = done
        self._bytes = done.trace.lines.tobytes()
        self._shape = done.trace.lines.shape[:4]

    def origin(self, queue, page, kv, line):
        _, pages, halves, lines = self._shape
        at = (((queue * pages + page) * halves + kv) * lines + line) * LINE_BYTES
        return self._bytes[at : at + LINE_BYTES], -1

    def compare(self, endpoint: Endpoint, answers) -> tuple[int, tuple[str, ...]]:
        """Each answer against the recording's line, stored and read back in its queue's format."""
        from kelp_golden import codec

        queue, page, kv_line, version = np.array(answers, np.int64).reshape(-1, 4).T
        setup = self._plan.setup
        kv, line = np.divmod(kv_line, setup.config.half_lines)
        got = endpoint.lines.resolve(np.maximum(version, -1))
        raw = np.ascontiguousarray(self._plan.trace.lines[queue, page, kv, line]).view("<u2")
        wanted = np.empty_like(raw)
        by_queue = np.array([[int(f.k), int(f.v)] for f in map(setup.formats_of, range(setup.queues))])
        fmt = by_queue[queue, kv]
        for f in np.unique(fmt).tolist():
            payload, scale = codec.encode(np.ascontiguousarray(raw[fmt == f]), setup.host_type, Format(f))
            wanted[fmt == f] = codec.decode(payload, scale, setup.host_type, Format(f))
        bad = (got != wanted).any(axis=1) | (version < 0)
        examples = tuple(
            f"queue {queue[i]} page {page[i]} line {kv_line[i]}: {got[i].tobytes().hex()} for {wanted[i].tobytes().hex()}"
            for i in np.flatnonzero(bad)[:5]
        )
        return int(bad.sum()), examples


def golden(
    done: Plan, *, command: str, progress: Callable[[int], None] | None = None, on_start: Callable[[str], None] | None = None
) -> ReplayResult:
    """Replay with the golden engine."""
    run = run_golden(done, progress=progress)
    bytes_of = [(-(-done.setup.stored_lines(q) * LINE_BYTES // _SECTOR) + 1) * _SECTOR for q in range(done.setup.queues)]
    moved = tuple(sum(n * size for n, size in zip(pages, bytes_of, strict=False)) for pages in (run.page_reads, run.page_writes))
    return summarise(
        done,
        engine="golden",
        command=command,
        meter=run.meter,
        counters=run.counters,
        mismatches=run.mismatches,
        examples=run.examples,
        line_requests=done.sequence.line_reads + done.sequence.line_writes,
        seconds=run.seconds,
        flash_bytes=moved,
        on_start=on_start,
    )
