# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the rows say together: hit rates of summed counts, flash reads against LRU, and the gap between pooled LRU and pooled Belady that was closed.

The document (one trace) is the unit: besides the pooled figure there are the least document's, and a 95 % bootstrap interval over documents.
"""

from __future__ import annotations

import numpy as np

__all__ = ["losses", "summary"]

_DRAWS, _SEED = 2000, 1


def _by_trace(rows, residency, policy, scope) -> dict[str, dict]:
    return {r["trace"]: r for r in rows if (r["residency"], r["policy"], r["scope"]) == (residency, policy, scope)}


def summary(rows: list[dict]) -> list[dict]:
    """One entry per (residency, policy, scope), in the order of the rows."""
    entries = []
    for residency, policy, scope in dict.fromkeys((r["residency"], r["policy"], r["scope"]) for r in rows):
        own = _by_trace(rows, residency, policy, scope)
        lru, belady = _by_trace(rows, residency, "lru", "pooled"), _by_trace(rows, residency, "belady", "pooled")
        per_head = _by_trace(rows, residency, "lru", "per-head")
        names = list(own)

        def column(of, field, names=names):
            return np.array([of[n][field] for n in names], float)

        miss, top, bottom = (column(of, "demand_misses") for of in (own, lru, belady))
        flash, accesses = column(own, "flash_reads"), column(own, "accesses")
        span = top - bottom
        drawn = np.random.default_rng(_SEED).integers(0, len(names), (_DRAWS, len(names)))
        spans = span[drawn].sum(1)
        gaps = (top - miss)[drawn].sum(1)[spans > 0] / spans[spans > 0]
        entries.append({
            "residency": residency, "policy": policy, "scope": scope,
            "oracle": own[names[0]]["oracle"],
            "accesses": int(accesses.sum()),
            "hit_rate": float(1 - miss.sum() / accesses.sum()),
            "gap": float((top - miss).sum() / span.sum()) if span.sum() else None,
            "gap_interval": [float(q) for q in np.quantile(gaps, (0.025, 0.975))] if len(gaps) else None,
            "gap_by_trace": {n: float((t - m) / s) if s else None for n, t, m, s in zip(names, top, miss, span, strict=True)},
            "flash_against_lru_per_head": float(flash.sum() / column(per_head, "flash_reads").sum()) if column(per_head, "flash_reads").sum() else None,
            "flash_against_lru_pooled": float(flash.sum() / column(lru, "flash_reads").sum()) if column(lru, "flash_reads").sum() else None,
            "least_hit_rate_over_lru_per_head": float((column(own, "hit_rate") - column(per_head, "hit_rate")).min()),
            "prefetch_issued": int(column(own, "prefetch_issued").sum()),
            "prefetch_useful": int(column(own, "prefetch_useful").sum()),
            "prefetch_late": int(column(own, "prefetch_late").sum()),
            "metadata_bits_per_page": own[names[0]]["metadata_bits_per_page"],
        })
    return entries


def losses(rows: list[dict], policy: str = "kelp", margin: float = 0.001) -> list[dict]:
    """Queues in which ``policy`` (pooled) hits less than LRU per queue does, by more than ``margin``; worst first."""
    found = []
    for residency in dict.fromkeys(r["residency"] for r in rows):
        own, lru = _by_trace(rows, residency, policy, "pooled"), _by_trace(rows, residency, "lru", "per-head")
        for name in own:
            for queue, (a, b) in enumerate(zip(own[name]["queue_hit_rates"], lru[name]["queue_hit_rates"], strict=True)):
                if a < b - margin:
                    found.append({"trace": name, "residency": residency, "queue": queue, "hit_rate": a, "lru_per_head": b})
    return sorted(found, key=lambda f: f["hit_rate"] - f["lru_per_head"])
