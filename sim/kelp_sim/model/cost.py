# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Power, total cost over some years, and from where on endpoints are cheaper than more GPUs."""

from __future__ import annotations

import math

from .findings import Condition, Finding, Table, finding
from .inputs import Inputs
from .kv_size import kv_bytes

__all__ = ["break_even_seconds", "endpoint_price", "findings", "machines", "tables", "total_k"]

_HOURS = 8766  # of a year


def endpoint_price(inputs: Inputs) -> float:
    """Thousands of dollars for one endpoint: DRAM, flash, controller."""
    cost = inputs.cost
    dram, flash = (
        inputs.endpoint.dram_gb * cost.dram_dollars_per_gb,
        inputs.flash.capacity_tb * cost.flash_dollars_per_tb,
    )
    return (dram + flash + cost.controller_dollars) / 1e3


def endpoint_watts(inputs: Inputs) -> float:
    return sum(inputs.power.typical.values())


def total_k(inputs: Inputs, gpus: int, endpoints: int) -> float:
    """Thousands of dollars: purchase and power over the years."""
    cost = inputs.cost
    kilowatt = (gpus * cost.gpu_kilowatt + endpoints * endpoint_watts(inputs) / 1e3) * cost.overhead
    return (
        gpus * cost.gpu
        + endpoints * endpoint_price(inputs)
        + kilowatt * _HOURS * cost.years * cost.dollars_per_kwh / 1e3
    )


def machines(inputs: Inputs, context: int, rate_per_minute: float) -> dict:
    """GPUs alone, and GPUs that hold the weights with endpoints that hold the KV, for requests of
    ``context`` tokens at a rate; KV in the raw format.

    Endpoints are as many as capacity needs and as many as the bytes read per second need. Compute
    is not counted: both must do the same.
    """
    chosen = inputs.break_even
    users = rate_per_minute / 60 * chosen.hold_seconds
    kv_gb = users * kv_bytes(inputs.models[inputs.serving.model], context) / 1e9
    gpus = max(1, math.ceil((chosen.weights_gb + kv_gb) / inputs.gpu.hbm_gb))
    holding = max(1, math.ceil(chosen.weights_gb / inputs.gpu.hbm_gb))
    read = kv_gb * chosen.read_share * chosen.tokens_per_s
    endpoints = max(
        math.ceil(kv_gb / inputs.endpoint.dram_gb), math.ceil(read / inputs.link.gb_per_s)
    )
    if gpus == holding:
        endpoints = 0
    alone, beside = total_k(inputs, gpus, 0), total_k(inputs, holding, endpoints)
    return {
        "context": context,
        "per_minute": rate_per_minute,
        "users": users,
        "kv_gb": kv_gb,
        "gpus_alone": gpus,
        "alone_k": alone,
        "gpus": holding,
        "endpoints": endpoints,
        "beside_k": beside,
        "cheaper": "endpoints" if beside < alone else "GPUs" if beside > alone else "no difference",
    }


def break_even_seconds(inputs: Inputs, context: int, rate_per_minute: float) -> float:
    """How long each request must be held until its KV no longer fits beside the weights: below that
    a second machine of either kind is idle."""
    chosen = inputs.break_even
    room = (
        max(1, math.ceil(chosen.weights_gb / inputs.gpu.hbm_gb)) * inputs.gpu.hbm_gb
        - chosen.weights_gb
    )
    return (
        room / (kv_bytes(inputs.models[inputs.serving.model], context) / 1e9) * 60 / rate_per_minute
    )


