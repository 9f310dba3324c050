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


def reported(reports):
    """Each report's frame_error, with the cycles from `i` to `o` and from transfer to the next `o`;
    `paused` rises two cycles after `pause`, and the frame table takes two more."""
    dut = ErrorLines(config=UNIT)
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


def lines_in(stored, offset):
    """By the geometry: the host lines with payload or scale in DRAM line `offset`."""
    found = 0
    for kv in range(1 if stored.k_only else 2):
        scaled = (stored.format_v if kv else stored.format_k).scale_bytes
        for line in range(stored.used_lines):
            place = stored.place(kv, line)
            if offset == place.offset or scaled and offset == place.scale_offset:
                found |= 1 << kv * UNIT.half_lines + line
    return found


@pytest.mark.parametrize("used_lines", [1, 3, UNIT.half_lines])
def test_lines_are_those_of_the_geometry(used_lines):
    cases = [
        (stored, offset)
        for k, v, k_only in itertools.product(Format, Format, (False, True))
        for stored in [StoredPage(k, v, used_lines, k_only)]
        for offset in range(stored.lines)
    ]
    reports = [
        {
            "frame": n % UNIT.total_frames,
            "offset": offset,
            "spoils": 1,
            "stored": {
                "used_lines": used_lines,
                "k_only": stored.k_only,
                "format_k": stored.format_k,
                "format_v": stored.format_v,
            },
        }
        for n, (stored, offset) in enumerate(cases)
    ]
    for n, ((stored, offset), (told, cycles)) in enumerate(
        zip(cases, reported(reports), strict=True)
    ):
        frame, at, spoils, lines = told
        assert (frame, at, spoils) == (n % UNIT.total_frames, offset, 1)
        # The frame table knows that a page has no other lines.
        there = sum(
            1 << kv * UNIT.half_lines + line
            for kv in range(1 if stored.k_only else 2)
            for line in range(used_lines)
        )
        assert lines & there == lines_in(stored, offset), (stored, offset)
        assert cycles == UNIT.page_lines + ErrorLines.LATENCY


def test_what_spoils_nothing_places_nothing():
    report = {"frame": 5, "offset": 2, "spoils": 0}
    ((told, cycles),) = reported([report])
    assert told[:3] == (5, 2, 0) and cycles == 1
