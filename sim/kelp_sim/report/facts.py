# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A result as figures: the sections that table and page share, and report.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from kelp_spec.files import write_whole

from ..replay.result import ReplayResult

__all__ = ["Row", "Section", "as_json", "sections", "verdict", "write_json"]


class Row(NamedTuple):
    label: str
    value: str
    note: str = ""


class Section(NamedTuple):
    title: str
    rows: list[Row]
    note: str = ""


def verdict(result: ReplayResult) -> str:
    """One sentence: does the engine agree with the golden model?"""
    engine = {"rtl": "RTL", "golden": "Golden model"}.get(result.engine, result.engine)
    if result.mismatches:
        return (
            f"{engine}: {result.mismatches:,} mismatches in {result.line_requests:,} line requests."
        )
    if result.engine == "golden":
        return f"{engine}: {result.line_requests:,} line requests replayed."
    return (
        f"{engine} and golden model agree: 0 mismatches in {result.line_requests:,} line requests."
    )


def sections(result: ReplayResult) -> list[Section]:
    """Everything a reader is told, in order; every number formatted once, here."""
    return [
        _agreement(result),
        _waiting(result),
        _hit_rate(result),
        *([_ladder(result)] if result.ladder else []),
        _flash(result),
        _speed(result),
        _what_ran(result),
    ]


def _agreement(result: ReplayResult) -> Section:
    all_of_it = result.lockstep_accesses == result.accesses
    lockstep = ", ".join(
        f"{count:,} {name.replace('_', '-')}" for name, count in result.lockstep.items()
    )
    return Section(
        "Agreement with the golden model",
        [
            Row(
                "accesses" if all_of_it else "accesses, free-running",
                f"{result.accesses:,}",
                f"{result.steps:,} steps × {result.queues} heads",
            ),
            Row("accesses, lock-step", f"{result.lockstep_accesses:,}", lockstep),
            Row("line requests", f"{result.line_requests:,}", "64 bytes each"),
            Row("mismatches", f"{result.mismatches:,}", "unequal lines, decisions and counters"),
        ],
    )


def _waiting(result: ReplayResult) -> Section:
    lru, belady = (result.reference_waiting[name] for name in ("LRU pooled", "Belady pooled"))

    def compared(label: str, of, form, note: str = "") -> list[Row]:
        return [
            Row(label, form(of(result.waiting)), note),
            Row("  LRU pooled", form(of(lru))),
            Row("  Belady pooled", form(of(belady))),
        ]

    rows = []
    if result.token_time_measured:
        parts = result.steps * result.queues // result.kv_heads
        ours, resident = (
            f"{cycles.sum() / parts:,.0f}"
            for cycles in (result.step_cycles, result.resident_step_cycles)
        )
        rows = [
            Row("token time", f"{result.token_time:.2f}", "by the clock"),
            Row("  cycles a layer", ours),
            Row("  with everything resident", resident),
        ]
    return Section(
        "Who waits",
        [
            *rows,
            *compared(
                "token time, by the model", lambda w: w.token_time, lambda ratio: f"{ratio:.2f}"
            ),
            *compared("layers that wait", lambda w: w.layers, _percent),
            *compared("tokens that wait", lambda w: w.tokens, _percent),
        ],
        "token time: a step's cycles over those with everything resident; a layer waits when a "
        + "page that it reads is missed, a token when a layer does",
    )


def _hit_rate(result: ReplayResult) -> Section:
    return Section(
        "Hit rate on the same reads",
        [
            Row("Belady pooled", _percent(result.belady_hit_rate), "knows the future: the bound"),
            Row("KELP", _percent(result.hit_rate), f"{result.policy}; from the engine's counters"),
            Row("LRU pooled", _percent(result.lru_pooled_hit_rate), "one pool for all heads"),
            Row("LRU per queue", _percent(result.lru_hit_rate), "equal shares"),
        ],
    )


def _ladder(result: ReplayResult) -> Section:
    return Section(
        "From LRU to kelp, idea by idea",
        [
            Row(
                name,
                _percent(1 - misses / result.accesses),
                f"{reads / result.accesses:.4f} flash reads",
            )
            for name, (misses, reads) in result.ladder.items()
        ],
        "kelp lab, the same reads and frames; flash reads per access. One access after another, as "
        + "in lock-step: at full speed the RTL decides while accesses are in flight, whose uses "
        + "count later; hence another hit rate above",
    )


def _flash(result: ReplayResult) -> Section:
    misses, per_step = result.demand_misses, result.flash_reads / result.steps
    return Section(
        "Flash",
        [
            Row("demand misses", f"{misses:,}", f"{misses / result.accesses:.4f} per access"),
            Row("prefetches", f"{result.prefetches:,}"),
            Row(
                "page reads",
                f"{result.flash_reads:,}",
                f"{result.flash_reads_per_access:.4f} per access, {per_step:.1f} per step",
            ),
            Row("victims", f"{result.victims:,}"),
            Row("write-backs", f"{result.write_backs:,}"),
            Row("bytes read", _bytes(result.flash_read_bytes)),
            Row("bytes written", _bytes(result.flash_write_bytes)),
        ],
    )


