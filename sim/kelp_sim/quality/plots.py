# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One picture of quality: perplexity against bits, noise and attention error by layer and head, and
what single keys and values cost."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.figure import Figure

from .study import Study

__all__ = ["png"]

_TEXT, _GRID = "#333b45", "#e4e7eb"


def png(noise: list[dict], study: Study | None) -> bytes:
    """``noise``: rows of :func:`kelp_sim.quality.noise.measure`; ``study`` may be missing."""
    figure = Figure(figsize=(15, 11 if study is not None else 6), layout="constrained")
    grid = figure.subplots(2 if study is not None else 1, 2, squeeze=False)
    if noise:
        _by_head(
            figure,
            grid[0, 0],
            noise,
            "attention_error",
            "Share of the attention output's energy that is wrong",
            log=True,
        )
        _by_head(figure, grid[0, 1], noise, "k_snr_db", "Signal to noise of keys, dB", log=False)
    else:
        grid[0, 0].set_visible(False)
        grid[0, 1].set_visible(False)
    if study is not None:
        _against_bits(grid[1, 0], study)
        _units(figure, grid[1, 1], study)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, facecolor="white")
    return buffer.getvalue()


def _by_head(figure, axes, rows, key, title, *, log) -> None:
    names = list(dict.fromkeys(row["format"] for row in rows))
    places = sorted({(row["layer"], row["head"]) for row in rows})
    values = np.array(
        [
            [
                np.mean(
                    [r[key] for r in rows if (r["format"], r["layer"], r["head"]) == (name, *place)]
                )
                for place in places
            ]
            for name in names
        ]
    )
    image = axes.imshow(
        np.log10(np.maximum(values, 1e-12)) if log else np.minimum(values, 60),
        aspect="auto",
        cmap="viridis_r" if log else "viridis",
    )
    axes.set_yticks(range(len(names)), names)
    step = max(1, len(places) // 24)
    axes.set_xticks(
        range(0, len(places), step), [f"{layer}.{head}" for layer, head in places[::step]]
    )
    axes.set_xlabel("layer.head")
    axes.set_title(title + (" (log10)" if log else ""), loc="left", fontsize=11, color=_TEXT)
    if len(places) <= 24:
        for i, j in np.ndindex(values.shape):
            axes.text(
                j,
                i,
                f"{values[i, j]:.1e}" if log else f"{values[i, j]:.0f}",
                ha="center",
                va="center",
                fontsize=5 if log else 7,
                color="white",
            )
    figure.colorbar(image, ax=axes, pad=0.01)


def _against_bits(axes, study: Study) -> None:
    for rows, colour, label in (
        (study.formats, "#1f5fbf", "one format (K/V)"),
        (study.plans, "#2a9d57", "plans"),
    ):
        if rows:
            x, y = [r["bits"] for r in rows], np.array([r["increase"] for r in rows])
            spread = np.abs(
                np.array([[r["increase"] - r["low"], r["high"] - r["increase"]] for r in rows]).T
            )
            axes.errorbar(
                x,
                100 * y,
                yerr=100 * spread,
                fmt="o",
                markersize=4,
                capsize=2,
                color=colour,
                label=label,
            )
            for row in rows:
                axes.annotate(
                    row["label"],
                    (row["bits"], 100 * row["increase"]),
                    fontsize=7,
                    xytext=(4, 3),
                    textcoords="offset points",
                    color=_TEXT,
                )
    axes.axhline(0, color=_TEXT, linewidth=0.8)
    axes.grid(True, color=_GRID)
    axes.set_xlabel("stored bits of an element")
    axes.set_ylabel("perplexity, increase in %")
    axes.set_title(
        "Perplexity against stored bits (95 % over texts)", loc="left", fontsize=11, color=_TEXT
    )
    axes.legend(frameon=False, fontsize=8)


def _units(figure, axes, study: Study) -> None:
    if not study.units:
        axes.set_visible(False)
        return
    layers, heads = (1 + max(u[key] for u in study.units) for key in ("layer", "head"))
    values = np.zeros((layers, 2 * heads))
    for unit in study.units:
        values[unit["layer"], "KV".index(unit["kv"]) * heads + unit["head"]] = (
            100 * unit["increase"]
        )
    bound = float(np.abs(values).max()) or 1.0
    image = axes.imshow(values, cmap="RdBu_r", vmin=-bound, vmax=bound, aspect="auto")
    for i, j in np.ndindex(values.shape):
        axes.text(j, i, f"{values[i, j]:+.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(
        range(2 * heads), [f"{kv}, head {head}" for kv in "KV" for head in range(heads)]
    )
    axes.set_yticks(range(layers), [f"layer {layer}" for layer in range(layers)])
    axes.set_title(
        "One key or value head in int4: perplexity, %", loc="left", fontsize=11, color=_TEXT
    )
    figure.colorbar(image, ax=axes, pad=0.01)
