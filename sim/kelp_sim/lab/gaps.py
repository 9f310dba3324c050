# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the rows say together: hit rates of summed counts, flash reads against LRU, and the gap
between pooled LRU and pooled Belady that was closed.

The document (one trace) is the unit: besides the pooled figure there are each document's, that of
the others without it, and a 95 % bootstrap interval over documents.
"""

from __future__ import annotations

import numpy as np

__all__ = ["losses", "name_of", "summary"]

_DRAWS, _SEED = 2000, 1


def name_of(row: dict) -> str:
    """The policy of a row or entry, with the parameters that were set."""
    return " ".join(
        [row["policy"], *(f"{name}={value:g}" for name, value in row["parameters"].items())]
    )


def _by_trace(rows, rule, residency, policy, scope) -> dict[str, dict]:
    """``policy`` as :func:`name_of` says it."""
    return {r["trace"]: r for r in rows if _cell(r) == (rule, residency, policy, scope)}


def _cell(row) -> tuple:
    """What tells a row from the others of its trace."""
    return row["rule"], row["residency"], name_of(row), row["scope"]


def _ratio(above, below) -> float | None:
    return float(above / below) if below else None


def summary(rows: list[dict]) -> list[dict]:
    """One entry per (read rule, residency, policy with its parameters, scope), in the order of the
    rows."""
    entries = []
    for rule, residency, policy, scope in dict.fromkeys(map(_cell, rows)):
        own = _by_trace(rows, rule, residency, policy, scope)
        lru, belady = (
            _by_trace(rows, rule, residency, name, "pooled") for name in ("lru", "belady")
        )
        per_head = _by_trace(rows, rule, residency, "lru", "per-head")
        names, first = list(own), next(iter(own.values()))

        def column(of, field, names=names):
            return np.array([of[n][field] for n in names], float)

        miss, top, bottom = (column(of, "demand_misses") for of in (own, lru, belady))
        flash, accesses, hit_rate = (
            column(own, field) for field in ("flash_reads", "accesses", "hit_rate")
        )
        steps, cycles, resident = (
            column(own, field) for field in ("steps", "cycles", "resident_cycles")
        )
        parts = steps * column(own, "layers")
        won, span = top - miss, top - bottom
        drawn = np.random.default_rng(_SEED).integers(0, len(names), (_DRAWS, len(names)))
        spans = span[drawn].sum(1)
        gaps = won[drawn].sum(1)[spans > 0] / spans[spans > 0]
        left_out = {
            n: _ratio(won.sum() - w, span.sum() - s)
            for n, w, s in zip(names, won, span, strict=True)
        }
        entries.append(
            {
                "rule": rule,
                "residency": residency,
                "policy": first["policy"],
                "parameters": first["parameters"],
                "scope": scope,
                "oracle": first["oracle"],
                "accesses": int(accesses.sum()),
                "waiting_layers": float(
                    (column(own, "waiting_layers") * parts).sum() / parts.sum()
                ),
                "waiting_tokens": float(
                    (column(own, "waiting_tokens") * steps).sum() / steps.sum()
                ),
                "token_time": float(cycles.sum() / resident.sum()),
                "hit_rate": float(1 - miss.sum() / accesses.sum()),
                "hit_rate_by_trace": dict(zip(names, hit_rate.tolist(), strict=True)),
                "gap": _ratio(won.sum(), span.sum()),
                "gap_without_prefetch": _ratio(
                    (top - column(own, "demand_misses_without_prefetch")).sum(), span.sum()
                ),
                "gap_interval": [float(q) for q in np.quantile(gaps, (0.025, 0.975))]
                if len(gaps)
                else None,
                "gap_by_trace": {n: _ratio(w, s) for n, w, s in zip(names, won, span, strict=True)},
                "gap_leaving_out": left_out if len(names) > 1 else {},
                "flash_against_lru_per_head": _ratio(
                    flash.sum(), column(per_head, "flash_reads").sum()
                ),
                "flash_against_lru_pooled": _ratio(flash.sum(), column(lru, "flash_reads").sum()),
                "least_hit_rate_over_lru_per_head": float(
                    (hit_rate - column(per_head, "hit_rate")).min()
                ),
                "prefetch_issued": int(column(own, "prefetch_issued").sum()),
                "prefetch_useful": int(column(own, "prefetch_useful").sum()),
                "prefetch_late": int(column(own, "prefetch_late").sum()),
                "metadata_bits_per_page": first["metadata_bits_per_page"],
            }
        )
    return entries


def losses(rows: list[dict], margin: float = 0.001) -> list[dict]:
    """Queues in which `kelp`, or a user's own policy, over one pool hits less than LRU per queue
    does, by more than ``margin``; worst first."""
    found = []
    judged = dict.fromkeys(
        name_of(r)
        for r in rows
        if r["scope"] == "pooled"
        and (r["policy"] == "kelp" or r["policy"].partition(":")[0].endswith(".py"))
    )
    for rule, residency in dict.fromkeys((r["rule"], r["residency"]) for r in rows):
        lru = _by_trace(rows, rule, residency, "lru", "per-head")
        for policy in judged:
            for name, own in _by_trace(rows, rule, residency, policy, "pooled").items():
                for queue, (a, b) in enumerate(
                    zip(own["queue_hit_rates"], lru[name]["queue_hit_rates"], strict=True)
                ):
                    if a < b - margin:
                        found.append(
                            {
                                "trace": name,
                                "rule": rule,
                                "residency": residency,
                                "policy": policy,
                                "queue": queue,
                                "hit_rate": a,
                                "lru_per_head": b,
                            }
                        )
    return sorted(found, key=lambda f: f["hit_rate"] - f["lru_per_head"])
