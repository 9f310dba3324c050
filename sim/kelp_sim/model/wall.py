# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The capacity wall (weights and users' KV against HBM) and the inflection point (when KV is worth
optimising)."""

from __future__ import annotations

import math
from dataclasses import replace

from .findings import Condition, Finding, Table, finding
from .inputs import Heads, Inputs, Latent
from .kv_size import kv_bytes, kv_bytes_per_token, spaced

__all__ = ["findings", "inflection_tokens", "inflection_users", "tables", "wall_gb"]


def wall_gb(inputs: Inputs, users: int, context: int) -> float:
    """Weights and KV of ``users`` at ``context`` tokens, GB."""
    return (
        inputs.wall.weights_gb + users * kv_bytes(inputs.models[inputs.wall.model], context) / 1e9
    )


def inflection_tokens(inputs: Inputs) -> float:
    """users · context from which KV is ``share`` of the weights."""
    chosen = inputs.inflection
    model = inputs.models[chosen.model]
    if isinstance(model, (Heads, Latent)):
        model = replace(model, element_bytes=chosen.kv_element_bytes)
    return (
        chosen.share
        * model.parameters_billion
        * 1e9
        * chosen.weight_bytes
        / kv_bytes_per_token(model)
    )


def inflection_users(inputs: Inputs, context: int) -> int:
    """Whole users at ``context`` from which it is so."""
    return math.ceil(inflection_tokens(inputs) / context)


def tables(inputs: Inputs) -> list[Table]:
    hbm, rows = inputs.gpu.hbm_gb, []
    for context in inputs.contexts:
        one = kv_bytes(inputs.models[inputs.wall.model], context) / 1e9
        row = {
            "context": context,
            "kv_gb": one,
            "users_in_hbm": max(0, int((hbm - inputs.wall.weights_gb) // one)),
            "users_in_endpoint": int(inputs.endpoint.dram_gb // one),
            "users_on_flash": int(inputs.flash.capacity_tb * 1e3 // one),
        }
        for users in inputs.wall.users:
            row[f"hbm_at_{users}"] = wall_gb(inputs, users, context) / hbm
        rows.append(row)
    columns = (
        ("context", "context", ",d"),
        ("kv_gb", "KV GB", ",.1f"),
        ("users_in_hbm", "users beside weights in HBM", ",d"),
        ("users_in_endpoint", "in one endpoint's DRAM", ",d"),
        ("users_on_flash", "on its flash", ",d"),
    )
    columns += tuple((f"hbm_at_{users}", f"HBMs for {users}", ".2f") for users in inputs.wall.users)
    wall = Table(
        name="wall",
        title=f"Capacity wall: {inputs.wall.model}, {inputs.wall.weights_gb:g} GB of weights, "
        + f"{hbm:g} GB of HBM",
        columns=columns,
        rows=tuple(rows),
    )
    tokens = inflection_tokens(inputs)
    rows = tuple(
        {
            "context": c,
            "users": inflection_users(inputs, c),
            "kv_gb_for_each": c * inputs.inflection.share * _weights(inputs) / tokens,
        }
        for c in inputs.inflection.contexts
    )
    inflection = Table(
        name="inflection",
        title=f"Inflection: {inputs.inflection.share:.0%} of {_weights(inputs):.1f} GB of "
        + f"weights = {tokens:,.0f} tokens of KV",
        columns=(
            ("context", "context", ",d"),
            ("users", "users from which it is worth it", ",d"),
            ("kv_gb_for_each", "KV GB each", ".2f"),
        ),
        rows=rows,
    )
    return [wall, inflection]


def _weights(inputs: Inputs) -> float:
    return (
        inputs.models[inputs.inflection.model].parameters_billion * inputs.inflection.weight_bytes
    )


def findings(inputs: Inputs) -> list[Finding]:
    total, hbm = wall_gb(inputs, 8, 131072), inputs.gpu.hbm_gb
    tokens = inflection_tokens(inputs)
    wide = replace(inputs, inflection=replace(inputs.inflection, kv_element_bytes=2))
    found = [
        finding(
            "capacity wall",
            "Fig. 1: weights and 8 users at 128K",
            "GB",
            "468",
            total,
            "140 + 8 · 42.95",
            under=Condition("128K = 125 000 tokens, 41 GB each", 140 + 8 * 41),
        ),
        finding(
            "capacity wall",
            "the same in HBMs of 192 GB",
            "×",
            "2.4",
            total / hbm,
            f"{total:.0f} / {hbm:g}",
            under=Condition("468 GB, as above", 468 / hbm),
        ),
        finding(
            "inflection",
            "tokens at which KV is half of 70B fp8 weights",
            "K",
            "215",
            tokens / 1e3,
            "0.5 · 70.6 GB / 163 840 B; KV in fp8 too (with fp16 KV "
            + f"{inflection_tokens(wide) / 1e3:.0f}K)",
            within=0.003,
        ),
    ]
    for context, label, claimed in zip(
        (8192, 32768, 131072), ("8K", "32K", "128K"), ("27", "7", "2"), strict=True
    ):
        found.append(
            finding(
                "inflection",
                f"users at {label}",
                "",
                claimed,
                inflection_users(inputs, context),
                f"⌈{spaced(tokens)} / {spaced(context)}⌉",
            )
        )
    return found
