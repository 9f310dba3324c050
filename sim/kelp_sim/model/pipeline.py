# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Layers streamed from endpoints while the one before is computed.

A transfer may begin when a buffer is free: with n buffers, when the layer n before it has been
computed. Endpoints serve one layer together, each its share over a link of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .findings import Condition, Finding, Table, finding
from .inputs import Inputs
from .kv_size import kv_bytes

__all__ = ["Step", "findings", "stream", "tables", "transfer_ms"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pass over the layers, ms: from the first transfer's start to the last layer's end, and
    how long the compute units stood still."""

    total_ms: float
    idle_ms: float


def transfer_ms(inputs: Inputs, endpoints: int) -> float:
    return inputs.pipeline.layer_gb / (endpoints * inputs.link.gb_per_s) * 1e3


def stream(layers: int, transfer: float, compute: float, buffers: int) -> Step:
    """The pipeline, layer by layer."""
    brought, computed = 0.0, [0.0] * layers
    for layer in range(layers):
        free = computed[layer - buffers] if layer >= buffers else 0.0
        brought = max(brought, free) + transfer
        computed[layer] = max(brought, computed[layer - 1] if layer else 0.0) + compute
    return Step(total_ms=computed[-1], idle_ms=computed[-1] - layers * compute)


def tables(inputs: Inputs) -> list[Table]:
    chosen, rows = inputs.pipeline, []
    for endpoints in chosen.endpoints:
        ms = transfer_ms(inputs, endpoints)
        step = stream(chosen.layers, ms, chosen.compute_ms, chosen.buffers)
        alone = stream(chosen.layers, ms, chosen.compute_ms, 1)
        rows.append(
            {
                "endpoints": endpoints,
                "transfer_ms": ms,
                "step_ms": step.total_ms,
                "idle_share": step.idle_ms / step.total_ms,
                "one_buffer_ms": alone.total_ms,
                "bound": "compute" if ms <= chosen.compute_ms else "link",
            }
        )
    return [
        Table(
            name="pipeline",
            title=f"{chosen.layers} layers of {chosen.layer_gb:g} GB, {chosen.compute_ms:g} "
            + f"ms each, {chosen.buffers} buffers",
            rows=tuple(rows),
            columns=(
                ("endpoints", "endpoints", "d"),
                ("transfer_ms", "transfer ms", ".2f"),
                ("step_ms", "step ms", ",.0f"),
                ("idle_share", "compute idle", ".0%"),
                ("one_buffer_ms", "step ms, one buffer", ",.0f"),
                ("bound", "bound by", ""),
            ),
        )
    ]


def findings(inputs: Inputs) -> list[Finding]:
    found = []
    for endpoints, claimed in ((1, "27.3"), (3, "9.1"), (5, "5.5")):
        found.append(
            finding(
                "layer pipeline",
                f"transfer of a layer, {endpoints} endpoint{'s' * (endpoints > 1)}",
                "ms",
                claimed,
                transfer_ms(inputs, endpoints),
                f"1.75 GB / ({endpoints} · 64 GB/s)",
            )
        )
    layer_gb = kv_bytes(inputs.models["llama-3-70b"], 131072) / 80e9
    kv = replace(inputs, pipeline=replace(inputs.pipeline, layer_gb=layer_gb))
    found += [
        finding(
            "layer pipeline",
            "a layer's KV at 128K",
            "GB",
            "1.75",
            layer_gb,
            f"42.95 GB / 80 layers; over one link {transfer_ms(kv, 1):.1f} ms",
            under=Condition("1.75 GB is a layer's weights: 140 GB / 80", 140 / 80),
        ),
        finding(
            "layer pipeline",
            "compute of a layer",
            "ms",
            "5.5",
            inputs.pipeline.layer_gb / inputs.gpu.hbm_gb_per_s * 1e3,
            "decode reads 1.75 GB of weights from HBM: 1.75 / 8000 GB/s",
            under=Condition(
                "set so that five endpoints just keep up (1.75 GB / 320 GB/s)",
                transfer_ms(inputs, 5),
            ),
        ),
    ]
    return found
