# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Data object exchange: one object at a time, abort at any moment, what is an error."""

import json
import random

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
MOST = 16  #: words of an answer
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


def test_exchanges_one_behind_the_other():
    """Of any length, aborted at any time, with a host that does what it should not."""
    rng, steps, wanted = random.Random(8), [], []
    asked, answer, working, void, wrong = [], [], False, False, False
    for n in range(4000):
        hurried = n // 500 % 2  # else answers are as long as can be
        word, step = rng.getrandbits(32), {}
        what = rng.choice(("word", "go", "go", "take", "take", "take", ""))
        what = "abort" if hurried and rng.random() < 0.03 else what
        if what:
            step[what] = word
        if rng.random() < 0.3:
            ends = len(answer) == MOST or hurried and rng.random() < 0.2
            step["send" if ends else "answer"] = word
        # What the sequencer does without an object is nobody's answer.
        answers, sends = "answer" in step and working, "send" in step and working
        busy, left = working, [] if working else answer
        if what == "word":
            if busy or left:
                wrong = True
            else:
                asked = [*asked, word][:7] if len(asked) < 3 else [*asked, 0][:7]
        if what == "go":
            if busy or left or not asked:
                wrong = True
            else:
                working, void, answer = True, False, []
        if what == "take":
            answer = answer if busy else answer[1:]
        if answers:
            answer = [*answer, word]
        if sends:
            working, asked, answer = False, [], [] if void else answer
        if what == "abort":
            wrong, void = False, True
            if not busy or sends:
                asked, answer = [], []
        steps.append(step)
        left = [] if working else answer
        request = (*(asked + [None] * 3)[:3:2], len(asked)) if working else None
        wanted.append((working, wrong, bool(left), left[0] if left else 0, request))
    seen = run(steps)
    for n, (got, want) in enumerate(zip(seen, wanted, strict=True)):
        assert got[:4] == want[:4], (n, steps[n], got, want)
        if want[4]:  # a word that was not sent is anything
            assert all(w in (None, g) for g, w in zip(got[4], want[4], strict=True)), (n, got, want)
    assert sum(w[2] for w in wanted) > 200 and sum(w[1] for w in wanted) > 200


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
