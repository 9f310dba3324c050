# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""How many bytes a model's KV cache takes, by architecture.

MHA, GQA, MQA: 2 · layers · KV heads · head_dim · bytes for each token. MLA: layers · (latent +
RoPE) · bytes. Hybrid: for each layer one entry (and index key) for every ``compress`` tokens, and a
window of whole tokens.
"""

from __future__ import annotations

from .findings import Condition, Finding, Table, finding
from .inputs import Heads, Hybrid, Inputs, Latent

__all__ = ["findings", "kv_bytes", "kv_bytes_per_token", "short", "spaced", "tables"]

GIB = 2**30
M = 2**20  #: tokens of "1M" where it is binary
_TOPIC = "KV size"


def kv_bytes_per_token(model: Heads | Latent | Hybrid) -> float:
    """What one more token takes, on average."""
    if isinstance(model, Heads):
        return 2 * model.layers * model.kv_heads * model.head_dim * model.element_bytes
    if isinstance(model, Latent):
        return model.layers * (model.latent + model.rope) * model.element_bytes
    return sum(g.layers * (g.entry_bytes + g.index_bytes) / g.compress for g in model.groups)


def kv_bytes(model: Heads | Latent | Hybrid, tokens: int) -> float:
    """What ``tokens`` of context take: whole entries, and a hybrid's windows."""
    if isinstance(model, Hybrid):
        window = min(tokens, model.window_tokens)
        return sum(
            g.layers
            * (tokens // g.compress * (g.entry_bytes + g.index_bytes) + window * g.entry_bytes)
            for g in model.groups
        )
    return tokens * kv_bytes_per_token(model)


def tables(inputs: Inputs) -> list[Table]:
    rows = []
    for name, model in inputs.models.items():
        row = {
            "model": name,
            "attention": model.attention,
            "bytes_per_token": kv_bytes_per_token(model),
        }
        for tokens in inputs.contexts:
            row[f"gb_at_{tokens}"] = kv_bytes(model, tokens) / 1e9
        rows.append(row)
    columns = (
        ("model", "model", ""),
        ("attention", "attention", ""),
        ("bytes_per_token", "B/token", ",.0f"),
    )
    columns += tuple(
        (f"gb_at_{tokens}", f"GB at {short(tokens)}", ",.2f") for tokens in inputs.contexts
    )
    return [
        Table(name="kv_size", title="KV cache of one sequence", columns=columns, rows=tuple(rows))
    ]


def short(tokens: int) -> str:
    """131072 → 128K."""
    return (
        f"{tokens // 1024}K"
        if tokens % 1024 == 0 and tokens < M
        else f"{tokens // M}M"
        if tokens % M == 0
        else f"{tokens:,}"
    )


def spaced(number: float) -> str:
    """1234567 → 1 234 567."""
    return f"{number:,.0f}".replace(",", " ")


def findings(inputs: Inputs) -> list[Finding]:
    return [
        *_of_grouped_heads(inputs),
        *_of_latents(inputs),
        *_of_hybrids(inputs),
        *_of_all_heads(inputs),
        *_of_figure_2(inputs),
    ]


def _of_grouped_heads(inputs: Inputs) -> list[Finding]:
    gqa = inputs.models["llama-3-70b"]
    token = kv_bytes_per_token(gqa)
    return [
        finding(
            _TOPIC,
            "Llama-3-70B, KV per token",
            "B",
            "327680",
            token,
            "2 · 80 layers · 8 heads · 128 · 2 B",
        ),
        finding(
            _TOPIC,
            "the same at 128K",
            "GiB",
            "40",
            kv_bytes(gqa, 131072) / GIB,
            "327 680 · 131 072 / 2^30",
        ),
        finding(
            _TOPIC,
            "Llama-3-70B at 1M",
            "GB",
            "320",
            token * M / 1e9,
            "327 680 · 2^20 = 343.6 GB",
            under=Condition("GB read as GiB", token * M / GIB),
        ),
        finding(
            _TOPIC,
            "GLM-5.2 (estimate) at 1M",
            "GB",
            "343",
            328e3 * M / 1e9,
            "≈328 kB · 2^20; the shape is not published",
            within=0.005,
        ),
    ]


def _of_latents(inputs: Inputs) -> list[Finding]:
    mla = inputs.models["deepseek-v3"]
    latent = kv_bytes_per_token(mla)
    return [
        finding(
            _TOPIC,
            "DeepSeek-V3, KV per layer and token",
            "B",
            "1152",
            latent / mla.layers,
            "(512 + 64) · 2 B",
        ),
        finding(
            _TOPIC,
            "DeepSeek-V3, KV per token",
            "KB",
            "68.6",
            latent / 1e3,
            "1152 · 61 = 70 272 B",
            under=Condition("KB read as KiB", latent / 1024),
        ),
        finding(
            _TOPIC,
            "DeepSeek-V3 at 1M",
            "GB",
            "72",
            latent * M / 1e9,
            "70 272 · 2^20 = 73.7 GB; 68.6 GiB",
            under=Condition(
                "68.6 KiB taken as 68.6 kB, times 2^20", round(latent / 1024, 1) * 1e3 * M / 1e9
            ),
        ),
    ]


def _of_hybrids(inputs: Inputs) -> list[Finding]:
    v4, v4_small = (inputs.models[f"deepseek-v4-pro{stored}"] for stored in ("", "-fp8"))
    return [
        finding(
            _TOPIC,
            "DeepSeek-V4-Pro, KV per token",
            "KB",
            "10",
            kv_bytes_per_token(v4) / 1e3,
            "30 · (1024 + 256)/4 + 31 · 1024/128 B",
            within=0.05,
        ),
        finding(
            _TOPIC,
            "DeepSeek-V4-Pro at 128K, bf16",
            "GB",
            "1.20",
            kv_bytes(v4, 131072) / 1e9,
            "9848 B · 131 072 + 61 · 128 · 1024 B of window",
            under=Condition(
                "GiB, without the windows' 7.6 MiB", kv_bytes_per_token(v4) * 131072 / GIB
            ),
        ),
        finding(
            _TOPIC,
            "DeepSeek-V4-Pro at 1M, bf16",
            "GB",
            "9.62",
            kv_bytes(v4, M) / 1e9,
            "9848 B · 2^20 + 61 · 128 · 1024 B",
            under=Condition("GB read as GiB", kv_bytes(v4, M) / GIB),
        ),
        finding(
            _TOPIC,
            "DeepSeek-V4-Pro at 1M, fp8 + fp4",
            "GB",
            "4.8",
            kv_bytes(v4_small, M) / 1e9,
            "(30 · (576 + 64)/4 + 31 · 576/128) B · 2^20 + windows",
            under=Condition("GB read as GiB", kv_bytes(v4_small, M) / GIB),
        ),
    ]


def _of_all_heads(inputs: Inputs) -> list[Finding]:
    mha = inputs.models["mha-70b"]
    token = kv_bytes_per_token(inputs.models["llama-3-70b"])
    return [
        finding(
            _TOPIC,
            "70B with MHA, KV per layer and token",
            "KB",
            "32",
            kv_bytes_per_token(mha) / mha.layers / 1e3,
            "2 · 64 · 128 · 2 = 32 768 B",
            under=Condition("KB read as KiB", kv_bytes_per_token(mha) / mha.layers / 1024),
        ),
        finding(
            _TOPIC,
            "MHA against GQA",
            "×",
            "8",
            kv_bytes_per_token(mha) / token,
            "64 heads / 8 heads",
        ),
    ]


def _of_figure_2(inputs: Inputs) -> list[Finding]:
    token, found = kv_bytes_per_token(inputs.models["llama-3-70b"]), []
    for label, claimed, percent, tokens, loose in (
        ("4K", "1.3", "0.7", 4096, 4000),
        ("32K", "10", "5.2", 32768, 31250),
        ("128K", "41", "21", 131072, 125000),
        ("512K", "164", "85", 524288, 500000),
        ("1M", "328", "171", M, 1000000),
    ):
        found.append(
            finding(
                _TOPIC,
                f"Fig. 2: 70B at {label}",
                "GB",
                claimed,
                token * tokens / 1e9,
                f"327 680 · {spaced(tokens)}",
                under=Condition(
                    f"{label} = {spaced(loose)} tokens: 10^6 for 1M, halved", token * loose / 1e9
                ),
            )
        )
        found.append(
            finding(
                _TOPIC,
                f"Fig. 2: the same, of {inputs.gpu.hbm_gb:g} GB HBM",
                "%",
                percent,
                100 * token * tokens / 1e9 / inputs.gpu.hbm_gb,
                f"327 680 · {spaced(tokens)} / {inputs.gpu.hbm_gb:g} GB",
                under=Condition(
                    f"of the printed {claimed} GB", 100 * float(claimed) / inputs.gpu.hbm_gb
                ),
            )
        )
    return found