def tables(inputs: Inputs) -> list[Table]:
    typical, peak = inputs.power.typical, inputs.power.peak
    rows = [{"part": part, "typical_w": typical[part], "peak_w": peak[part]} for part in typical]
    rows.append(
        {"part": "an endpoint", "typical_w": sum(typical.values()), "peak_w": sum(peak.values())}
    )
    power = Table(
        name="power",
        title="Power of an endpoint",
        rows=tuple(rows),
        columns=(
            ("part", "part", ""),
            ("typical_w", "typical W", ".0f"),
            ("peak_w", "peak W", ".0f"),
        ),
    )
    cost, rows = inputs.cost, []
    for what, gpus, endpoints, published in (
        ("GPUs alone", cost.published_gpu_count, 0, cost.published_gpus),
        ("GPU and endpoints", 1, cost.published_endpoint_count, cost.published_endpoints),
    ):
        rows.append(
            {
                "machine": what,
                "gpus": gpus,
                "endpoints": endpoints,
                "published_k": sum(published),
                "computed_k": total_k(inputs, gpus, endpoints),
                "capacity_gb": gpus * inputs.gpu.hbm_gb + endpoints * inputs.endpoint.dram_gb,
                "kv_gb_per_s": gpus * inputs.gpu.hbm_gb_per_s
                if not endpoints
                else endpoints * inputs.link.gb_per_s,
            }
        )
    tco = Table(
        name="tco",
        title=f"Cost over {cost.years:g} years",
        rows=tuple(rows),
        columns=(
            ("machine", "machine", ""),
            ("gpus", "GPUs", "d"),
            ("endpoints", "endpoints", "d"),
            ("published_k", "published k$", ",.1f"),
            ("computed_k", "purchase and power k$", ",.1f"),
            ("capacity_gb", "GB", ",.0f"),
            ("kv_gb_per_s", "KV GB/s", ",.0f"),
        ),
    )
    chosen = inputs.break_even
    rows = tuple(
        machines(inputs, context, rate)
        for context in chosen.contexts
        for rate in chosen.rates_per_minute
    )
    title = (
        f"Break-even: requests held {chosen.hold_seconds:g} s at {chosen.tokens_per_s:g} "
        + f"tokens/s, {chosen.read_share:.1%} read"
    )
    even = Table(
        name="break_even",
        title=title,
        rows=rows,
        columns=(
            ("context", "context", ",d"),
            ("per_minute", "a minute", "g"),
            ("users", "users", ".1f"),
            ("kv_gb", "KV GB", ",.0f"),
            ("gpus_alone", "GPUs alone", "d"),
            ("alone_k", "k$", ",.0f"),
            ("gpus", "GPUs", "d"),
            ("endpoints", "endpoints", "d"),
            ("beside_k", "k$", ",.0f"),
            ("cheaper", "cheaper", ""),
        ),
    )
    return [power, tco, even]


def findings(inputs: Inputs) -> list[Finding]:
    cost = inputs.cost
    alone, beside = sum(cost.published_gpus), sum(cost.published_endpoints)
    gpus, endpoints = cost.published_gpu_count, cost.published_endpoint_count
    seconds = break_even_seconds(inputs, 16384, 10)
    kv_rate = endpoints * inputs.link.gb_per_s
    dram = f"{inputs.endpoint.dram_gb:g} GB · {cost.dram_dollars_per_gb:g} $"
    parts = (
        f"{dram} + {inputs.flash.capacity_tb:g} TB · {cost.flash_dollars_per_tb:g} $ + "
        + f"{cost.controller_dollars:g} $"
    )
    room = inputs.gpu.hbm_gb - inputs.break_even.weights_gb
    return [
        finding(
            "power",
            "an endpoint, typical",
            "W",
            "80",
            endpoint_watts(inputs),
            "40 + 15 + 12 + 8 + 5",
        ),
        finding(
            "power",
            "an endpoint, peak",
            "W",
            "123",
            sum(inputs.power.peak.values()),
            "60 + 25 + 18 + 12 + 8",
        ),
        finding("cost", "8 × B200", "k$", "473", alone, "240 + 147 + 50 + 36"),
        finding("cost", "B200 and 5 endpoints", "k$", "128.5", beside, "42.5 + 58 + 10 + 18"),
        finding("cost", "the ratio", "×", "3.7", alone / beside, f"{alone:g} / {beside:g}"),
        finding(
            "cost",
            "an endpoint's price",
            "k$",
            "2.5",
            endpoint_price(inputs),
            f"(42.5 − 30) / 5; here {parts}",
            under=Condition(
                "DRAM at 5 $/GB, flash and controller free", inputs.endpoint.dram_gb * 5 / 1e3
            ),
            within=0.03,
        ),
        finding(
            "cost",
            "the ratio for each GB/s at which KV can be read",
            "×",
            "3.7",
            alone / (gpus * inputs.gpu.hbm_gb_per_s) / (beside / kv_rate),
            f"{alone:g} k$ / {gpus * inputs.gpu.hbm_gb_per_s:,.0f} GB/s against {beside:g} k$ "
            + f"/ {kv_rate:g} GB/s",
            under=Condition("only capacity counts, not bandwidth", alone / beside),
        ),
        finding(
            "cost",
            "break-even at 16K: requests a minute",
            "",
            "10",
            10 * seconds / inputs.break_even.hold_seconds,
            f"{room:g} GB beside the weights hold 9.7 requests of 5.37 GB; at "
            + f"{inputs.break_even.hold_seconds:g} s each",
            under=Condition(f"each request held for {seconds:.0f} s", 10.0),
            within=0.05,
        ),
    ]
