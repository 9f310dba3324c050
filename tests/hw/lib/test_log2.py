# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Log2: the golden logarithm, one a cycle."""

import random

import pytest
from simulation import simulate
from timing import check_interval, varied

from kelp_golden.arithmetic import log2
from kelp_hw.lib.log2 import Log2
from kelp_spec.policy import LOG_BITS


def test_latency_and_interval():
    stimuli = varied("x", (100, 200, 4667))
    check_interval(lambda: Log2(bits=13, least=6), "LATENCY", "o", stimuli, prepare={"x": 64})


@pytest.mark.parametrize(("bits", "least"), [(1, 0), (13, 6), (26, 0), (27, 11)])
def test_every_place_of_the_highest_bit(bits, least):
    rng = random.Random(bits)
    each = [rng.randrange(1 << w, 2 << w) for w in range(least, bits) for _ in range(20)]
    each += [end for w in range(least, bits) for end in (1 << w, (2 << w) - 1)]
    dut, seen = Log2(bits=bits, least=least), []

    async def bench(ctx):
        for x in each + [1 << least] * dut.LATENCY:
            ctx.set(dut.x, x)
            seen.append(ctx.get(dut.o))
            await ctx.tick()

    simulate(dut, bench)
    assert seen[dut.LATENCY :] == [log2(x) - (least << LOG_BITS) for x in each]


def test_a_least_place_outside_is_refused():
    with pytest.raises(ValueError, match=r"least = 4 is refused; legal: 0 … 3"):
        Log2(bits=4, least=4)
