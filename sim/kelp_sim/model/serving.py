# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Decode steps through endpoints: what a hit rate is worth, and how step times spread over users (a
queueing simulation, :mod:`.queueing`).

A step reads the weights from HBM layer by layer. Each layer reads ``read_share`` of its context's
KV from the endpoints over their links, at the controller's measured lines per cycle; pages that
miss are read from flash first, at its latency and bandwidth times the measured share of it that the
miss path uses. What is decoded and what is prefilled is written through the same controllers into
the same memory, and goes to the same flash when it leaves.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from .findings import Condition, Finding, Table, finding
from .inputs import Heads, Inputs, Scenario
from .kv_size import kv_bytes_per_token
from .latency import controller_gb_per_s, dram_gb_per_s, read_ns
from .queueing import READ_ONLY, Flash, Reads, Writes, decode

__all__ = [
    "CLAIMED_CURVE",
    "CLAIMED_PERCENTILES",
    "Layer",
    "findings",
    "fit_open_loop",
    "layer_of",
    "percentiles",
    "read_share_for",
    "sensitivity",
    "tables",
    "unloaded_ms",
    "widest_spread",
    "writes_of",
]

#: Published: hit rate → step ms, and scenario → P50, P95, P99, P99.9 ms.
CLAIMED_CURVE = {0.95: 28, 0.9: 45, 0.85: 72, 0.8: 98, 0.7: 185, 0.6: 340}
CLAIMED_PERCENTILES = {
    "chat-4k": (8, 15, 28, 85),
    "doc-qa-32k": (25, 45, 95, 250),
    "long-128k": (45, 120, 350, 1200),
}
QUANTILES = (0.5, 0.95, 0.99, 0.999)
# simulated arrivals of a scenario; a tenth, which may find the machine still empty, is left out of
# the quantiles
_SESSIONS = 120
_SPREAD_SESSIONS = 60
# tokens a second of a prefill that arrives at once: what is written then waits for flash
_BURST = 1e6
_LOADS = (0.5, 0.8, 0.95)  # of the link, tried for the widest spread


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of one session, ms; ``pages`` read."""

    layers: int
    compute: float
    link: float
    fixed: float
    pages: int
    page: float
    slow: float
    flash: float
    heads: int
    token_bytes: float
    page_bytes: float
    memory: float  #: bytes a ms


def layer_of(inputs: Inputs, context: int, read_share: float) -> Layer:
    """What a layer costs at ``context`` tokens of which ``read_share`` is read."""
    chosen, model, flash = inputs.serving, inputs.models[inputs.serving.model], inputs.flash
    layers = sum(g.layers for g in model.groups) if hasattr(model, "groups") else model.layers
    heads = model.kv_heads if isinstance(model, Heads) else 1
    read = kv_bytes_per_token(model) / layers * context * read_share
    token_bytes = kv_bytes_per_token(model) / layers
    page_bytes = token_bytes / heads * inputs.endpoint.page_tokens
    link = min(inputs.link.gb_per_s, controller_gb_per_s(inputs)) * chosen.endpoints
    return Layer(
        layers=layers,
        compute=chosen.weights_gb / inputs.gpu.hbm_gb_per_s / layers * 1e3,
        link=read / link / 1e6,
        fixed=read_ns(inputs) / 1e6,
        pages=math.ceil(read / page_bytes),
        page=page_bytes / (flash.gb_per_s * inputs.rtl.tier_share.value * chosen.endpoints) / 1e6,
        slow=flash.slow_us / 1e3,
        flash=flash.latency_us / 1e3,
        heads=heads,
        token_bytes=token_bytes,
        page_bytes=page_bytes,
        memory=dram_gb_per_s(inputs) * inputs.endpoint.dram_share * chosen.endpoints * 1e6,
    )


def writes_of(inputs: Inputs, layer: Layer, leaves: float, prefill_tokens: int) -> Writes:
    """What a session writes; ``leaves``: the share of its pages that leave DRAM."""
    chosen, per_page = inputs.serving, inputs.endpoint.page_tokens
    link = min(inputs.link.gb_per_s, controller_gb_per_s(inputs)) * chosen.endpoints * 1e6
    return Writes(
        token_link=layer.token_bytes / link,
        token_memory=layer.token_bytes / layer.memory,
        page_memory=layer.page_bytes / layer.memory,
        page_flash=layer.page_bytes / (inputs.flash.write_gb_per_s * chosen.endpoints * 1e6),
        heads=float(layer.heads),
        page_tokens=per_page,
        leaves=leaves,
        free_frames=float(inputs.endpoint.free_frames * chosen.endpoints),
        prefill_pages=prefill_tokens // per_page,
        prefill_every=per_page / chosen.prefill_tokens_per_s * 1e3,
    )


def _run(
    inputs: Inputs,
    layer: Layer,
    begin: np.ndarray,
    steps: int,
    hit_rate: float,
    writes: Writes = READ_ONLY,
):
    reads = Reads(
        layers=layer.layers,
        compute=layer.compute,
        link=layer.link,
        fixed=layer.fixed,
        pages=layer.pages,
        miss_rate=1 - hit_rate,
    )
    flash = Flash(
        page=layer.page,
        latency=layer.flash,
        slow_share=inputs.flash.slow_share,
        slow_latency=max(layer.slow, layer.flash),
    )
    return decode(begin.astype(np.float64), steps, reads, flash, inputs.serving.seed, writes)


# parts of the inputs that this room reads
_USED = ("models", "gpu", "endpoint", "link", "flash", "rtl", "latency", "serving")


def _once(work):
    """Simulated once for equal inputs: tables, findings and plots ask for the same."""
    done = {}

    @functools.wraps(work)
    def remembered(inputs, *rest):
        key = repr(([getattr(inputs, name) for name in _USED], rest))
        if key not in done:
            done[key] = work(inputs, *rest)
        return done[key]

    return remembered


@_once
def sensitivity(inputs: Inputs) -> list[dict]:
    """For each hit rate: mean step time of sessions in a closed loop, and how busy link and flash
    are."""
    chosen = inputs.serving.sensitivity
    layer = layer_of(inputs, chosen.context, chosen.read_share)
    begin = np.arange(chosen.sessions) * (layer.compute + layer.link) / chosen.sessions
    rows = []
    for hit_rate in chosen.hit_rates:
        times, busy = _run(
            inputs,
            layer,
            begin,
            inputs.serving.steps,
            hit_rate,
            writes_of(inputs, layer, chosen.leaves_dram, 0),
        )
        rows.append(
            {
                "hit_rate": hit_rate,
                "step_ms": float(times.mean()),
                "link_busy": busy.link,
                "flash_busy": busy.flash,
            }
        )
    return rows


@_once
def percentiles(inputs: Inputs, name: str, load: float | None = None) -> dict:
    """Quantiles of the step times of sessions that arrive at random and decode ``output_tokens``
    each; ``load``: so often that the link is so busy.

    Where no ``load`` is given, also what it would be if nothing were written.
    """
    scenario = inputs.serving.scenarios[name]
    layer = layer_of(inputs, scenario.context, scenario.read_share)
    rng = np.random.default_rng(inputs.serving.seed)
    between = (
        1e3 / scenario.sessions_per_s
        if load is None
        else scenario.output_tokens * layer.layers * layer.link / load
    )
    begin = np.cumsum(rng.exponential(between, _SESSIONS if load is None else _SPREAD_SESSIONS))
    writes = writes_of(inputs, layer, scenario.leaves_dram, scenario.context)
    times, busy = _run(inputs, layer, begin, scenario.output_tokens, scenario.hit_rate, writes)
    settled = times[len(times) // 10 :]
    row = {
        "scenario": name,
        "context": scenario.context,
        "hit_rate": scenario.hit_rate,
        "mean_users": float(times.sum() / (begin[-1] - begin[0])),
        "link_busy": busy.link,
        "memory_busy": busy.memory,
        "flash_busy": busy.flash,
        "flash_written": busy.written,
        "mean_ms": float(settled.mean()),
    }
    row |= {f"p{100 * q:g}_ms": float(np.quantile(settled, q)) for q in QUANTILES}
    if load is None:
        unwritten = _run(inputs, layer, begin, scenario.output_tokens, scenario.hit_rate)[0][
            len(times) // 10 :
        ]
        row |= {
            "mean_ms_without_writes": float(unwritten.mean()),
            "p99.9_ms_without_writes": float(np.quantile(unwritten, 0.999)),
        }
    return row


def unloaded_ms(inputs: Inputs, scenario: Scenario, read_share: float) -> float:
    """Expected step time of one session alone: each layer computes when its pages have crossed the
    link and its misses, slow ones among them, are there."""
    layer = layer_of(inputs, scenario.context, read_share)
    missed = layer.pages * (1 - scenario.hit_rate)
    any_slow = 1 - (1 - inputs.flash.slow_share) ** missed
    link, flash = layer.link + layer.fixed, missed * layer.page
    usual, slow = (
        max(link, flash + min(1.0, missed) * layer.flash),
        max(link, flash + max(layer.slow, layer.flash)),
    )
    return layer.layers * (layer.compute + (1 - any_slow) * usual + any_slow * slow)


def read_share_for(inputs: Inputs, scenario: Scenario, step_ms: float) -> float | None:
    """The share of the context that one user may read in ``step_ms``; None where no share gives
    it."""
    low, high = 0.0, 1.0
    if not unloaded_ms(inputs, scenario, low) <= step_ms <= unloaded_ms(inputs, scenario, high):
        return None
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if unloaded_ms(inputs, scenario, middle) < step_ms else (low, middle)
        )
    return high


def widest_spread(inputs: Inputs, name: str) -> tuple[float, float]:
    """(P99.9 / P50, link load) of the load at which step times spread most."""
    return max(
        (row["p99.9_ms"] / row["p50_ms"], load)
        for load in _LOADS
        for row in (percentiles(inputs, name, load),)
    )


def fit_open_loop(points: dict[float, float]) -> tuple[float, float, float, float]:
    """(base, cost, saturating miss rate, worst relative error) of ``base + cost · m / (1 − m /
    saturating)``, fitted to hit rate → ms by relative error."""
    misses, ms = 1 - np.array(list(points)), np.array(list(points.values()), float)
    best = None
    for saturating in np.linspace(1.02 * misses.max(), 1.0, 400):
        basis = np.stack([np.ones(len(ms)), misses / (1 - misses / saturating)], axis=1)
        (base, cost), *_ = np.linalg.lstsq(basis / ms[:, None], np.ones(len(ms)), rcond=None)
        worst = float(np.abs((basis @ (base, cost)) / ms - 1).max())
        if best is None or worst < best[3]:
            best = float(base), float(cost), float(saturating), worst
    return best


def tables(inputs: Inputs) -> list[Table]:
    chosen = inputs.serving.sensitivity
    curve = Table(
        name="hit_rate",
        rows=tuple(sensitivity(inputs)),
        columns=(
            ("hit_rate", "hit rate", ".1%"),
            ("step_ms", "step ms", ".1f"),
            ("link_busy", "link busy", ".0%"),
            ("flash_busy", "flash busy", ".0%"),
        ),
        title=f"Hit rate: {chosen.sessions} sessions at {chosen.context:,} tokens, "
        + f"{chosen.read_share:.1%} read, {inputs.serving.endpoints} endpoints",
    )
    names = [f"p{100 * q:g}_ms" for q in QUANTILES]
    spread = Table(
        name="percentiles",
        title="Step times of sessions that arrive at random",
        rows=tuple(percentiles(inputs, name) for name in inputs.serving.scenarios),
        columns=(
            ("scenario", "scenario", ""),
            ("hit_rate", "hit rate", ".1%"),
            ("mean_users", "users at once", ".1f"),
            ("link_busy", "link busy", ".0%"),
            ("memory_busy", "memory busy", ".0%"),
            ("flash_busy", "flash busy", ".0%"),
            ("flash_written", "by write-backs", ".1%"),
            *((n, n[:-3].upper() + " ms", ".1f") for n in names),
            ("p99.9_ms_without_writes", "without writes", ".1f"),
        ),
    )
    return [curve, spread]


def findings(inputs: Inputs) -> list[Finding]:
    base, cost, saturating, worst = fit_open_loop(CLAIMED_CURVE)
    gb = cost * inputs.flash.gb_per_s / 1e3
    all_missed = (
        f"{cost:.0f} ms for all misses are {gb:.1f} GB a step from one flash, "
        + f"{gb / inputs.link.gb_per_s * 1e3:.0f} ms of one link"
    )
    open_loop = (
        f"open loop, flash full at {1 - saturating:.0%} hits: {base:.0f} + "
        + f"{cost:.0f}·m/(1 − m/{saturating:.2f}) ms, within {worst:.0%}"
    )
    found = []
    rows = {row["hit_rate"]: row for row in sensitivity(inputs)}
    for hit_rate, claimed in CLAIMED_CURVE.items():
        m, busy = 1 - hit_rate, rows[hit_rate]["flash_busy"]
        found.append(
            finding(
                "hit rate",
                f"step at {hit_rate:.0%} hits",
                "ms",
                str(claimed),
                rows[hit_rate]["step_ms"],
                f"simulated: {inputs.serving.sensitivity.sessions} sessions in a closed loop, "
                + f"flash {busy:.0%} busy. {all_missed}",
                under=Condition(open_loop, base + cost * m / (1 - m / saturating)),
                within=0.05,
            )
        )
    slopes = [
        (a, b, (CLAIMED_CURVE[b] - CLAIMED_CURVE[a]) / (100 * (a - b)))
        for a, b in zip(list(CLAIMED_CURVE), list(CLAIMED_CURVE)[1:], strict=False)
    ]
    below, above = slopes[-2][2], slopes[-3][2]
    found.append(
        finding(
            "hit rate",
            "cliff below 75 %: slope from 80 to 70 % against 85 to 80 %",
            "×",
            ">2",
            below / above,
            f"{below:.1f} against {above:.1f} ms a point, then {slopes[-1][2]:.1f}: the "
            + "published curve bends, without a cliff",
        )
    )
    weights = inputs.serving.weights_gb / inputs.gpu.hbm_gb_per_s * 1e3
    for name, claims in CLAIMED_PERCENTILES.items():
        row, scenario = percentiles(inputs, name), inputs.serving.scenarios[name]
        how = (
            f"simulated: {row['mean_users']:.1f} users at once, link {row['link_busy']:.0%} "
            + f"busy; weights alone are {weights:.2f} ms of HBM"
        )
        share = read_share_for(inputs, scenario, claims[0])
        burst = percentiles(
            replace(inputs, serving=replace(inputs.serving, prefill_tokens_per_s=_BURST)), name
        )
        for q, claimed in zip(QUANTILES, claims, strict=True):
            under, within = None, 0.0
            if q == 0.5 and share is not None:
                under = Condition(
                    f"one user who reads {share:.1%} of the context, not "
                    + f"{scenario.read_share:.1%}",
                    unloaded_ms(inputs, scenario, share),
                )
            elif q == QUANTILES[-1]:
                within = 0.05
                under = Condition(
                    f"contexts written at {_BURST:,.0f} tokens/s: the first step "
                    + f"waits until flash has taken {scenario.leaves_dram:.0%} of one",
                    burst[f"p{100 * q:g}_ms"],
                )
            found.append(
                finding(
                    "percentiles",
                    f"{name}, P{100 * q:g}",
                    "ms",
                    str(claimed),
                    row[f"p{100 * q:g}_ms"],
                    how,
                    within=within,
                    under=under,
                )
            )
        spread, load = widest_spread(inputs, name)
        burst_spread = burst["p99.9_ms"] / burst["p50_ms"]
        found.append(
            finding(
                "percentiles",
                f"{name}, P99.9 against P50, users who arrive at random",
                "×",
                f"{claims[3] / claims[0]:.1f}",
                spread,
                f"widest at {load:.0%} of the link; slow reads come in every step alike. "
                + f"Contexts written at {_BURST:,.0f} tokens/s: {burst_spread:.1f}",
            )
        )
    return found