def _speed(result: ReplayResult) -> Section:
    per_second = f"{result.lines_per_second:,.0f}"
    rows = [Row("lines per second", per_second, "of this simulation, wall clock")]
    if result.cycles:
        rate = f"{result.lines_per_cycle:.3f}"
        rows = [
            Row("cycles", f"{result.cycles:,}", "1 ns each for the cold tier"),
            Row("lines per cycle", rate, "closed loop: layer after layer"),
            *rows,
        ]
    return Section("Speed", rows)


def _what_ran(result: ReplayResult) -> Section:
    return Section(
        "What ran",
        [
            Row("recording", "", result.trace),
            Row("configuration", result.config, result.config_hash),
            Row("residency", _percent(result.residency), f"{result.capacity:,} frames"),
            Row(
                "stored formats",
                str(len(set(result.formats.values()))),
                "; ".join(f"{where}: {stored}" for where, stored in result.formats.items()),
            ),
            Row("engine, seed", f"{result.engine}, {result.seed}"),
            Row("cold tier, cycles", f"{result.tier_latency:,}"),
            Row("command", result.command),
        ],
    )


def as_json(result: ReplayResult) -> dict:
    """The content of report.json: fractions 0 … 1, counts as integers, plain types only. Its names
    are read by others and stay: what is added is a name more, never another name for a thing."""
    return {
        "schema": "kelp.report",
        "schema_version": 1,
        "trace": result.trace,
        "config": result.config,
        "config_hash": result.config_hash,
        "policy": result.policy,
        "seed": int(result.seed),
        "tier_latency": int(result.tier_latency),
        "residency": float(result.residency),
        "capacity_frames": int(result.capacity),
        "formats": dict(result.formats),
        "engine": result.engine,
        "command": result.command,
        "accesses": int(result.accesses),
        "lockstep_accesses": int(result.lockstep_accesses),
        "lockstep": {name: int(count) for name, count in result.lockstep.items()},
        "line_requests": int(result.line_requests),
        "mismatches": int(result.mismatches),
        "mismatch_examples": list(result.mismatch_examples),
        "token_time": result.token_time,
        "token_time_measured": result.token_time_measured,
        "token_time_modelled": result.waiting.token_time,
        "waiting_layers": result.waiting.layers,
        "waiting_tokens": result.waiting.tokens,
        "step_cycles": _list(result.step_cycles),
        "resident_step_cycles": _list(result.resident_step_cycles),
        "hit_rate": float(result.hit_rate),
        "lru_hit_rate": result.lru_hit_rate,
        "lru_pooled_hit_rate": result.lru_pooled_hit_rate,
        "belady_hit_rate": result.belady_hit_rate,
        "ladder": {
            name: {"demand_misses": int(misses), "flash_reads": int(reads)}
            for name, (misses, reads) in result.ladder.items()
        },
        "references": {
            name: {
                "hit_rate": one.hit_rate,
                "misses": int(one.misses.sum()),
                "bypasses": one.bypasses,
                "waiting_layers": result.reference_waiting[name].layers,
                "waiting_tokens": result.reference_waiting[name].tokens,
                "token_time_modelled": result.reference_waiting[name].token_time,
            }
            for name, one in result.references.items()
        },
        "demand_misses": int(result.demand_misses),
        "victims": int(result.victims),
        "write_backs": int(result.write_backs),
        "prefetches": int(result.prefetches),
        "flash_reads": int(result.flash_reads),
        "flash_reads_per_access": float(result.flash_reads_per_access),
        "flash_bytes": int(result.flash_bytes),
        "flash_read_bytes": int(result.flash_read_bytes),
        "flash_write_bytes": int(result.flash_write_bytes),
        "cycles": int(result.cycles),
        "lines_per_cycle": float(result.lines_per_cycle),
        "lines_per_second": float(result.lines_per_second),
        "steps": result.steps,
        "queues": result.queues,
        "hit_latency_log2_cycles": [int(count) for count in result.hit_latency],
        "miss_latency_log2_cycles": [int(count) for count in result.miss_latency],
    }


def write_json(result: ReplayResult, path: Path) -> None:
    """report.json: UTF-8, no NaN."""
    text = json.dumps(as_json(result), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, text + "\n")


def _list(counts) -> list[int] | None:
    return None if counts is None else [int(count) for count in counts]


def _percent(fraction: float) -> str:
    return f"{fraction:.2%}"


def _bytes(count: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
