# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The flash tier: what a window of recent tokens costs to read ahead, how many fetches hide its
latency, how long it can keep finished sessions."""

from __future__ import annotations

import math

from .findings import Condition, Finding, Table, finding
from .inputs import Heads, Inputs
from .kv_size import kv_bytes_per_token

__all__ = ["fetches_in_flight", "findings", "tables", "window_ms"]


def window_ms(inputs: Inputs, tokens: int) -> float:
    """Time to read ``tokens`` of KV from one endpoint's flash."""
    return (
        inputs.flash.latency_us / 1e3
        + tokens
        * kv_bytes_per_token(inputs.models[inputs.prefetch.model])
        / inputs.flash.gb_per_s
        / 1e6
    )


def page_bytes(inputs: Inputs) -> float:
    model = inputs.models[inputs.prefetch.model]
    queues = (
        model.layers * model.kv_heads
        if isinstance(model, Heads)
        else sum(g.layers for g in model.groups)
        if hasattr(model, "groups")
        else model.layers
    )
    return inputs.endpoint.page_tokens * kv_bytes_per_token(model) / queues


def fetches_in_flight(inputs: Inputs) -> int:
    """Pages under way that keep the flash busy: bandwidth · latency / page."""
    return math.ceil(inputs.flash.gb_per_s * 1e3 * inputs.flash.latency_us / page_bytes(inputs))


def tables(inputs: Inputs) -> list[Table]:
    chosen, token = inputs.prefetch, kv_bytes_per_token(inputs.models[inputs.prefetch.model])
    rows = []
    for tokens in chosen.window_tokens:
        ms, decode_s = window_ms(inputs, tokens), tokens / chosen.tokens_per_s
        rows.append(
            {
                "window": tokens,
                "gb": tokens * token / 1e9,
                "ms": ms,
                "decode_s": decode_s,
                "share": ms / 1e3 / decode_s,
            }
        )
    windows = Table(
        name="prefetch",
        title=f"Windows read ahead from flash, {inputs.flash.gb_per_s:g} GB/s",
        rows=tuple(rows),
        columns=(
            ("window", "tokens", ",d"),
            ("gb", "GB", ".2f"),
            ("ms", "read ms", ".1f"),
            ("decode_s", f"decode s at {chosen.tokens_per_s:g}/s", ".0f"),
            ("share", "of the flash's time", ".2%"),
        ),
        notes=(
            f"{fetches_in_flight(inputs)} pages of {page_bytes(inputs):,.0f} B in flight hide "
            + "the latency",
        ),
    )
    rows = []
    for minutes in chosen.session_minutes:
        for context in inputs.contexts:
            kept = inputs.flash.capacity_tb * 1e12 / (context * token)
            rows.append(
                {
                    "minutes": minutes,
                    "context": context,
                    "sessions": int(kept),
                    "per_minute": kept / minutes,
                    "write_gb_per_s": inputs.flash.capacity_tb * 1e3 / (60 * minutes),
                }
            )
    kept = Table(
        name="retention",
        title=f"Finished sessions kept on {inputs.flash.capacity_tb:g} TB",
        rows=tuple(rows),
        columns=(
            ("minutes", "kept for min", "g"),
            ("context", "context", ",d"),
            ("sessions", "sessions", ",d"),
            ("per_minute", "new ones a minute", ",.1f"),
            ("write_gb_per_s", "flash writes GB/s when full", ".1f"),
        ),
    )
    return [windows, kept]


def findings(inputs: Inputs) -> list[Finding]:
    token = kv_bytes_per_token(inputs.models["llama-3-70b"])
    gb, ms = 4096 * token / 1e9, window_ms(inputs, 4096)
    topic, rate = "storage tier", inputs.flash.gb_per_s
    return [
        finding(topic, "window of 4K tokens, 70B GQA", "GB", "1.3", gb, "4096 · 327 680 B"),
        finding(
            topic,
            "the same from flash",
            "ms",
            "93",
            ms,
            f"{gb:.3f} GB / {rate:g} GB/s + {inputs.flash.latency_us:g} µs",
            under=Condition("the printed 1.3 GB", 1.3 / rate * 1e3),
        ),
        finding(
            topic,
            "decode of 4K tokens, at least",
            "s",
            "40",
            4096 / inputs.prefetch.tokens_per_s,
            f"4096 / {inputs.prefetch.tokens_per_s:g} tokens/s",
            under=Condition("102 tokens/s", 4096 / 102),
        ),
        finding(
            topic,
            "the same, at most",
            "s",
            "120",
            4096 / inputs.prefetch.tokens_per_s,
            f"4096 / {inputs.prefetch.tokens_per_s:g} tokens/s",
            under=Condition("34 tokens/s", 4096 / 34),
        ),
        finding(topic, "storage node, at least", "GB/s", "28", 2 * rate, f"2 drives of {rate:g}"),
        finding(topic, "the same, at most", "GB/s", "42", 3 * rate, f"3 drives of {rate:g}"),
    ]
