# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CodeWeights: what bits are worth, and in how many cycles; SummaryScore holds all of it to the
golden estimates."""

import numpy as np
import pytest
from select_cases import Group, put_queries
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.code_weights import CodeWeights
from kelp_spec.formats import ELEMENTS
from kelp_spec.select import ALIGNED_BITS, CODE_BITS, PLAN_FIELDS, SCORE_BITS, record_bytes

#: of a line, either way; of a score
LINE_MOST, SCORE_END = (1 << ALIGNED_BITS - 1) - 1, 1 << SCORE_BITS - 1


def score(total, sh):
    return min(max(total >> sh, -SCORE_END), SCORE_END - 1)


def weighed(group, *, lines, late=None, other=None):
    """(weights [heads][lines][32], base [heads][lines], cycles until they are there); of a plan
    that comes so `late` while the one of `other` is walked."""
    heads, found, took = len(group.query.x), {}, []
    if late is not None and other is None:
        other = Group(70, heads=heads, lines=group.codes.shape[-1], pages=1, wild=True)

    async def bench(ctx, dut):
        if late is not None:
            await put_queries(other.query, other.plan_rows)(ctx, dut)
            for _ in range(late):
                await ctx.tick()
        await put_queries(group.query, group.plan_rows)(ctx, dut)
        while not ctx.get(dut.ready):
            await ctx.tick()
            took.append(1)
        assert ctx.get(dut.token_lines) == group.codes.shape[-1] - 1
        found["weight"] = [
            [[ctx.get(dut.weight[h][n][k]) for k in range(CODE_BITS)] for n in range(lines)]
            for h in range(heads)
        ]
        found["base"] = [[ctx.get(dut.base[h][n]) for n in range(lines)] for h in range(heads)]

    pump(CodeWeights(heads=heads, lines=lines), Ends(sends={}, takes=(), before=bench), cycles=1)
    return found["weight"], found["base"], len(took)


CASES = [
    (1, 1, None, 60, False),
    *((2, 2, None, seed, True) for seed in range(62, 68)),
    *((1, 4, late, 61, False) for late in range(6)),
]


@pytest.mark.parametrize(("lines", "most", "late", "seed", "wild"), CASES)
@pytest.mark.sampled
def test_each_bit_and_no_bit(lines, most, late, seed, wild):
    group = Group(seed, heads=2, lines=lines, pages=1, wild=wild)
    weight, base, cycles = weighed(group, lines=most, late=late)
    assert cycles <= lines * CodeWeights.LATENCY
    check(group, weight, base, most)


@pytest.mark.parametrize("exponent", [-24, -25, -26, -60, -200])
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_left_where_exponents_leave_nothing(exponent, sign):
    """The largest code of 0 that there is, shifted by 24 places and no more (docs/select.md)."""
    group = Group(1, heads=1, lines=1, pages=1)
    fields = {"exponent": -100, "planned": 1}
    for k in range(ELEMENTS):
        fields |= {f"mean_{k}": -128, f"step_{k}": 7, f"count_{k}": 7}
    group.plan_rows = np.frombuffer(record_bytes(PLAN_FIELDS, fields, 64), np.uint8)[None]
    group.plan = select.plan_of(group.plan_rows)
    x, e = np.full((1, 1, ELEMENTS), 127 * sign), np.full((1, 1), exponent + 7 + 100)
    group.query = group.query._replace(x=x, e=e)
    weight, base, _ = weighed(group, lines=1)
    check(group, weight, base, 1)
    assert base == [[{1: -5, -1: 4}[sign]]]


@pytest.mark.parametrize(("seed", "wild", "bits"), [(64, False, 32), (75, True, 0)])
@pytest.mark.sampled
def test_nothing_is_left_of_the_plan_before(seed, wild, bits):
    """It had two lines, and is walked in part, as far as to its last cycle, or whole."""
    group = Group(seed, heads=1, lines=1, pages=1, wild=wild)
    assert group.plan.count.sum() == bits
    other = Group(66, heads=1, lines=2, pages=1)
    whole = weighed(other, lines=4)[2]
    assert whole > 80
    for late in (*range(3, 24, 5), whole // 2, *range(whole - 8, whole + 3)):
        weight, base, cycles = weighed(group, lines=4, late=late, other=other)
        assert cycles <= CodeWeights.LATENCY
        check(group, weight, base, 4)
        assert 100 < abs(base[0][0]) < LINE_MOST  # each element counts


def check(group, weight, base, most):
    """Weights and bases, by estimates of codes with one bit, and with none."""
    heads, lines = group.query.e.shape
    codes = np.zeros((1 + lines * CODE_BITS, 1, lines), np.uint32)
    for line in range(lines):
        for bit in range(CODE_BITS):
            codes[1 + line * CODE_BITS + bit, 0, line] = 1 << bit
    # m = 1: the sums themselves, as far as a score has a place, and without their lowest bits.
    for sh in (0, 5):
        scores = select.estimates(group.query, codes, group.plan, 1, sh)
        for head in range(heads):
            whole = sum(base[head][:lines])
            assert scores[head, 0] == score(whole, sh)
            for line, bit in np.ndindex(lines, CODE_BITS):
                own = base[head][line]
                one = min(max(own + weight[head][line][bit], -LINE_MOST), LINE_MOST)
                found = scores[head, 1 + line * CODE_BITS + bit]
                assert found == score(whole - own + one, sh)
    for head in range(heads):
        # Where a token has fewer lines than there are places, they repeat.
        assert all(weight[head][n] == weight[head][n % lines] for n in range(most))
        assert all(base[head][n] == base[head][n % lines] for n in range(most))
