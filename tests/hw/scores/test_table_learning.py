# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""V and T against lists, pages of a turn as close as they may come; `test_table_scores.py` compares
whole turns."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.scores.table_learning import TableLearning
from kelp_spec import policy2
from kelp_spec.config import named

UNIT = named("unit")
ROWS = [{"starts": 1, "row": row} for row in (0, 1, 2, 3)]
PAGES = [{"i.valid": 1, "i.p.entry.count": count} for count in (1, 2, 3)]


def made():
    return TableLearning(config=UNIT)


def taught(pages, squeue):
    """`post` of each page, 2 cycles apart, and at the end what T says of every entry."""
    dut, posts, likely = made(), [], []

    async def bench(ctx):
        ctx.set(dut.squeue, squeue)
        await ctx.tick()
        for row in range(256):
            ctx.set(dut.row, row)
            ctx.set(dut.starts, 1)
            await ctx.tick()
        ctx.set(dut.starts, 0)
        await ctx.tick()
        for cycle in range(2 * len(pages) + dut.LATENCY):
            n, late = cycle // 2, cycle - dut.LATENCY
            ctx.set(dut.i.valid, int(cycle % 2 == 0 and n < len(pages)))
            if n < len(pages):
                entry, before, sides, read, v, t = pages[n]
                ctx.set(
                    dut.i.payload.as_value(), entry | before << 8 | read << 16 | v << 17 | t << 18
                )
                ctx.set(dut.sides.as_value(), sides % 12 | sides // 12 << 4)
                if cycle % 2:  # inputs mean nothing
                    ctx.set(dut.i.payload.as_value(), 0x5A5A5)
                    ctx.set(dut.sides.as_value(), 0)
            if late >= 0 and late % 2 == 0:
                posts.append(ctx.get(dut.post))
            await ctx.tick()
        for n in range(144 + dut.LIKELY_LATENCY):
            ctx.set(dut.sides.as_value(), min(n, 143) % 12 | min(n, 143) // 12 << 4)
            if n >= dut.LIKELY_LATENCY:
                likely.append(ctx.get(dut.likely))
            await ctx.tick()

    simulate(dut, bench)
    return posts, likely


@pytest.mark.parametrize(("seed", "entries"), [(1, 2), (2, 5), (3, 144)])
def test_what_is_learnt_is_seen_by_the_next_page(seed, entries):
    rng = random.Random(seed)
    squeue = rng.randrange(UNIT.squeues)
    pages = [
        (
            *(rng.randrange(entries) for _ in range(3)),
            *(int(rng.random() < p) for p in (0.5, 0.8, 0.8)),
        )
        for _ in range(400)
    ]
    v, t, expected = policy2.start_of_v(), policy2.start_of_t(), []
    for entry, before, sides, read, teaches_v, teaches_t in pages:
        if teaches_v:
            v[before] += (65535 if read else v[entry] * 200 // 256) - v[before] >> 7
        if teaches_t:
            t[sides] += (65535 * read) - t[sides] >> 6
        expected.append(v[entry])
    assert taught(pages, squeue) == (expected, t)


def test_latency_and_interval():
    """That each of many pages is answered so late is in the comparison above."""
    dut = made()
    assert changes(dut, "post", PAGES, before=ROWS, interval=dut.INTERVAL)[0] == dut.LATENCY
    with pytest.raises(AssertionError, match="too close"):
        changes(made(), "post", PAGES, before=ROWS, interval=1)


def test_likely_latency_and_one_a_cycle():
    stimuli = [{"sides.value": side} for side in (1, 2, 3)]
    rows = [{"starts": 1, "row": 12 * side} for side in (0, 1, 2, 3)]
    times = changes(made(), "likely", stimuli, before=rows)
    assert times == [made().LIKELY_LATENCY + n for n in range(3)]
