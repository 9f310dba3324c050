# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""LRU and Belady on the same reads, per queue and over one pool: what every replay is held against
(docs/recordings.md).

Run as a program, ``python -m kelp_sim.replay.reference TRACE … [--residency F …] [--json FILE]``
prints the four rows, summed over the traces.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kelp_spec.files import write_whole

from ..trace.accesses import AccessSequence, access_sequence
from ..trace.trace import TraceError, read

__all__ = ["REFERENCES", "Reference", "main", "references", "replay"]

#: The four references: name → (policy, one pool for all queues).
REFERENCES = {
    "LRU per queue": ("lru", False),
    "LRU pooled": ("lru", True),
    "Belady per queue": ("belady", False),
    "Belady pooled": ("belady", True),
}
_NEVER = np.int64(1) << 40


@dataclass(frozen=True, eq=False)
class Reference:
    """What one policy did. Arrays are [steps, queues]; a first allocation is an access and no
    miss."""

    policy: str
    pooled: bool
    capacity: int
    accesses: np.ndarray
    misses: np.ndarray
    bypasses: int  #: accesses that took no frame, because every resident page was protected

    @property
    def hits(self) -> np.ndarray:
        return self.accesses - self.misses

    @property
    def hit_rate(self) -> float:
        return 1 - float(self.misses.sum() / self.accesses.sum())


def replay(sequence: AccessSequence, policy: str, *, pooled: bool, capacity: int) -> Reference:
    """Replay ``sequence`` under ``policy`` ("lru" or "belady") with ``capacity`` frames, in one
    pool or in equal shares.

    A page's rank is the step of its last use (LRU) or minus the step of its next use (Belady); the
    lowest rank goes first, ties by lower queue, then lower page. Pages touched in the current step
    and the page being written stay; where nothing else is resident, the access is served past the
    pool and takes no frame.
    """
    if policy not in ("lru", "belady"):
        raise ValueError(f"policy = {policy!r} is refused; legal: 'lru', 'belady'")
    share = sequence.share(capacity)
    limit = capacity if pooled else share
    pages = sequence.final_pages
    keys = sequence.queue.astype(np.int64) * pages + sequence.page
    ranks, first_use = _ranks(sequence, keys, policy)

    history, initial = sequence.history_pages, sequence.initial_pages(capacity)
    # A pool's `resident` holds each page's rank. `waiting` has (rank, page) of every resident page
    # not touched in this step, and entries that a later touch or an eviction made void; `touched`
    # is what joins it when the next step begins.
    pools = 1 if pooled else sequence.queues
    resident: list[dict[int, int]] = [{} for _ in range(pools)]
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(pools)]
    touched: list[list[tuple[int, int]]] = [[] for _ in range(pools)]
    for queue in range(sequence.queues):
        for page in initial:
            key = queue * pages + page
            rank = -1 if policy == "lru" else -int(first_use[key])
            pool = 0 if pooled else queue
            resident[pool][key] = rank
            waiting[pool].append((rank, key))
    for heap in waiting:
        heapq.heapify(heap)

    allocated = {
        queue * pages + page for queue in range(sequence.queues) for page in range(history)
    }
    missed = np.zeros(len(sequence), bool)
    bypasses = 0
    step, newest = -1, -1
    trail = zip(
        sequence.step.tolist(), sequence.queue.tolist(), keys.tolist(), ranks.tolist(), strict=True
    )
    for index, (now, queue, key, rank) in enumerate(trail):
        if now != step:
            step, newest = now, int(sequence.newest_page(now))
            for heap, new in zip(waiting, touched, strict=True):
                for entry in new:
                    heapq.heappush(heap, entry)
                new.clear()
        pool = 0 if pooled else queue
        held = resident[pool]
        if key not in held:
            missed[index] = key in allocated
            if len(held) >= limit:
                victim = _victim(held, waiting[pool], pages, newest)
                if victim is None:
                    bypasses += 1
                    continue
                del held[victim]
            allocated.add(key)
        held[key] = rank
        touched[pool].append((rank, key))
    return Reference(policy, pooled, capacity, sequence.counts(), sequence.counts(missed), bypasses)


