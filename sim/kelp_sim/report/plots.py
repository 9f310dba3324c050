# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The pictures of a replay. Each draws one :class:`~matplotlib.figure.Figure`; no global matplotlib
state is touched."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..replay.result import PageResidency, ReplayResult

__all__ = ["PLOTS", "Plot", "png"]

_KELP, _LRU, _BELADY = "#1f5fbf", "#d9822b", "#2a9d57"
_DEMAND, _PREFETCH, _WRITE_BACK = "#7fa8e0", "#c9dcf6", "#b9bec6"
_GRID, _TEXT = "#e4e7eb", "#333b45"
_RESIDENCY = {
    PageResidency.ABSENT: ("#f2f3f5", "not written"),
    PageResidency.COLD: ("#b9cbe6", "cold (flash only)"),
    PageResidency.CLEAN: ("#3f7fd1", "resident, clean"),
    PageResidency.DIRTY: ("#14305c", "resident, dirty"),
}
_PANELS = 12  # heads drawn one by one; more would be too small to read


class Plot(NamedTuple):
    name: str
    caption: str
    draw: Callable[[ReplayResult], Figure]


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, facecolor="white")
    return buffer.getvalue()


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _style(axes, title: str = "", x: str = "", y: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_TEXT)
    axes.set_xlabel(x, color=_TEXT)
    axes.set_ylabel(y, color=_TEXT)
    axes.tick_params(colors=_TEXT, labelsize=8, length=3)
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#9aa3ad")


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=12, fontweight="bold", color=_TEXT)


def _rate(misses: np.ndarray, accesses: np.ndarray, window: int) -> np.ndarray:
    """1 − misses / accesses over the last ``window`` steps (fewer at the start); NaN where nothing
    was accessed."""

    def summed(counts):
        total = np.concatenate([[0], np.cumsum(counts)])
        ends = np.arange(1, len(total))
        return total[ends] - total[np.maximum(0, ends - window)]

    accessed = summed(accesses)
    return np.where(accessed > 0, 1 - summed(misses) / np.maximum(1, accessed), np.nan)


def _head_label(result: ReplayResult, queue: int) -> str:
    return f"layer {result.first_layer + queue // result.kv_heads}, head {queue % result.kv_heads}"


def waiting(result: ReplayResult) -> Figure:
    """Step by step: cycles against those with everything resident, and the layers that wait."""
    measured = result.token_time_measured
    figure = _figure(11, 6.2 if measured else 3.6)
    grid = figure.subplots(1 + measured, 1, sharex=True, squeeze=False)[:, 0]
    edges = np.arange(result.steps + 1) + 0.5
    by_layer = result.steps, -1, result.kv_heads
    layers = result.queues // result.kv_heads
    if measured:
        _stairs(grid[0], edges, result.step_cycles, "KELP", _KELP, linewidth=1.9)
        _stairs(
            grid[0], edges, result.resident_step_cycles, "everything resident", _TEXT, linewidth=1.3
        )
        grid[0].set_yscale("log")
        low, high = grid[0].get_ylim()
        grid[0].set_ylim(low / 1.5, high * 3)
        _style(grid[0], "Cycles of each step", y="cycles")
    for label, misses, color, width in (
        ("Belady pooled", result.references["Belady pooled"].misses, _BELADY, 1.3),
        ("LRU pooled", result.references["LRU pooled"].misses, _LRU, 1.3),
        ("KELP", result.step_misses, _KELP, 1.9),
    ):
        waits = np.asarray(misses).reshape(by_layer).any(axis=2).sum(axis=1)
        _stairs(grid[-1], edges, waits, f"{label} ({waits.sum():,})", color, linewidth=width)
    _style(
        grid[-1], f"Layers that wait, of {layers} (total in brackets)", x="decode step", y="layers"
    )
    grid[-1].set_ylim(0, layers * 1.25)
    grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    grid[-1].yaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in grid:
        axes.margins(x=0)
        axes.legend(frameon=False, fontsize=9, ncols=3, loc="upper right")
    _title(
        figure,
        f"Who waits: token time {result.token_time:.2f}"
        + ("" if measured else " by the model")
        + f", {result.waiting.layers:.1%} of the layers, {result.waiting.tokens:.1%} of the tokens",
    )
    return figure


