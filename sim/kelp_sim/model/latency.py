# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A CXL.mem read of a resident line, stage by stage, with the controller's measured cycles; and
what link and memory can carry."""

from __future__ import annotations

from .findings import Condition, Finding, Table, finding
from .inputs import Inputs

__all__ = ["controller_ns", "dram_gb_per_s", "findings", "read_ns", "tables"]

_LINE = 64


def controller_ns(inputs: Inputs) -> float:
    """Our controller from request to answer beyond the memory's own latency."""
    return inputs.rtl.hit_latency_cycles.value / inputs.endpoint.clock_ghz


def read_ns(inputs: Inputs) -> float:
    """All stages and the controller."""
    return sum(inputs.latency.stages.values()) + controller_ns(inputs)


def dram_gb_per_s(inputs: Inputs) -> float:
    return inputs.endpoint.dram_channels * 8 * inputs.endpoint.dram_mt_per_s / 1e3


def controller_gb_per_s(inputs: Inputs) -> float:
    """Lines a cycle at the worst measured mix of reads and writes."""
    return inputs.rtl.mixed_lines_per_cycle.value * _LINE * inputs.endpoint.clock_ghz


def tables(inputs: Inputs) -> list[Table]:
    rows, total = [], 0.0
    for name, ns in (*inputs.latency.stages.items(), ("controller (RTL)", controller_ns(inputs))):
        total += ns
        rows.append({"stage": name, "ns": ns, "total_ns": total})
    cycles = inputs.rtl.hit_latency_cycles
    note = (
        f"controller: {cycles.value:g} cycles at {inputs.endpoint.clock_ghz:g} GHz "
        + f"({cycles.command})"
    )
    stages = Table(
        name="latency",
        title="A read of a resident line",
        columns=(("stage", "stage", ""), ("ns", "ns", ".1f"), ("total_ns", "so far", ".1f")),
        rows=tuple(rows),
        notes=(note,),
    )
    rates = Table(
        name="bandwidth",
        title="What each part of an endpoint can carry",
        columns=(("part", "part", ""), ("gb_per_s", "GB/s", ",.1f")),
        rows=(
            {
                "part": f"link, {inputs.link.lanes} lanes of {inputs.link.gt_per_s:g} GT/s",
                "gb_per_s": inputs.link.gb_per_s,
            },
            {
                "part": "controller, reads and writes mixed (RTL)",
                "gb_per_s": controller_gb_per_s(inputs),
            },
            {"part": "DRAM", "gb_per_s": dram_gb_per_s(inputs)},
            {
                "part": "flash, as far as the miss path uses it (RTL)",
                "gb_per_s": inputs.flash.gb_per_s * inputs.rtl.tier_share.value,
            },
        ),
    )
    return [stages, rates]


def findings(inputs: Inputs) -> list[Finding]:
    stages, dma = sum(inputs.latency.stages.values()), inputs.latency.dma_us
    raw = inputs.link.gt_per_s * inputs.link.lanes / 8
    return [
        finding(
            "latency",
            "CXL.mem read, sum of the stages",
            "ns",
            "250",
            stages,
            "50 + 30 + 70 + 50: the source's stages do not add up; with our controller "
            + f"{read_ns(inputs):.0f}",
            under=Condition("50 ns that no stage names", stages + 50),
        ),
        finding(
            "latency",
            "PCIe DMA against CXL.mem",
            "×",
            "65",
            dma * 1e3 / 250,
            f"{dma:g} µs / 250 ns; with our controller {dma * 1e3 / read_ns(inputs):.0f}",
            under=Condition("200 ns, the sum of the stages", dma * 1e3 / stages),
        ),
        finding(
            "latency",
            "the same with 16 µs, as elsewhere in the source",
            "×",
            "65",
            16e3 / 250,
            "16 µs / 250 ns",
            within=0.02,
        ),
        finding(
            "latency",
            "x16 Gen5",
            "GB/s",
            "64",
            raw,
            "32 GT/s · 16 / 8, raw: 59 GB/s when a 68 B flit carries 64 B of data",
        ),
        finding(
            "tiers",
            "8 channels of DDR5-6400",
            "GB/s",
            "409.6",
            dram_gb_per_s(inputs),
            "8 · 8 B · 6400 MT/s",
        ),
    ]
