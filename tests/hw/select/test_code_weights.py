# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""CodeWeights: what bits are worth, and in how many cycles; SummaryScore holds all of it to the
golden estimates."""

import numpy as np
import pytest
from select_cases import Group, put_plan, put_queries
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.select.code_weights import CodeWeights
from kelp_spec.select import CODE_BITS


def weighed(group, *, lines, again=False):
    """(weights [heads][lines][32], base [heads][lines], cycles until they are there); with
    `again`, of a plan that comes while another one is walked."""
    heads, found, took = len(group.query.x), {}, []
    other = Group(70, heads=heads, lines=group.codes.shape[-1], pages=1, wild=True)

    async def bench(ctx, dut):
        if again:
            await put_plan(ctx, dut, other.plan_rows)
            for _ in range(40):
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


@pytest.mark.parametrize(
    ("lines", "most", "wild", "again"),
    [(1, 1, False, False), (2, 2, True, False), (1, 4, True, True)],
)
def test_each_bit_and_no_bit(lines, most, wild, again):
    """By estimates of codes with one bit, and with none."""
    group = Group(lines + 60, heads=2, lines=lines, pages=1, wild=wild)
    weight, base, cycles = weighed(group, lines=most, again=again)
    assert cycles <= lines * CodeWeights.LATENCY
    codes = np.zeros((1 + lines * CODE_BITS, 1, lines), np.uint32)
    for line in range(lines):
        for bit in range(CODE_BITS):
            codes[1 + line * CODE_BITS + bit, 0, line] = 1 << bit
    # m = 1 and sh = 0: the sums themselves, as far as a score has a place.
    scores = select.estimates(group.query, codes, group.plan, 1, 0)
    end = 1 << 19
    for head in range(2):
        whole = sum(base[head][:lines])
        assert scores[head, 0] == min(max(whole, -end), end - 1)
        for line in range(lines):
            for bit in range(CODE_BITS):
                most_line = (1 << 23) - 1
                one = base[head][line] + weight[head][line][bit]
                total = whole - base[head][line] + min(max(one, -most_line), most_line)
                found = scores[head, 1 + line * CODE_BITS + bit]
                assert found == min(max(total, -end), end - 1)
        # Where a token has fewer lines than there are places, they repeat.
        assert all(weight[head][n] == weight[head][n % lines] for n in range(most))
        assert all(base[head][n] == base[head][n % lines] for n in range(most))