def _stairs(axes, edges, values, label, color, **look) -> None:
    axes.stairs(values, edges, label=label, color=color, baseline=None, **look)


def hit_rate(result: ReplayResult) -> Figure:
    """One panel per head: KELP against LRU and Belady over one pool."""
    window = max(1, min(64, result.steps // 8))
    shown = np.sort(np.argsort(-result.step_misses.sum(axis=0), kind="stable")[:_PANELS])
    curves = [
        (
            "Belady pooled",
            result.references["Belady pooled"].misses,
            dict(color=_BELADY, linewidth=1.3),
        ),
        (
            "LRU pooled",
            result.references["LRU pooled"].misses,
            dict(color=_LRU, linewidth=1.3),
        ),
        (
            "KELP (" + result.policy.partition(",")[0] + ")",
            result.step_misses,
            dict(color=_KELP, linewidth=1.9),
        ),
    ]
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = _figure(3.1 * columns, 1.95 * rows + 1.0)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    steps = np.arange(1, result.steps + 1)
    for cell, axes in enumerate(grid.flat):
        if cell >= len(shown):
            axes.set_visible(False)
            continue
        queue = int(shown[cell])
        for label, misses, look in curves:
            rate = _rate(misses[:, queue], result.step_accesses[:, queue], window)
            # A line of one step has no length.
            axes.plot(steps, rate, label=label, marker="" if result.steps > 1 else "o", **look)
        total = 1 - result.step_misses[:, queue].sum() / max(
            1, result.step_accesses[:, queue].sum()
        )
        _style(axes, f"{_head_label(result, queue)}: {total:.1%}")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_xlim(1, max(2, result.steps))
    _lower_bound(grid[0, 0])
    figure.supxlabel("decode step", fontsize=10, color=_TEXT)
    over = f"last {window} steps" if window > 1 else "each step"
    figure.supylabel(f"hit rate, {over}", fontsize=10, color=_TEXT)
    which = (
        "per head"
        if len(shown) == result.queues
        else f"of the {len(shown)} heads (of {result.queues}) with most misses"
    )
    _title(figure, f"Hit rate {which}; the panel's figure is KELP's over the whole replay")
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="outside lower right",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    return figure


def _lower_bound(axes) -> None:
    """y from a round figure below the lowest curve to 1: rates near 1 stay apart."""
    lowest = min(
        np.nanmin(line.get_ydata()) for other in axes.figure.axes for line in other.get_lines()
    )
    axes.set_ylim(np.floor(lowest * 10) / 10 - (0.02 if lowest <= 0 else 0), 1.015)


def flash(result: ReplayResult) -> Figure:
    """Pages moved to and from flash at each step, and what LRU and Belady would have read."""
    # A power of two, as a page's tokens are: then the opening of pages does not beat against the
    # bars.
    group = 1 << max(0, (result.steps - 1) // 120).bit_length()
    starts = np.arange(0, result.steps, group)
    edges = np.append(starts, result.steps) + 0.5
    sizes = np.diff(np.append(starts, result.steps))

    def mean(counts):
        return np.add.reduceat(counts, starts) / sizes

    figure = _figure(11, 5.6)
    reads, writes = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    demand, ahead = mean(result.flash_demand), mean(result.flash_prefetch)
    reads.stairs(
        demand,
        edges,
        fill=True,
        color=_DEMAND,
        label=f"KELP, demand ({result.flash_demand.sum():,})",
    )
    reads.stairs(
        demand + ahead,
        edges,
        baseline=demand,
        fill=True,
        color=_PREFETCH,
        label=f"KELP, prefetch ({result.flash_prefetch.sum():,})",
    )
    for name, color in (("LRU pooled", _LRU), ("Belady pooled", _BELADY)):
        misses = result.references[name].misses.sum(axis=1)
        reads.stairs(
            mean(misses),
            edges,
            color=color,
            linewidth=1.6,
            baseline=None,
            label=f"{name} ({misses.sum():,})",
        )
    _style(reads, "Read from flash (total pages in brackets)")
    _style(writes, "Written to flash", x="decode step")
    figure.supylabel(
        "pages per step" if group == 1 else f"pages per step, mean of {group} steps",
        fontsize=10,
        color=_TEXT,
    )
    writes.stairs(
        mean(result.flash_write_back),
        edges,
        fill=True,
        color=_WRITE_BACK,
        label=f"KELP, write-back ({result.flash_write_back.sum():,})",
    )
    for axes in (reads, writes):
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper right")
        low, high = axes.get_ylim()
        axes.set_ylim(low, max(1, high) * 1.22)
    writes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _title(figure, f"Flash traffic: {result.flash_reads_per_access:.3f} page reads per access")
    return figure


def latency(result: ReplayResult) -> Figure:
    """Hits and misses on one logarithmic axis of cycles."""
    counts = {"hits": np.asarray(result.hit_latency), "misses": np.asarray(result.miss_latency)}
    used = [bins for counted in counts.values() for bins in np.flatnonzero(counted)] or [0]
    first, last = max(0, min(used) - 1), max(used) + 1
    figure = _figure(11, 5.2)
    grid = figure.subplots(2, 1, sharex=True)
    for axes, (name, counted), color in zip(grid, counts.items(), (_KELP, _LRU), strict=True):
        heights = np.zeros(last - first + 1)
        heights[: max(0, min(len(counted), last + 1) - first)] = counted[first : last + 1]
        axes.bar(np.arange(first, last + 1) + 0.5, heights, width=0.92, color=color)
        total = int(counted.sum())
        _style(
            axes,
            f"{name.capitalize()}: {total:,} line requests" + _quantiles(counted),
            y="line requests",
        )
        axes.grid(False, axis="x")
        if total:
            axes.set_yscale("log")
            axes.set_ylim(0.7, max(10, heights.max()) * 4)
            for place, height in enumerate(heights):
                if height:
                    axes.annotate(
                        f"{height / total:.1%}" if height / total >= 0.001 else f"{int(height)}",
                        (first + place + 0.5, height),
                        ha="center",
                        va="bottom",
                        fontsize=8,
                        color=_TEXT,
                        xytext=(0, 2),
                        textcoords="offset points",
                    )
        else:
            axes.set_ylim(0, 1)
            axes.set_yticks([])
        axes.set_xlim(first, last + 1)
    grid[1].set_xticks(
        np.arange(first, last + 2),
        [_cycles(2**power if power else 0) for power in range(first, last + 2)],
    )
    grid[1].set_xlabel(
        "cycles from request to answer (each bar from its left to its right label)", color=_TEXT
    )
    title = "Latency of line requests, share of each bar above it"
    _title(figure, title if result.cycles else "Latency of line requests: this engine has no clock")
    return figure


def _quantiles(counted: np.ndarray) -> str:
    """Bins that hold the median and the 99th percentile: all that a log2 histogram knows of
    them."""
    total = counted.sum()
    if not total:
        return ""
    reached = np.cumsum(counted) / total
    half, late = (int(np.searchsorted(reached, share)) for share in (0.5, 0.99))
    return (
        f"; median below {_cycles(2 ** (half + 1))}, 99 % below {_cycles(2 ** (late + 1))} cycles"
    )


def _cycles(count: int) -> str:
    return (
        str(count)
        if count < 1024
        else f"{count >> 10}Ki"
        if count < 1 << 20
        else f"{count >> 20}Mi"
    )


def residency(result: ReplayResult) -> Figure:
    """Which pages of each head are in DRAM at the end, and how many were over time."""
    states = np.asarray(result.residency_map)
    resident = np.isin(states, (PageResidency.CLEAN, PageResidency.DIRTY)).sum(axis=0)
    share = result.capacity / result.queues
    over_time = result.resident_pages is not None
    figure = _figure(11, 8.6 if over_time else 6.4)
    grid = figure.subplots(
        3 if over_time else 2, 1, height_ratios=(1, 3.2, 1.7) if over_time else (1, 3.2)
    )
    bars, cells = grid[:2]

    queues = np.arange(result.queues)
    bars.bar(queues, resident, width=0.8, color=_KELP)
    bars.axhline(share, color=_LRU, linewidth=1.5, label=f"equal share ({share:.4g})")
    _style(bars, "Resident pages of each head at the end", y="pages")
    bars.grid(False, axis="x")
    bars.set_xlim(-0.5, result.queues - 0.5)
    bars.set_ylim(0, max(share, resident.max()) * 1.35)
    bars.yaxis.set_major_locator(MaxNLocator(integer=True))
    bars.legend(frameon=False, fontsize=9, loc="upper right")
    bars.tick_params(labelbottom=False)

    colours = ListedColormap([_RESIDENCY[state][0] for state in PageResidency])
    norm = BoundaryNorm(np.arange(len(PageResidency) + 1) - 0.5, len(PageResidency))
    cells.imshow(
        states, cmap=colours, norm=norm, aspect="auto", interpolation="nearest", origin="lower"
    )
    layer = f"(layer − {result.first_layer})" if result.first_layer else "layer"
    _style(
        cells,
        "Where each page is at the end",
        x=f"queue = {layer} · KV heads + head",
        y="page of the sequence",
    )
    cells.grid(False)
    for boundary in queues[1:] - 0.5 if result.queues <= 64 else ():
        cells.axvline(boundary, color="white", linewidth=1.5)
    cells.xaxis.set_major_locator(MaxNLocator(20, integer=True))
    cells.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    present = [state for state in PageResidency if (states == state).any()]
    cells.legend(
        handles=[
            Patch(facecolor=_RESIDENCY[state][0], edgecolor="#9aa3ad", label=_RESIDENCY[state][1])
            for state in present
        ],
        loc="lower right",
        bbox_to_anchor=(1.0, 0.985),
        ncols=len(present),
        frameon=False,
        fontsize=9,
    )
    if over_time:
        _resident_over_time(figure, grid[2], result)
    _title(figure, f"Residency: {int(resident.sum()):,} of {result.capacity:,} frames in use")
    return figure


def _resident_over_time(figure: Figure, axes, result: ReplayResult) -> None:
    extent = (0.5, result.steps + 0.5, -0.5, result.queues - 0.5)
    pages = np.asarray(result.resident_pages).T
    image = axes.imshow(
        pages,
        cmap="Blues",
        vmin=0,
        vmax=max(1, pages.max()),
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=extent,
    )
    _style(axes, "Resident pages of each head over time", x="decode step", y="queue")
    axes.grid(False)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    scale = figure.colorbar(image, ax=axes, pad=0.01, ticks=MaxNLocator(integer=True))
    scale.set_label("pages", color=_TEXT)
    scale.ax.tick_params(colors=_TEXT, labelsize=8)
    scale.outline.set_visible(False)


PLOTS = (
    Plot(
        "waiting",
        "What each step takes, and how many of its layers wait for a page from flash; LRU and "
        + "Belady over one pool on the same reads.",
        waiting,
    ),
    Plot(
        "hit_rate",
        "Hit rate over decode steps, head by head; LRU and Belady over one pool on the same "
        + "reads.",
        hit_rate,
    ),
    Plot(
        "flash",
        "Pages read from and written to flash over decode steps; the lines are what LRU and "
        + "Belady would have read.",
        flash,
    ),
    Plot(
        "latency",
        "Cycles from a line request's acceptance to its answer, for resident pages and for "
        + "pages that were fetched.",
        latency,
    ),
    Plot(
        "residency",
        "Where each page of each head is when the replay ends, and how the frames are divided "
        + "among the heads.",
        residency,
    ),
)
