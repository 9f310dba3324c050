# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One cell of a sweep: a policy on a trace at a residency, as the row that `kelp lab` reports."""

from __future__ import annotations

import functools
import hashlib
import itertools
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import kelp_golden
import kelp_spec

from ..replay.waiting import waiting
from ..trace.accesses import AccessSequence
from ..trace.trace import distinct
from . import engine
from .engine import Outcome, Timeline
from .fast_adaptive import ADAPTIVE, run_adaptive
from .fast_lists import LISTS, run_list
from .fast_scored import SCORED, run_scored
from .policies import arguments, load, maker, parameters_of
from .reads import timeline

__all__ = ["Cell", "cells", "compiled", "refuse", "replay", "row"]


@dataclass(frozen=True)
class Cell:
    trace: str
    rule: str
    accesses: int | None
    residency: float
    policy: str
    scope: str  #: "pooled" or "per-head"
    parameters: tuple[tuple[str, float], ...] = ()  #: those that were set, by name
    first_step: int = 0

    @property
    def key(self) -> str:
        """Names this cell and everything that its row depends on: the trace's bytes, the policy's
        source and the lab's."""
        return hashlib.sha256(
            f"{asdict(self)}{_digest(self.trace)}{_sources(self.policy)}".encode()
        ).hexdigest()[:24]


def cells(
    traces,
    residencies,
    policies,
    *,
    rule: str = "recorded",
    accesses: int | None = None,
    first_step: int = 0,
    settings: dict | None = None,
) -> list[Cell]:
    """The grid, references first: pooled LRU and Belady, without which there is no gap, and LRU per
    queue, to which flash reads are relative.

    ``settings``: a parameter, or POLICY.PARAMETER, → its values; every policy that has it runs with
    every combination of them. ValueError where none has it, and where two traces have one name.
    """
    distinct(traces)
    wanted = [("lru", "per-head", ()), ("lru", "pooled", ()), ("belady", "pooled", ())]
    used = set()
    for name in policies:
        legal = parameters_of(load(name))
        axes = {}
        # A setting of this policy alone comes last, and counts.
        for setting, values in sorted((settings or {}).items(), key=lambda s: "." in s[0]):
            of, _, parameter = setting.rpartition(".")
            if of == name or (not of and parameter in legal):
                used.add(setting)
                axes[parameter] = values
        for values in itertools.product(*axes.values()):
            chosen = tuple(zip(axes, values, strict=True))
            arguments(name, dict(chosen))
            wanted += [
                (name, scope, chosen)
                for scope in load(name).scopes
                if (name, scope, chosen) not in wanted
            ]
    for setting in settings or {}:
        if setting not in used:
            has = {
                name: ", ".join(f"{n} ({v})" for n, v in parameters_of(load(name)).items())
                for name in policies
            }
            legal = "; ".join(f"{name}: {text}" for name, text in has.items() if text)
            raise ValueError(
                f"parameter {setting!r} belongs to none of the policies chosen; legal: "
                + f"{legal or 'none of them has any'}"
            )
    return [
        Cell(str(t), rule, accesses, r, *w, first_step)
        for w in wanted
        for r in residencies
        for t in traces
    ]


@functools.lru_cache(64)
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@functools.cache
def _sources(policy: str) -> str:
    here = Path(__file__).parent
    files = sorted(
        [
            *here.glob("*.py"),
            *here.glob("policies/*.py"),
            *here.parent.glob("trace/*.py"),
            *here.parent.glob("replay/*.py"),
            # the device's arithmetic and constants
            *Path(kelp_golden.__file__).parent.glob("*.py"),
            *Path(kelp_spec.__file__).parent.glob("*.py"),
        ]
    )
    if policy.partition(":")[0].endswith(".py"):
        files.append(Path(policy.rpartition(":")[0]))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


@functools.lru_cache(8)
def _timeline(path: str, rule: str, accesses: int | None, first_step: int) -> Timeline:
    return timeline(path, rule, accesses, first_step)


def compiled(policy: str, *, pooled: bool) -> bool:
    """Whether :func:`replay` takes a compiled form."""
    return policy in (*LISTS, *ADAPTIVE, *SCORED) or (pooled and policy == "kelp")


def refuse(sequence: AccessSequence, cell: Cell) -> None:
    """ValueError where ``cell`` cannot be replayed: too few frames, or parameters that its policy
    does not take."""
    try:
        capacity = sequence.capacity(cell.residency)
    except ValueError as error:
        raise ValueError(f"{cell.trace}: {error}") from None
    _tried(sequence, cell.policy, dict(cell.parameters), capacity, cell.scope == "pooled")


def _tried(sequence: AccessSequence, policy: str, parameters, capacity: int, pooled: bool) -> None:
    share = sequence.share(capacity)
    queues, frames = (sequence.queues, capacity) if pooled else (1, share)
    maker(policy, parameters)(engine.Pool(sequence, range(queues), frames))


def replay(
    line: Timeline,
    policy: str,
    *,
    capacity: int,
    pooled: bool,
    parameters: dict | None = None,
    prefetch: bool = True,
) -> Outcome:
    """The compiled form where there is one, else the plain one; they decide alike
    (tests/sim/lab/test_compiled.py). ``prefetch`` False: it may ask for nothing."""
    if parameters and compiled(policy, pooled=pooled):
        _tried(line.sequence, policy, parameters, capacity, pooled)
    if policy == "kelp" and pooled:
        from .fast_kelp import run_kelp

        return run_kelp(line, capacity=capacity, **arguments(policy, parameters))
    for ids, form in ((LISTS, run_list), (ADAPTIVE, run_adaptive), (SCORED, run_scored)):
        if policy in ids:
            return form(line, policy, capacity=capacity, pooled=pooled, parameters=parameters)
    return engine.run(
        line, maker(policy, parameters), capacity=capacity, pooled=pooled, prefetch=prefetch
    )


def row(cell: Cell) -> dict:
    """Replay and report. Rates are fractions; a first allocation is an access and neither hit nor
    miss is charged for it."""
    line = _timeline(cell.trace, cell.rule, cell.accesses, cell.first_step)
    sequence, policy, parameters = line.sequence, load(cell.policy), dict(cell.parameters)
    choices = {
        "capacity": sequence.capacity(cell.residency),
        "pooled": cell.scope == "pooled",
        "parameters": parameters,
    }
    began = time.perf_counter()
    outcome = replay(line, cell.policy, **choices)
    seconds = time.perf_counter() - began
    without = (
        replay(line, cell.policy, **choices, prefetch=False).misses
        if policy.prefetches
        else outcome.misses
    )
    misses = sequence.counts(outcome.missed)
    count, missed = sequence.counts().sum(axis=0), misses.sum(axis=0)
    waits = waiting(sequence, misses)
    return {
        "trace": Path(cell.trace).stem,
        "rule": cell.rule,
        "residency": cell.residency,
        "policy": cell.policy,
        "parameters": parameters,
        "scope": cell.scope,
        "accesses": len(sequence),
        "steps": sequence.steps,
        "layers": sequence.layers,
        "waiting_layers": waits.layers,
        "waiting_tokens": waits.tokens,
        "token_time": waits.token_time,
        "cycles": waits.cycles,
        "resident_cycles": waits.resident_cycles,
        "hit_rate": 1 - outcome.misses / len(sequence),
        "demand_misses": outcome.misses,
        "demand_misses_without_prefetch": without,
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
