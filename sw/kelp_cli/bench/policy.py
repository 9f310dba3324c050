# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rows of ``kelp bench`` for policy `kelp` on the recordings of this repository (docs/lab.md has
more recordings and policies)."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["policy_rows"]

#: name → recordings, and residency → bar, from history alone
_MODELS = {
    "policy.real_model": (
        ("data/traces/smollm2_argparse.npz",),
        {0.125: "≥ 0.3", 0.25: "≥ 0.1", 0.5: "≥ 0"},
    ),
    "policy.kelp": (
        tuple(f"data/traces/attn_{n}.npz" for n in (0, 2, 3)),
        {0.125: "≥ 0.6", 0.25: "≥ 0.35"},
    ),
}


def policy_rows(models: dict[str, tuple[tuple[str | Path, ...], dict]] = _MODELS) -> Iterator:
    """The share of the misses between pooled LRU and pooled Belady that `kelp` saves; summed counts
    of all recordings of a model. It reads from flash what it misses, so that a gap of 0 is also
    pooled LRU's flash reads."""
    from kelp_sim.lab.cells import cells, row
    from kelp_sim.lab.gaps import summary
    from kelp_verif.measure.rows import Row

    for name, (recordings, bars) in models.items():
        listed = cells([str(path) for path in recordings], [*bars], ["kelp"])
        for entry in summary([row(cell) for cell in listed]):
            if (entry["policy"], entry["scope"]) == ("kelp", "pooled"):
                share = entry["residency"]
                yield Row(
                    f"{name}.gap_closed.{share:g}",
                    entry["gap"],
                    "fraction",
                    bars[share],
                    f"{share:g}",
                )
