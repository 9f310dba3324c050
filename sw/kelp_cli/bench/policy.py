# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rows of ``kelp bench`` for policy `kelp` on the recordings of this repository (docs/lab.md has
more recordings and policies)."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["policy_rows"]

_RECORDINGS = tuple(Path(f"data/traces/attn_{n}.npz") for n in (0, 2, 3))
_GAPS = {0.125: "≥ 0.6", 0.25: "≥ 0.35"}  #: residency → bar, from history alone


def policy_rows(recordings: tuple[Path, ...] = _RECORDINGS) -> Iterator:
    """The share of the misses between pooled LRU and pooled Belady that `kelp` saves, and its flash
    reads against pooled LRU's; summed counts of all recordings."""
    from kelp_sim.lab.cells import cells, row
    from kelp_sim.lab.gaps import summary
    from kelp_verif.measure.rows import Row

    listed = cells([str(path) for path in recordings], [*_GAPS], ["kelp"])
    for entry in summary([row(cell) for cell in listed]):
        if (entry["policy"], entry["scope"]) == ("kelp", "pooled"):
            at = f"{entry['residency']:g}"
            yield Row(
                f"policy.kelp.gap_closed.{at}",
                entry["gap"],
                "fraction",
                _GAPS[entry["residency"]],
                at,
            )
            yield Row(
                f"policy.kelp.flash_reads_against_lru.{at}",
                entry["flash_against_lru_pooled"],
                "ratio",
                "≤ 1",
                at,
            )
