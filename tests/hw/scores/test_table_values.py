# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Arithmetic of the tables against the golden model, a page a cycle."""

import random

import pytest
from amaranth.hdl import Module, Signal, Value
from simulation import simulate
from timing import check_interval, varied

from kelp_golden.tables import Tables
from kelp_hw.scores.table_values import GuessedValue, PageFrequencies, side
from kelp_spec import policy2
from kelp_spec.config import named

CONFIG = named("unit_select").with_(sessions=1, queues=1)
ENDS = [(1 << 32) - 1, 0, *(1 << k for k in range(16)), *((2 << k) - 1 for k in range(16))]


def any_of(rng, bits):
    """The ends of octaves, and others."""
    return rng.choice([*ENDS, rng.getrandbits(rng.randint(1, bits))]) & (1 << bits) - 1


def piped(block, inputs, outputs):
    """What `outputs` are for each of `inputs`, one a cycle."""
    seen = []

    async def bench(ctx):
        for cycle in range(len(inputs) + block.LATENCY):
            for name, value in inputs[min(cycle, len(inputs) - 1)].items():
                ctx.set(getattr(block, name), value)
            if cycle >= block.LATENCY:
                seen.append(tuple(ctx.get(Value.cast(getattr(block, name))) for name in outputs))
            await ctx.tick()

    simulate(block, bench)
    return seen


def test_a_turn_makes_of_frequencies_what_the_golden_model_does():
    rng, inputs, expected = random.Random(1), [], []
    for _ in range(1500):
        tables = Tables(CONFIG, frames=9)
        queue = tables._queue(0)
        page = queue.pages[0]
        page.fast, page.slow, queue.counts[0] = (any_of(rng, bits) for bits in (12, 12, 7))
        step, read = (
            rng.choice([0, 1, 2, 63, 64, 254, 255, 256, rng.randrange(300)]),
            rng.random() < 0.5,
        )
        inputs.append(
            {
                "fast": page.fast,
                "slow": page.slow,
                "count": queue.counts[0],
                "fast_factor": policy2.FAST_FOLD[min(step, 255)],
                "slow_factor": policy2.SLOW_FOLD[min(step, 255)],
                "fades": int(step >= 64),
                "read": int(read),
            }
        )
        tables.turn_over(0, {0} if read else set(), 0, step)
        i, j, k = page.before // 64, page.before // 8 % 8, page.before % 8
        expected.append((page.fast, page.slow, queue.counts[0], k | j << 3 | i << 6))
    outputs = ("new_fast", "new_slow", "new_count", "entry")
    assert piped(PageFrequencies(), inputs, outputs) == expected
    assert len({entry for *_, entry in expected}) > 60


def test_a_guess_makes_of_a_value_what_the_golden_model_does():
    rng, inputs, expected = random.Random(2), [], []
    tables = Tables(CONFIG)
    queue = tables._queue(0)
    for _ in range(1500):
        likely = any_of(rng, 16)
        queue.t = [likely] * 144
        tables.guessed(0, {0: 5}, 1)
        inputs.append({"likely": likely})
        expected.append((int(tables.value[0, 0]),))
    assert piped(GuessedValue(), inputs, ("value",)) == expected


def test_sides_are_the_golden_ones():
    m, x, tables = Module(), Signal(16), Tables(CONFIG)
    out, seen, expected = side(m, x, "out"), [], []
    masses = [mass & 65535 for mass in ENDS]
    for mass in masses:
        tables.guessed(0, {0: mass}, 1)
        expected.append(tables._queue(0).pages[0].guessed)

    async def bench(ctx):
        for mass in masses:
            ctx.set(x, mass)
            seen.append(ctx.get(out))

    simulate(m, bench)
    assert seen == expected and set(seen) == set(range(12))


FACTORS = {"fast_factor": 65536, "slow_factor": 65536}


@pytest.mark.parametrize(
    ("output", "stimuli"),
    [
        ("new_fast", varied("fast", (100, 200, 50))),
        ("new_slow", varied("slow", (100, 200, 50))),
        ("new_count", varied("count", (10, 20, 5))),
        ("entry", varied("fast", (100, 200, 300))),
    ],
)
def test_frequencies_latency_and_interval(output, stimuli):
    check_interval(PageFrequencies, "LATENCY", output, stimuli, prepare=FACTORS)


def test_guessed_value_latency_and_interval():
    check_interval(GuessedValue, "LATENCY", "value", varied("likely", (1000, 20000, 500)))
