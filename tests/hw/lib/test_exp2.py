# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Exp2: the golden values of both biases, one a cycle; its latency; what it refuses."""

import random

import pytest
from simulation import simulate
from timing import check_pace, varied

from kelp_golden import arithmetic
from kelp_hw.lib.exp2 import Exp2
from kelp_spec.scores import IDLE_BIAS, RECENCY_BIAS


@pytest.mark.parametrize("bias", [RECENCY_BIAS, IDLE_BIAS])
def test_values_are_the_golden_ones(bias):
    """Of any bits, and with a shift that leaves an exponent within the table."""
    rng, dut, seen = random.Random(bias), Exp2(bias=bias), []
    tops = [(1 << a, 1 << b) for a in range(20, 24) for b in range(12, 16)]
    cases = [(*top, shift) for top in tops for shift in range(8)]
    for _ in range(1200):
        sizes = (rng.choice([bits, rng.randint(0, bits)]) for bits in (24, 16))
        steps, mantissa = (rng.getrandbits(bits) for bits in sizes)
        most = (steps * mantissa).bit_length() - 20
        shift = rng.choice([rng.getrandbits(5), max(0, min(31, most + rng.randrange(12)))])
        cases.append((steps, mantissa, shift))

    async def bench(ctx):
        for cycle in range(len(cases) + dut.LATENCY):
            steps, mantissa, shift = cases[min(cycle, len(cases) - 1)]
            ctx.set(dut.steps, steps)
            ctx.set(dut.mantissa, mantissa)
            ctx.set(dut.shift, shift)
            if cycle >= dut.LATENCY:
                seen.append(ctx.get(dut.halving))
            await ctx.tick()

    simulate(dut, bench)
    expected = [arithmetic.halving(arithmetic.exponent(s, m, sh - bias)) for s, m, sh in cases]
    assert seen == expected and len(set(expected)) > 300


def test_latency_and_interval():
    check_pace(Exp2(bias=0), "LATENCY", "halving", varied("steps", mantissa=1 << 15))


def test_bias_is_checked():
    with pytest.raises(ValueError, match="bias = 9 .*0 … 8"):
        Exp2(bias=9)
