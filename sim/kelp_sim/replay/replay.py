# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Replaying a recording on the golden endpoint alone, one request at a time, with no look at
hardware."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kelp_golden.endpoint import Endpoint
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_spec.formats import Format
from kelp_spec.metadata import Op

from ..trace.trace import LINE_BYTES
from .figures import Measured, Meter, summarise
from .plan import Plan
from .result import ReplayResult
from .waiting import slot_bytes

__all__ = ["GoldenRun", "golden", "run_golden"]


@dataclass(frozen=True, eq=False, kw_only=True)
class GoldenRun:
    """What the golden engine did. `seconds` are of the replay alone, without set-up, history and
    the resolving of answers."""

    endpoint: Endpoint
    lockstep: LockStep
    meter: Meter
    counters: dict[str, int]  #: of the replay, without the history
    page_reads: list[int]  #: pages fetched, by queue; also again in one step (docs/replay.md)
    page_writes: list[int]  #: pages written back, by queue
    mismatches: int
    examples: tuple[str, ...]
    seconds: float


def run_golden(done: Plan, *, progress: Callable[[int], None] | None = None) -> GoldenRun:
    """Carry out a plan with the golden endpoint, every line request of it; `progress` hears the
    accesses done, once a step.

    Requests go in order, one at a time. Of an access, what may change anything is a request of its
    own; reads of further lines of a page that the access has just touched are hits that change
    nothing, and are taken together. Where the recording has keys and values, each answer is
    compared with them.
    """
    setup, sequence = done.setup, done.sequence
    endpoint = setup.endpoint()
    engine = LockStep(
        endpoint, evict_target=max(1, setup.low_water, setup.high_water), enable=setup.prefetch
    )
    engine.open(0, setup.descriptor)
    data = _Data(done) if done.trace.k is not None else None
    half, used = setup.config.half_lines, done.trace.half_lines
    requests = done.requests
    for r in requests[: done.history].tolist():
        _, _, queue, page, kv, line = r
        engine.request(
            TrackerOp(
                Op.WRITE,
                0,
                queue,
                page,
                kv * half + line,
                1,
                origin=data and data.origin(queue, page, kv, line),
            )
        )
    meter = Meter(endpoint, setup.queues)
    meter.begin()
    before = dict(endpoint.counters)
    moved_before = list(engine.fetched), list(endpoint.queue_counters["write_backs"])
    answers: list[tuple[int, int, int, int]] = []  # queue, page, kv_line, version

    per_token = done.trace.lines_per_token
    newest, written = sequence.newest.tolist(), (sequence.written_tokens * per_token).tolist()
    queue_of, page_of, starts = (
        sequence.queue.tolist(),
        sequence.page.tolist(),
        sequence.step_starts.tolist(),
    )
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
                            TrackerOp(
                                Op.WRITE,
                                0,
                                queue,
                                page,
                                kv * half + line,
                                1,
                                origin=data and data.origin(queue, page, kv, line),
                            )
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
    moved = engine.fetched, endpoint.queue_counters["write_backs"]
    page_reads, page_writes = (
        [b - a for a, b in zip(*pair, strict=True)]
        for pair in zip(moved_before, moved, strict=True)
    )
    wrong, examples = data.compare(endpoint, answers) if data else (0, ())
    return GoldenRun(
        endpoint=endpoint,
        lockstep=engine,
        meter=meter,
        counters=counters,
        page_reads=page_reads,
        page_writes=page_writes,
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
        by_queue = np.array(
            [[int(f.k), int(f.v)] for f in map(setup.formats_of, range(setup.queues))]
        )
        fmt = by_queue[queue, kv]
        for f in np.unique(fmt).tolist():
            payload, scale = codec.encode(
                np.ascontiguousarray(raw[fmt == f]), setup.host_type, Format(f)
            )
            wanted[fmt == f] = codec.decode(payload, scale, setup.host_type, Format(f))
        bad = (got != wanted).any(axis=1) | (version < 0)
        examples = tuple(
            f"queue {queue[i]} page {page[i]} line {kv_line[i]}: {got[i].tobytes().hex()} for "
            + f"{wanted[i].tobytes().hex()}"
            for i in np.flatnonzero(bad)[:5]
        )
        return int(bad.sum()), examples


def golden(
    done: Plan,
    *,
    command: str,
    progress: Callable[[int], None] | None = None,
    on_start: Callable[[str], None] | None = None,
) -> ReplayResult:
    """Replay with the golden engine."""
    run = run_golden(done, progress=progress)
    bytes_of = [slot_bytes(done.setup.stored_lines(q)) for q in range(done.setup.queues)]
    moved = tuple(
        sum(n * size for n, size in zip(pages, bytes_of, strict=False))
        for pages in (run.page_reads, run.page_writes)
    )
    measured = Measured(
        counters=run.counters,
        mismatches=run.mismatches,
        examples=run.examples,
        line_requests=done.sequence.line_reads + done.sequence.line_writes,
        seconds=run.seconds,
        flash_bytes=moved,
    )
    return summarise(done, measured, run.meter, engine="golden", command=command, on_start=on_start)
