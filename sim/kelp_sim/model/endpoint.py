# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What is published of the endpoint's inside: queues, scores, formats, metadata, prefetch; against
the device's own integers and measurements."""

from __future__ import annotations

import math

import numpy as np

from kelp_golden.arithmetic import decay, priority
from kelp_spec.formats import Format, stored_page_lines
from kelp_spec.scores import recency_constants

from .findings import Condition, Finding, Table, finding
from .inputs import Inputs
from .kv_size import kv_bytes

__all__ = [
    "base_hit_rate",
    "findings",
    "peers",
    "residency_for",
    "score_row",
    "stored_share",
    "tables",
]

_HOST_LINES = 128  #: of a page of 16 tokens at head_dim 128
_TAU = 1000


def score_row(score: float, age: int) -> tuple[float, float, float]:
    """(decay, priority) by the formula, and the device's priority by its integers."""
    by_formula = 1 - math.exp(-age / _TAU)
    ours = int(priority(round(score * 65536), decay(age, *recency_constants(_TAU)))) / 65536
    return by_formula, (1 - score) * by_formula, ours


def stored_share(fmt: Format) -> float:
    """Stored bytes of a page, scales and whole lines included, for each byte the host sees."""
    return stored_page_lines(fmt, _HOST_LINES) / _HOST_LINES


def base_hit_rate(speedup: float, hit_rate: float, hit_ns: float, miss_ns: float) -> float:
    """The hit rate without prefetch from which ``hit_rate`` makes the mean access ``speedup`` times
    faster."""
    after = hit_rate * hit_ns + (1 - hit_rate) * miss_ns
    return (miss_ns - speedup * after) / (miss_ns - hit_ns)


def residency_for(hit_rate: float, residency, rates) -> float:
    """The residency at which ``rates`` pass ``hit_rate``, on the line through the measured
    points."""
    return float(np.interp(hit_rate, rates, residency))


def _mean_ns(hit_rate: float, miss_us: float) -> float:
    return hit_rate * 250 + (1 - hit_rate) * miss_us * 1e3


def tables(inputs: Inputs) -> list[Table]:
    rows = tuple(
        {
            "format": fmt.label,
            "bytes_per_byte": stored_share(fmt),
            "gb": 40 * stored_share(fmt),
            "dram_gb_per_s_for_64": 64 * stored_share(fmt),
        }
        for fmt in Format
    )
    stored = Table(
        name="formats",
        title="Stored formats: pages of 128 lines, scales included",
        rows=rows,
        columns=(
            ("format", "format", ""),
            ("bytes_per_byte", "stored bytes per host byte", ".4f"),
            ("gb", "GB for 40 GB", ".2f"),
            ("dram_gb_per_s_for_64", "DRAM GB/s behind 64 GB/s", ".1f"),
        ),
    )
    rows = []
    for i, residency in enumerate(inputs.policy.residency):
        p = inputs.policy
        rows.append(
            {
                "residency": residency,
                "lru_per_queue": p.lru_per_queue[i],
                "window": p.window[i],
                "window_flash_reads": p.window_flash_reads[i],
                "kelp": p.kelp[i],
                "kelp_flash_reads": p.kelp_flash_reads[i],
            }
        )
    policy = Table(
        name="policy",
        title="Measured on recordings (docs/lab.md); flash reads relative to LRU per queue",
        rows=tuple(rows),
        columns=(
            ("residency", "residency", ".1%"),
            ("lru_per_queue", "LRU per queue", ".2%"),
            ("window", "± 1 page", ".2%"),
            ("window_flash_reads", "its flash reads", ".2f"),
            ("kelp", "kelp", ".2%"),
            ("kelp_flash_reads", "its flash reads", ".2f"),
        ),
    )
    return [stored, policy, peers(inputs)]


def peers(inputs: Inputs) -> Table:
    """What others publish (claims, unless said otherwise) beside what our RTL was measured to
    do."""
    rtl, rows = inputs.rtl, []
    ours = (
        f"64 B/cycle, {rtl.quantise_cycles.value:g} and {rtl.dequantise_cycles.value:g} "
        + f"cycles, {rtl.quantise_mhz:.0f} and {rtl.dequantise_mhz:.0f} MHz routed on an ECP5"
    )
    words = (
        f"{rtl.metadata_bytes_per_kv_byte.value:.2%}, and "
        + f"{rtl.frame_bytes_per_resident_byte.value:.2%} of what is resident"
    )
    for system, what, published, own, command in (
        (
            "CXL-SpecKV 2512.11920",
            "codec",
            "64 B/cycle, 20 stages, 812 MHz (estimated)",
            ours,
            rtl.quantise_cycles.command,
        ),
        (
            "TRACE 2509.03377",
            "codec",
            "128 B/cycle at 2 GHz, lossless to 53.1 %",
            f"{64 * rtl.quantise_lines_per_cycle.value:g} B/cycle, int8 to 51.6 %",
            rtl.quantise_lines_per_cycle.command,
        ),
        (
            "M5 ASPLOS'25",
            "tracker",
            "an update in 2 cycles (read from its RTL)",
            f"{rtl.tracker_updates_per_cycle.value:g} a cycle, 640 queues",
            rtl.tracker_updates_per_cycle.command,
        ),
        (
            "concept paper",
            "metadata",
            "1.6 % of the KV",
            words,
            rtl.metadata_bytes_per_kv_byte.command,
        ),
        (
            "concept paper",
            "controller and its memory",
            "30 + 50 ns",
            f"{rtl.hit_latency_cycles.value:g} cycles + 50 ns",
            rtl.hit_latency_cycles.command,
        ),
    ):
        rows.append(
            {
                "system": system,
                "what": what,
                "published": published,
                "ours": own,
                "command": command,
            }
        )
    columns = tuple((key, key, "") for key in ("system", "what", "published", "ours", "command"))
    return Table(name="peers", title="Others, and our RTL", rows=tuple(rows), columns=columns)


