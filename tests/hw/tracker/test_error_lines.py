# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`ErrorLines`: which host lines lie in a DRAM line, and the gap in which the frame table hears."""

import itertools

import pytest
from amaranth.sim import Simulator

from kelp_hw.tracker.error_lines import ErrorLines
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.geometry import StoredPage

UNIT = named("unit")
LARGE = UNIT.with_(half_lines=64)  # pages of several DRAM lines of scales


def reported(reports, config=UNIT):
    """Each report's frame_error, with the cycles from `i` to `o` and from transfer to the next `o`;
    `paused` rises two cycles after `pause`, and the frame table takes two more."""
    dut = ErrorLines(config=config)
    got = []

    async def bench(ctx):
        for report in reports:
            assert not ctx.get(dut.hold.pause)
            ctx.set(dut.i.p, report)
            ctx.set(dut.i.valid, 1)
            cycles = 0
            while not ctx.get(dut.hold.pause):
                assert not ctx.get(dut.o.valid) and not ctx.get(dut.i.ready)
                await ctx.tick()
                cycles += 1
            for paused in (0, 0, 1):
                ctx.set(dut.hold.paused, paused)
                assert ctx.get(dut.o.valid) == paused and ctx.get(dut.hold.pause)
                ctx.set(dut.o.ready, 1)
                if not paused:
                    await ctx.tick()
            for executed in (0, 1):
                await ctx.tick()
                ctx.set(dut.executed, executed)
                assert ctx.get(dut.i.ready) == executed and ctx.get(dut.hold.pause)
                assert not ctx.get(dut.o.valid)
                fields = ("frame", "offset", "spoils", "lines")
                told = tuple(ctx.get(dut.o.p[name]) for name in fields)
            got.append((told, cycles))
            await ctx.tick()
            ctx.set(dut.executed, 0)
            ctx.set(dut.hold.paused, 0)

    simulator = Simulator(dut)
    simulator.add_clock(1e-9)
    simulator.add_testbench(bench)
    simulator.run()
    return got


def lines_in(config, stored, offset):
    """By the geometry: the host lines with payload or scale in DRAM line `offset`."""
    found = 0
    for kv in range(1 if stored.k_only else 2):
        scaled = (stored.format_v if kv else stored.format_k).scale_bytes
        for line in range(stored.used_lines):
            place = stored.place(kv, line)
            if offset == place.offset or scaled and offset == place.scale_offset:
                found |= 1 << kv * config.half_lines + line
    return found


@pytest.mark.parametrize("used_lines", [1, 3, UNIT.half_lines])
def test_lines_are_those_of_the_geometry(used_lines):
    check(
        UNIT,
        [
            (stored, offset)
            for k, v, k_only in itertools.product(Format, Format, (False, True))
            for stored in [StoredPage(k, v, used_lines, k_only)]
            for offset in range(stored.lines)
        ],
    )


@pytest.mark.parametrize("used_lines", [LARGE.half_lines - 1, LARGE.half_lines])
def test_each_line_of_scales_has_its_own_lines(used_lines):
    """The last lines of V, and all lines of scales behind them: one of these may be K's and V's."""
    pages = [
        StoredPage(k, v, used_lines, False)
        for k, v in ((Format.INT8, Format.INT4), (Format.INT4, Format.INT4))
    ]
    scales = [(used_lines * (p.format_k.scale_bytes + p.format_v.scale_bytes)) // 64 for p in pages]
    assert min(scales) >= 2
    check(LARGE, [(p, at) for p in pages for at in range(p.lines - 6, p.lines)])


def check(config, cases):
    """What is reported of (page, DRAM line) each is what the geometry says, in time."""
    reports = [
        {
            "frame": n % config.total_frames,
            "offset": offset,
            "spoils": 1,
            "stored": {
                "used_lines": stored.used_lines,
                "k_only": stored.k_only,
                "format_k": stored.format_k,
                "format_v": stored.format_v,
            },
        }
        for n, (stored, offset) in enumerate(cases)
    ]
    for n, ((stored, offset), (told, cycles)) in enumerate(
        zip(cases, reported(reports, config), strict=True)
    ):
        frame, at, spoils, lines = told
        assert (frame, at, spoils) == (n % config.total_frames, offset, 1)
        # The frame table knows that a page has no other lines.
        there = sum(
            1 << kv * config.half_lines + line
            for kv in range(1 if stored.k_only else 2)
            for line in range(stored.used_lines)
        )
        assert lines & there == lines_in(config, stored, offset), (stored, offset)
        assert cycles == config.page_lines + ErrorLines.LATENCY


def test_what_spoils_nothing_places_nothing():
    report = {"frame": 5, "offset": 2, "spoils": 0}
    ((told, cycles),) = reported([report])
    assert told[:3] == (5, 2, 0) and cycles == 1
