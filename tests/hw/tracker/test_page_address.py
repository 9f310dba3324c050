# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageAddress: where a frame's lines lie, and how fast it says so."""

import itertools

import pytest
from simulation import simulate
from timing import check_interval, varied

from kelp_hw.tracker.page_address import PageAddress
from kelp_spec.config import Config, named
from kelp_spec.formats import Format
from kelp_spec.geometry import StoredPage, smallest_pool

UNIT, LARGE = named("unit"), named("64x64")


def test_latency_and_interval():
    check_interval(lambda: PageAddress(config=UNIT), "LATENCY", "o.base", varied("frame"))


def every_line(config):
    """(used_lines, line) of every page size."""
    return [(used, line) for used in range(1, config.half_lines + 1) for line in range(used)]


def around_lines_of_scales(config):
    """Of pages whose scales fill several DRAM lines, the lines beside which another begins."""
    half = config.half_lines
    return [
        (used, line)
        for used in (half // 2 + 1, half - 1, half)
        for line in sorted({0, half // 4, half // 2 - 1, half // 2, used - 1})
    ]


@pytest.mark.parametrize(
    ("config", "lines", "count"),
    [
        pytest.param(UNIT, every_line, 750, id="unit"),
        pytest.param(LARGE, around_lines_of_scales, 1050, id="64x64"),
    ],
)
@pytest.mark.parametrize(
    "pools", [Config.pool_formats, ("raw16", "int8/int4", "raw16/int4", "int4/fp8_e5m2")]
)
def test_lines_of_every_shape_are_placed_as_the_geometry_says(config, lines, count, pools):
    """Every pair of formats, one line a cycle: of `unit` every page size and line; of `64x64` those
    that a page of one line of scales has not."""
    config = config.with_(pool_formats=pools)
    dut = PageAddress(config=config)
    cases = [
        (k, v, used, k_only, kv, line)
        for k, v, k_only in itertools.product(Format, Format, (False, True))
        for used, line in lines(config)
        for kv in range(1 if k_only else 2)
    ]
    places = []

    async def bench(ctx):
        for n, (k, v, used, k_only, kv, line) in enumerate([*cases, cases[0]]):
            # Frames of each pool in turn that are large enough for the page.
            pool = smallest_pool(config.frame_lines, StoredPage(k, v, used, k_only).lines)
            frame = config.pool_first_frame[pool] + n % config.frames[pool]
            ctx.set(dut.frame, frame)
            ctx.set(dut.pool, pool)
            ctx.set(dut.kv_line, kv * config.half_lines + line)
            stored = {"used_lines": used, "k_only": k_only, "format_k": k, "format_v": v}
            ctx.set(dut.stored, stored)
            if n:
                places.append(
                    {
                        name: ctx.get(dut.o[name])
                        for name in (
                            "base",
                            "offset",
                            "part",
                            "scaled",
                            "scale_offset",
                            "scale_byte",
                            "format",
                        )
                    }
                )
            expected_base.append(
                config.pool_base_line[pool]
                + (frame - config.pool_first_frame[pool]) * config.frame_lines[pool]
            )
            await ctx.tick()

    expected_base = []
    simulate(dut, bench)
    assert len(places) == len(cases) == count
    for (k, v, used, k_only, kv, line), got, base in zip(
        cases, places, expected_base[:-1], strict=True
    ):
        want = StoredPage(k, v, used, k_only).place(kv, line)
        assert got["base"] == base
        assert (got["offset"], got["part"], got["format"]) == (
            want.offset,
            want.part,
            v if kv else k,
        )
        if got["scaled"]:
            assert (got["scale_offset"], got["scale_byte"]) == (want.scale_offset, want.scale_byte)
        assert got["scaled"] == bool((v if kv else k).scale_bytes)