def findings(inputs: Inputs) -> list[Finding]:
    return [
        *_of_the_formula(inputs),
        *_of_prefetch(inputs),
        *_of_formats(inputs),
        *_of_metadata(inputs),
    ]


def _of_the_formula(inputs: Inputs) -> list[Finding]:
    """Queues, and the worked rows of recency and priority."""
    model = inputs.models["llama-3-70b"]
    found = [
        finding(
            "endpoint", "queues", "", "640", model.layers * model.kv_heads, "80 layers · 8 KV heads"
        )
    ]
    for name, score, age, claimed_decay, claimed in (
        ("A", 0.211, 50, "0.049", "0.039"),
        ("B", 0.08, 2000, "0.865", "0.796"),
    ):
        by_formula, value, ours = score_row(score, age)
        found.append(
            finding(
                "endpoint",
                f"row {name}: recency decay at age {age}",
                "",
                claimed_decay,
                by_formula,
                f"1 − e^(−{age}/1000)",
            )
        )
        found.append(
            finding(
                "endpoint",
                f"row {name}: priority",
                "",
                claimed,
                value,
                f"(1 − {score}) · {by_formula:.4f}; the device's integers give "
                + f"{round(ours * 65536)}/65536 = {ours:.4f}",
                under=Condition(
                    f"the decay rounded to {claimed_decay} first",
                    (1 - score) * float(claimed_decay),
                ),
            )
        )
    return found


def _of_prefetch(inputs: Inputs) -> list[Finding]:
    policy, flash = inputs.policy, inputs.flash
    before = base_hit_rate(3.2, 0.85, 250, flash.latency_us * 1e3)
    faster = _mean_ns(policy.lru_per_queue[0], flash.latency_us) / _mean_ns(0.85, flash.latency_us)
    enough, without = (
        residency_for(0.85, policy.residency, rates)
        for rates in (policy.window, policy.lru_per_queue)
    )
    return [
        finding(
            "prefetch",
            "hit rate of the ±W window, recordings at 12.5 %",
            "%",
            "85",
            100 * policy.window[0],
            f"measured; at 25 % {100 * policy.window[1]:.1f} %. LRU without a window has 85 % "
            + f"at {without:.1%}",
            under=Condition(
                f"{enough:.1%} of the pages in DRAM",
                100 * float(np.interp(enough, policy.residency, policy.window)),
            ),
        ),
        finding(
            "prefetch",
            "bandwidth of the window, at 25 %",
            "×",
            "1.4",
            policy.window_flash_reads[1],
            "measured: flash reads against LRU per queue; at 12.5 % "
            + f"{policy.window_flash_reads[0]:.2f}",
        ),
        finding(
            "prefetch",
            "mean access faster at 85 % hits",
            "×",
            "3.2",
            faster,
            f"250 ns and {flash.latency_us:g} µs; LRU at 12.5 % hits {policy.lru_per_queue[0]:.1%}",
            under=Condition(
                f"a machine that hits {before:.1%} without it",
                _mean_ns(before, flash.latency_us) / _mean_ns(0.85, flash.latency_us),
            ),
        ),
        finding(
            "prefetch",
            "hit rate of prefetch by a DPU, recordings at 12.5 %",
            "%",
            ">90",
            100 * policy.kelp[0],
            "measured: our policy, which prefetches nothing",
            under=Condition("25 % of the pages in DRAM", 100 * policy.kelp[1]),
        ),
    ]


def _of_formats(inputs: Inputs) -> list[Finding]:
    found = []
    for what, claimed, figure in (
        ("fp16 → int8", "≥48", inputs.rtl.quantise_lines_per_cycle),
        ("fp16 → int4", "≥32", inputs.rtl.quantise_lines_per_cycle),
        ("int8 → fp16", "≥64", inputs.rtl.dequantise_lines_per_cycle),
    ):
        found.append(
            finding(
                "formats",
                f"codec, {what}",
                "GB/s",
                claimed,
                64 * inputs.endpoint.clock_ghz * figure.value,
                f"ours: {figure.value:g} line of 64 B a cycle at "
                + f"{inputs.endpoint.clock_ghz:g} GHz ({figure.command})",
            )
        )
    for fmt, claimed in ((Format.FP8_E4M3, "20"), (Format.INT8, "20"), (Format.INT4, "10")):
        found.append(
            finding(
                "formats",
                f"40 GB in {fmt.label}",
                "GB",
                claimed,
                40 * stored_share(fmt),
                f"40 · {stored_page_lines(fmt, _HOST_LINES)}/{_HOST_LINES} lines",
                under=Condition("scales not counted", 40 * fmt.element_bits / 16),
            )
        )
    return found


def _of_metadata(inputs: Inputs) -> list[Finding]:
    """Of the source's design: 8 B per token and queue."""
    model, context = inputs.models["llama-3-70b"], 131072
    entries = context * model.layers * model.kv_heads
    return [
        finding(
            "metadata",
            "8 B per token and queue, 128K · 640",
            "MB",
            "640",
            8 * entries / 1e6,
            "8 · 131 072 · 640 B",
            under=Condition("MB read as MiB", 8 * entries / 2**20),
        ),
        finding(
            "metadata",
            "the same, of the KV",
            "%",
            "1.6",
            100 * 8 * entries / kv_bytes(model, context),
            "8 B / (327 680 / 640) B",
        ),
    ]
