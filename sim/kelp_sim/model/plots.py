# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One picture of the models: sizes, the wall, streamed layers, hit rates, percentiles, costs. No
global matplotlib state is touched."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.figure import Figure

from . import cost, kv_size, pipeline, serving, wall
from .inputs import Inputs

__all__ = ["png"]

_COLOURS = ("#1f5fbf", "#d9822b", "#2a9d57", "#8a5fbf", "#b9bec6", "#c0392b", "#14305c", "#7fa8e0")
_GRID, _TEXT = "#e4e7eb", "#333b45"


def png(inputs: Inputs) -> bytes:
    figure = Figure(figsize=(15, 12.5), layout="constrained")
    grid = figure.subplots(3, 2)
    for axes, draw in zip(
        grid.flat, (_sizes, _wall, _pipeline, _hit_rates, _percentiles, _costs), strict=True
    ):
        draw(axes, inputs)
        axes.grid(True, color=_GRID, linewidth=0.8, which="major")
        axes.set_axisbelow(True)
        axes.tick_params(colors=_TEXT, labelsize=9)
        axes.title.set_color(_TEXT)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right" if draw is _sizes else "best")
    figure.suptitle(
        "KELP system models", x=0.01, ha="left", fontsize=13, fontweight="bold", color=_TEXT
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, facecolor="white")
    return buffer.getvalue()


def _label(axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _tokens(axes, contexts) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(contexts, [kv_size.short(c) for c in contexts])


def _sizes(axes, inputs: Inputs) -> None:
    for colour, (name, model) in zip(_COLOURS * 4, inputs.models.items(), strict=False):
        axes.plot(
            inputs.contexts,
            [kv_size.kv_bytes(model, c) / 1e9 for c in inputs.contexts],
            color=colour,
            marker="o",
            markersize=3,
            label=name,
        )
    axes.axhline(
        inputs.gpu.hbm_gb, color=_TEXT, linewidth=0.8, linestyle="--", label="HBM of one GPU"
    )
    axes.set_yscale("log")
    _tokens(axes, inputs.contexts)
    _label(axes, "KV cache of one sequence", "context", "GB")


def _wall(axes, inputs: Inputs) -> None:
    for colour, context in zip(_COLOURS * 4, inputs.contexts, strict=False):
        axes.plot(
            inputs.wall.users,
            [wall.wall_gb(inputs, n, context) for n in inputs.wall.users],
            color=colour,
            marker="o",
            markersize=3,
            label=f"{context:,} tokens",
        )
    axes.axhline(
        inputs.gpu.hbm_gb, color=_TEXT, linewidth=0.8, linestyle="--", label="HBM of one GPU"
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(inputs.wall.users, [str(n) for n in inputs.wall.users])
    _label(axes, f"Capacity wall: weights and KV of {inputs.wall.model}", "users", "GB")


def _pipeline(axes, inputs: Inputs) -> None:
    chosen, places = inputs.pipeline, np.arange(len(inputs.pipeline.endpoints))
    ms = [pipeline.transfer_ms(inputs, n) for n in chosen.endpoints]
    for at, (colour, buffers) in enumerate(((_COLOURS[1], 1), (_COLOURS[0], chosen.buffers))):
        values = [
            pipeline.stream(chosen.layers, t, chosen.compute_ms, buffers).total_ms for t in ms
        ]
        axes.bar(
            places + 0.38 * (at - 0.5),
            values,
            0.36,
            color=colour,
            label=f"{buffers} buffer{'s' * (buffers > 1)}",
        )
    axes.axhline(
        chosen.layers * chosen.compute_ms,
        color=_TEXT,
        linewidth=0.8,
        linestyle="--",
        label="compute alone",
    )
    axes.set_xticks(places, [str(n) for n in chosen.endpoints])
    _label(
        axes, f"{chosen.layers} layers of {chosen.layer_gb:g} GB streamed", "endpoints", "ms a step"
    )


def _hit_rates(axes, inputs: Inputs) -> None:
    rows = serving.sensitivity(inputs)
    axes.plot(
        [r["hit_rate"] for r in rows],
        [r["step_ms"] for r in rows],
        color=_COLOURS[0],
        marker="o",
        markersize=4,
        label="simulated, closed loop",
    )
    axes.plot(
        list(serving.CLAIMED_CURVE),
        list(serving.CLAIMED_CURVE.values()),
        color=_COLOURS[1],
        marker="s",
        markersize=4,
        linestyle="--",
        label="published",
    )
    base, factor, saturating, _ = serving.fit_open_loop(serving.CLAIMED_CURVE)
    misses = np.linspace(0.05, 0.4, 60)
    axes.plot(
        1 - misses,
        base + factor * misses / (1 - misses / saturating),
        color=_COLOURS[4],
        linewidth=1,
        label=f"open loop, full at {1 - saturating:.0%} hits",
    )
    axes.invert_xaxis()
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    _label(axes, "What a hit rate is worth", "hit rate", "step ms")


def _percentiles(axes, inputs: Inputs) -> None:
    names = list(inputs.serving.scenarios)
    places = np.arange(len(serving.QUANTILES))
    for colour, name in zip(_COLOURS * 4, names, strict=False):
        row = serving.percentiles(inputs, name)
        axes.plot(
            places,
            [row[f"p{100 * q:g}_ms"] for q in serving.QUANTILES],
            color=colour,
            marker="o",
            markersize=4,
            label=f"{name}, simulated",
        )
        if name in serving.CLAIMED_PERCENTILES:
            axes.plot(
                places,
                serving.CLAIMED_PERCENTILES[name],
                color=colour,
                marker="s",
                markersize=4,
                linestyle="--",
                label=f"{name}, published",
            )
    axes.set_xticks(places, [f"P{100 * q:g}" for q in serving.QUANTILES])
    axes.set_yscale("log")
    _label(axes, "Step times of sessions that arrive at random", "quantile", "ms")


def _costs(axes, inputs: Inputs) -> None:
    rates = inputs.break_even.rates_per_minute
    for colour, context in zip(_COLOURS * 4, inputs.break_even.contexts, strict=False):
        rows = [cost.machines(inputs, context, rate) for rate in rates]
        axes.plot(
            rates,
            [r["alone_k"] for r in rows],
            color=colour,
            linestyle="--",
            marker="s",
            markersize=4,
        )
        axes.plot(
            rates,
            [r["beside_k"] for r in rows],
            color=colour,
            marker="o",
            markersize=4,
            label=f"{context:,} tokens (dashed: GPUs alone)",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    _label(axes, f"Purchase and power over {inputs.cost.years:g} years", "requests a minute", "k$")