def _victim(
    held: dict[int, int], heap: list[tuple[int, int]], pages: int, newest: int
) -> int | None:
    """Take the lowest-ranked page of ``heap`` that is still resident with that rank and is not
    being written; None when there is none."""
    kept = []
    victim = None
    while heap:
        rank, key = heapq.heappop(heap)
        if held.get(key) != rank:
            continue
        if key % pages == newest:
            kept.append((rank, key))
            continue
        victim = key
        break
    for entry in kept:
        heapq.heappush(heap, entry)
    return victim


def _ranks(
    sequence: AccessSequence, keys: np.ndarray, policy: str
) -> tuple[np.ndarray, np.ndarray]:
    """Each access's rank for the page it leaves behind, and each page's first use, [queues ·
    pages]."""
    first_use = np.full(sequence.queues * sequence.final_pages, _NEVER)
    if policy == "lru":
        return sequence.step.astype(np.int64), first_use
    order = np.lexsort((np.arange(len(keys)), keys))
    by_page, step = keys[order], sequence.step[order].astype(np.int64)
    same = by_page[1:] == by_page[:-1]
    following = np.full(len(keys), _NEVER)
    following[order[:-1][same]] = step[1:][same]
    starts = np.concatenate([[True], ~same])
    first_use[by_page[starts]] = step[starts]
    return -following, first_use


def references(
    sequence: AccessSequence, capacity: int, *, on_start: Callable[[str], None] | None = None
) -> dict[str, Reference]:
    """All of :data:`REFERENCES` over ``sequence``; ``on_start`` hears each one's name before it
    runs."""
    found = {}
    for name, (policy, pooled) in REFERENCES.items():
        if on_start is not None:
            on_start(name)
        found[name] = replay(sequence, policy, pooled=pooled, capacity=capacity)
    return found


def main(arguments: list[str] | None = None) -> int:
    """The reference rows of one or more traces, counts summed; exit status 1 and one line on stderr
    where a trace is refused."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    parser = argparse.ArgumentParser(
        prog="python -m kelp_sim.replay.reference", description="LRU and Belady on recorded reads."
    )
    parser.add_argument("trace", nargs="+", type=Path)
    parser.add_argument(
        "--residency", nargs="+", type=float, default=[0.125, 0.25, 0.5], metavar="F"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    chosen = parser.parse_args(arguments)

    accesses = 0
    misses = {(name, residency): 0 for name in REFERENCES for residency in chosen.residency}
    try:
        with Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("", total=len(chosen.trace) * len(misses))
            for path in chosen.trace:
                sequence = access_sequence(read(path))
                accesses += len(sequence)
                for name, residency in misses:
                    progress.update(task, description=f"{path.stem} · {residency:.1%} · {name}")
                    policy, pooled = REFERENCES[name]
                    done = replay(
                        sequence, policy, pooled=pooled, capacity=sequence.capacity(residency)
                    )
                    misses[name, residency] += int(done.misses.sum())
                    progress.advance(task)
    except (TraceError, ValueError) as error:
        print(f"kelp_sim.replay.reference: {error}", file=sys.stderr)
        return 1

    columns = (f"{residency:.1%} hit rate" for residency in chosen.residency)
    table = Table("policy", *columns, title=f"{accesses:,} accesses", title_justify="left")
    for name in REFERENCES:
        table.add_row(
            name,
            *(f"{1 - misses[name, residency] / accesses:.2%}" for residency in chosen.residency),
        )
    Console().print(table)
    if chosen.json is not None:
        rows = [
            {
                "policy": name,
                "residency": residency,
                "misses": count,
                "hit_rate": 1 - count / accesses,
            }
            for (name, residency), count in misses.items()
        ]
        payload = {
            "schema": "kelp.reference",
            "schema_version": 1,
            "traces": [path.stem for path in chosen.trace],
            "accesses": accesses,
        }
        payload["rows"] = rows
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        write_whole(chosen.json, json.dumps(payload, indent=2, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
