# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One cell of a sweep: a policy on a trace at a residency, as the row that `kelp lab` reports."""

from __future__ import annotations

import functools
import hashlib
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from . import engine
from .engine import Outcome, Timeline
from .fast_lists import LISTS, run_list
from .policies import load
from .reads import timeline

__all__ = ["Cell", "cells", "replay", "row"]


@dataclass(frozen=True)
class Cell:
    trace: str
    rule: str
    accesses: int | None
    residency: float
    policy: str
    scope: str    #: "pooled" or "per-head"
    first_step: int = 0

    @property
    def key(self) -> str:
        """Names this cell and everything that its row depends on: the trace's bytes, the policy's source and the lab's."""
        return hashlib.sha256(f"{asdict(self)}{_digest(self.trace)}{_sources(self.policy)}".encode()).hexdigest()[:24]


def cells(traces, residencies, policies, *, rule: str = "recorded", accesses: int | None = None, first_step: int = 0) -> list[Cell]:
    """The grid, references first: pooled LRU and Belady, without which there is no gap, and LRU per queue, to which flash reads are relative."""
    wanted = [("lru", "per-head"), ("lru", "pooled"), ("belady", "pooled")]
    for name in policies:
        wanted += [(name, scope) for scope in load(name).scopes if (name, scope) not in wanted]
    return [Cell(str(t), rule, accesses, r, p, s, first_step) for p, s in wanted for r in residencies for t in traces]


@functools.lru_cache(64)
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def _sources(policy: str) -> str:
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *here.glob("policies/*.py"), *here.parent.glob("*.py")])
    if policy.partition(":")[0].endswith(".py"):
        files.append(Path(policy.rpartition(":")[0]))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.lru_cache(8)
def _timeline(path: str, rule: str, accesses: int | None, first_step: int) -> Timeline:
    return timeline(path, rule, accesses, first_step)


def replay(line: Timeline, policy: str, *, capacity: int, pooled: bool) -> Outcome:
    """The compiled form where there is one, else the plain one; they decide alike (tests/test_lab_policies.py)."""
    if policy in ("kelp", "kelp-noprefetch") and pooled:
        from .fast_kelp import run_kelp

        return run_kelp(line, capacity=capacity, prefetch=policy == "kelp")
    if policy in LISTS:
        return run_list(line, policy, capacity=capacity, pooled=pooled)
    return engine.run(line, load(policy), capacity=capacity, pooled=pooled)


def row(cell: Cell) -> dict:
    """Replay and report. Rates are fractions; a first allocation is an access and neither hit nor miss is charged for it."""
    line = _timeline(cell.trace, cell.rule, cell.accesses, cell.first_step)
    sequence = line.sequence
    began = time.perf_counter()
    outcome = replay(line, cell.policy, capacity=sequence.capacity(cell.residency), pooled=cell.scope == "pooled")
    seconds = time.perf_counter() - began
    count = np.bincount(sequence.queue, minlength=sequence.queues)
    missed = np.bincount(sequence.queue[outcome.missed], minlength=sequence.queues)
    policy = load(cell.policy)
    return {
        "trace": Path(cell.trace).stem,
        "rule": cell.rule,
        "residency": cell.residency,
        "policy": cell.policy,
        "scope": cell.scope,
        "accesses": len(sequence),
        "hit_rate": 1 - outcome.misses / len(sequence),
        "demand_misses": outcome.misses,
        "flash_reads": outcome.flash_reads,
        "flash_reads_per_access": outcome.flash_reads / len(sequence),
        "prefetch_issued": outcome.issued,
        "prefetch_useful": outcome.useful,
        "prefetch_late": outcome.late,
        "bypasses": outcome.bypasses,
        "queue_hit_rates": (1 - missed / np.maximum(1, count)).tolist(),
        "kv_heads": sequence.kv_heads,
        "metadata_bits_per_page": policy.bits,
        "oracle": policy.oracle,
        "seconds": seconds,
    }
