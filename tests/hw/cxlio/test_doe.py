# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Data object exchange: one object at a time, abort at any moment, what is an error."""

import json

import pytest
from flips import flip, opened
from paths import ROOT
from simulation import simulate
from timing import changes

from kelp_hw.cxl_device import CxlDevice
from kelp_hw.cxlio.doe import Doe
from kelp_spec.cxlio.cdat import cdat_entries
from kelp_spec.cxlio.config import named_cxlio
from kelp_verif.measure.endpoint import MEMORY_LATENCY


def run(steps):
    """(busy, error, ready, read, request) after each step, a dict of what is pulsed."""
    dut, seen = Doe(), []

    async def bench(ctx):
        for step in steps:
            for name in ("go", "abort", "take", "send"):
                ctx.set(getattr(dut, name), name in step)
            for name in ("word", "answer"):
                ctx.set(getattr(dut, name).valid, name in step)
                ctx.set(getattr(dut, name).p, step.get(name, 0))
            await ctx.tick()
            request = (ctx.get(dut.o.p.header), ctx.get(dut.o.p.word), ctx.get(dut.o.p.count))
            seen.append(
                (
                    *(ctx.get(x) for x in (dut.busy, dut.error, dut.ready)),
                    ctx.get(dut.read),
                    request if ctx.get(dut.o.valid) else None,
                )
            )

    simulate(dut, bench)
    return seen


ASK = [{"word": 5}, {"word": 3}, {"word": 9}, {"go": 1}]
TOLD = [{"answer": 5}, {"answer": 4}, {"send": 1}]
QUIET = (0, 0, 0, 0, None)


def test_a_request_and_its_answer():
    seen = run([*ASK, *TOLD, {}, {"take": 1}, {"take": 1}, {"take": 1}])
    assert seen[3] == (1, 0, 0, 0, (5, 9, 3))
    assert seen[6] == seen[7] == (0, 0, 1, 5, None)
    assert seen[8] == (0, 0, 1, 4, None) and seen[9] == seen[10] == QUIET
    assert run([*ASK, *TOLD, {"take": 1}, {"take": 1}, *ASK])[-1][4] == (5, 9, 3)


def test_an_object_without_an_answer():
    seen = run([*ASK, {"send": 1}, {"word": 1}, {"go": 1}])
    assert seen[4] == QUIET and seen[6] == (1, 0, 0, 0, (1, 9, 1))


def test_errors_last_until_abort():
    for steps in ([{"go": 1}], [*ASK, {"word": 1}], [*ASK, *TOLD, {"word": 1}], [*ASK, {"go": 1}]):
        assert run(steps)[-1][1] == 1
        assert run([*steps, {}, {"abort": 1}])[-1][1] == 0


def test_abort_of_what_is_worked_on():
    seen = run([*ASK, {"answer": 5}, {"abort": 1}, {"answer": 6}, {"send": 1}, *ASK, *TOLD])
    assert seen[7] == QUIET and seen[-1] == (0, 0, 1, 5, None)
    assert run([*ASK, *TOLD, {"abort": 1}, {"take": 1}])[-1] == QUIET
    assert run([{"word": 1}, {"abort": 1}, *ASK])[-1][4] == (5, 9, 3)
    # In the very cycle in which it is sent.
    seen = run([*ASK, {"answer": 5}, {"send": 1, "abort": 1}, {}, *ASK, *TOLD])
    assert seen[5:7] == [QUIET] * 2 and seen[-1] == (0, 0, 1, 5, None)


def test_flips_of_an_answer_are_told_once():
    dut, seen = Doe(protect=True), []
    top, memories = opened(dut)
    (rows,) = memories.values()

    async def bench(ctx):
        for step in [*ASK, *TOLD]:
            for name in ("word", "answer"):
                ctx.set(getattr(dut, name).valid, name in step)
                ctx.set(getattr(dut, name).p, step.get(name, 0))
            for name in ("go", "send"):
                ctx.set(getattr(dut, name), name in step)
            await ctx.tick()
        ctx.set(dut.send, 0)
        flip(ctx, rows, 0, 3)
        flip(ctx, rows, 1, 3, 4)
        for take in (0, 1, 0, 0, 0):
            ctx.set(dut.take, take)
            await ctx.tick()
            seen.append((ctx.get(dut.fault.corrected), ctx.get(dut.fault.poisoned)))

    simulate(top, bench)
    assert seen == [(0, 0), (1, 0), (0, 1), (0, 0), (0, 0)]


def test_many_words_are_counted_as_seven():
    assert run([{"word": 1}] * 20 + [{"go": 1}])[-1][4][2] == 7


def test_latency_and_interval():
    given = [{"word.valid": 1, "word.p": i} for i in (1, 2, 3)]
    assert changes(Doe(), "o.p.count", given) == [Doe.LATENCY + i * Doe.INTERVAL for i in range(3)]


def test_the_cdat_says_what_was_measured():
    """Of `joined` as it comes; a write is like a read. The figures are `kelp bench`'s."""
    rows = json.loads((ROOT / "data/bench/bench.json").read_text(encoding="utf-8"))
    measured = {row["name"]: row["value"] for row in rows}
    config, told = named_cxlio("joined"), {}
    for entry in cdat_entries(config)[1:]:
        if entry[0] == 1:  # DSLBIS: kind, unit (ps or MB/s), value
            assert len(entry) == 24
            unit = int.from_bytes(entry[8:16], "little")
            told[entry[6]] = unit * int.from_bytes(entry[16:18], "little")
    cycles = measured["endpoint.hit_latency_cycles"] + MEMORY_LATENCY + CxlDevice.LATENCY
    assert told[1] == told[2] == cycles * config.period_ns * 1000
    rate = min(measured[f"endpoint.{kind}_hit.lines_per_cycle"] for kind in ("read", "write"))
    assert told[4] == told[5]
    assert 0.97 <= told[4] * config.period_ns / 64_000 <= rate


def test_more_than_a_line_a_cycle_is_refused():
    joined = named_cxlio("joined")
    assert joined.replace(period_ns=1, bandwidth_mb=64_000).bandwidth_mb == 64_000
    refused = "bandwidth_mb = 16001 is refused; legal: 1 … 16000"
    with pytest.raises(ValueError, match=refused):
        joined.replace(bandwidth_mb=16_001)
