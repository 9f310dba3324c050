# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Rows of `make bench`, and those of single blocks: codec, tracker, EMA engine, prefetcher,
metadata (spec §10)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kelp_spec.config import named
from kelp_spec.formats import ELEMENTS, Format, HostType

from ..harness.runner import run_cocotb

__all__ = ["Row", "block_rows", "codec_rows", "metadata_rows"]

_CODEC_LINES = 12_000


@dataclass(frozen=True)
class Row:
    """One measured figure. `goal` is the contract's bar as text ("≥ 0.98"), or empty; `met` is None
    without one."""

    name: str
    value: float
    unit: str
    goal: str = ""
    config: str = ""
    cycles: int = 0

    @property
    def met(self) -> bool | None:
        if not self.goal:
            return None
        sign, _, bar = self.goal.partition(" ")
        # A measured value may be NumPy's, whose comparisons JSON does not know.
        return bool(self.value >= float(bar) if sign == "≥" else self.value <= float(bar))

    @property
    def wall_clock(self) -> bool:
        """Whether the unit has seconds of this machine in it, which no bar alone can judge."""
        return re.search(r"(^|/)[nµm]?s$|[GM]B/s$", self.unit) is not None


def codec_rows() -> Iterator[Row]:
    """Every format and host type, both directions, at full rate; latency is the largest seen."""
    from ..codec.codec_model import pack_lines, pack_stored, rtl_decode, rtl_encode, unpack_stored

    rng = np.random.default_rng(1)
    lines = rng.integers(0, 1 << 16, (_CODEC_LINES, ELEMENTS), np.uint16)
    for fmt in Format:
        for host in HostType:
            run = rtl_encode(pack_lines(lines, host, fmt))
            yield from _codec(f"codec.{fmt.label}.{host.name.lower()}.enc", run)
            payload, scale, _, _ = unpack_stored(run.words)
            yield from _codec(
                f"codec.{fmt.label}.{host.name.lower()}.dec",
                rtl_decode(pack_stored(payload, scale, host, fmt)),
            )


def _codec(name, run) -> Iterator[Row]:
    accepted, given = run.accepted.astype(np.int64), run.given.astype(np.int64)
    cycles = int(given[-1] - given[0])
    yield Row(
        f"{name}.lines_per_cycle", (len(given) - 1) / cycles, "lines/cycle", "≥ 1", "any", cycles
    )
    yield Row(
        f"{name}.latency_cycles", int((given - accepted).max()), "cycles", "≤ 12", "any", cycles
    )


def block_rows() -> Iterator[Row]:
    """Rates at 640 queues of the blocks behind the request path."""
    from kelp_hw.prefetch.prefetch import Prefetcher
    from kelp_hw.scores.ema import EmaEngine
    from kelp_hw.tracker.tracker import Tracker

    config = named("ulx3s")
    rates = run_cocotb(
        Tracker(config=config),
        bench="kelp_verif.tracker.tracker_bench",
        test="rates",
        params={"config": config.name},
    ).records
    requests, background, cycles = rates["sequential_read"]
    yield Row(
        "tracker.updates_per_cycle", requests, "requests/cycle", "≥ 1", config.name, round(cycles)
    )
    yield Row(
        "tracker.background_per_cycle",
        background,
        "ops/cycle",
        "≥ 0.125",
        config.name,
        round(cycles),
    )
    requests, background, cycles = rates["random_read"]
    yield Row(
        "tracker.random_page.updates_per_cycle",
        requests,
        "requests/cycle",
        "≥ 0.85",
        config.name,
        round(cycles),
    )
    ema = run_cocotb(
        EmaEngine(config=config),
        bench="kelp_verif.scores.ema_bench",
        test="full_rate",
        params={"config": _fields(config), "cycles": 10_000},
    ).records
    yield Row(
        "ema.updates_per_cycle",
        ema["updates_per_cycle"],
        "updates/cycle",
        "≥ 1",
        config.name,
        ema["cycles"],
    )
    fetch = run_cocotb(
        Prefetcher(config=config),
        bench="kelp_verif.prefetch.prefetch_bench",
        test="full_rate",
        params={"config": config.name, "cycles": 10_000},
    ).records
    yield Row(
        "prefetch.accepts_per_cycle",
        fetch["accepts_per_cycle"],
        "candidates/cycle",
        "≥ 1",
        config.name,
        fetch["cycles"],
    )


def _fields(config) -> dict:
    from dataclasses import asdict

    return asdict(config)


def metadata_rows() -> Iterator[Row]:
    """SRAM bytes per byte that they describe, check bits included, of the largest configuration (8
    KB pages)."""
    from kelp_hw.layouts import Layouts
    from kelp_hw.lib.secded import Secded
    from kelp_spec.metadata import SCORE_BITS
    from kelp_spec.policy import EPOCH_BITS, PROFILE_BITS

    config = named("llama70b")
    layouts = Layouts(config)
    page_bits = (
        Secded(layouts.page_word.size).code_bits
        + Secded(SCORE_BITS).code_bits
        + PROFILE_BITS
        + EPOCH_BITS
    )
    page_bytes = config.page_lines * 64
    yield Row(
        "metadata.bytes_per_kv_byte",
        page_bits / 8 / page_bytes,
        "bytes/byte",
        "≤ 0.002",
        config.name,
    )
    yield Row(
        "metadata.frame_table_bytes_per_resident_byte",
        layouts.frame_entry.size / 8 / page_bytes,
        "bytes/byte",
        "≤ 0.005",
        config.name,
    )
