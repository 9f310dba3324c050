# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageSeen: the golden estimates of absent pages, and nothing of a page that was cleared."""

import random

import numpy as np
import pytest
from simulation import simulate
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.select.page_seen import PageSeen
from kelp_spec.config import named
from kelp_spec.select import SCORE_LEAST, SCORE_MOST, SEEN_NEVER

CONFIG = named("unit_select")
HEADS = CONFIG.select_heads
EDGES = [(-2048, 0), (2047, (1 << 24) - 1), (0, 1), (0, 0), (-129, 1 << 15), (127, 65535), (128, 1)]


class Golden:
    def __init__(self):
        self.seen = {}

    def note(self, squeue, page, mass):
        if mass is None:
            self.seen.pop((squeue, page), None)
        else:
            self.seen[squeue, page] = select.remember(np.array(mass["e"]), np.array(mass["z"]))

    def scores(self, squeue, page, bound):
        seen = self.seen.get((squeue, page), np.full(HEADS, SEEN_NEVER))
        e, z = select.recall(seen, np.array(bound))
        return e.tolist(), z.tolist()


def weights(scores):
    e, z = select.weight(np.array([int(s) for s in scores]))
    return e.tolist(), z.tolist()


def mass(rng, n):
    pairs = [
        EDGES[n // HEADS % len(EDGES)]
        if n < 20
        else (rng.randint(-140, 140), rng.randrange(1 << 24))
        for _ in range(HEADS)
    ]
    return {"e": [e for e, _ in pairs], "z": [z for _, z in pairs]}


@pytest.mark.parametrize("clears", [0.0, 0.6])
def test_estimates_are_the_golden_ones(clears):
    """Pages of two queues noted, cleared and asked for, in any order."""
    dut, golden, rng = PageSeen(config=CONFIG), Golden(), random.Random(5)
    print("seed", 5)
    asked, told = [], []

    async def bench(ctx):
        for cycle in range(CONFIG.page_words):
            assert not ctx.get(dut.ready), cycle
            await ctx.tick()
        assert ctx.get(dut.ready)
        standing, due = None, []
        for n in range(900):
            squeue, page = rng.randrange(2), rng.randrange(6)
            # What was noted settles before pages are asked for.
            works, asks = n % 30 < 25, n % 30 > 26
            cleared = works and rng.random() < clears
            ctx.set(dut.i_clear.valid, cleared)
            ctx.set(dut.i_clear.p, {"squeue": squeue, "page": page})
            if works and standing is None and rng.random() < 0.4:
                standing = {"squeue": rng.randrange(2), "mass": mass(rng, n)}
                standing["mass"]["id"] = rng.randrange(6)
                ctx.set(dut.i_mass.p, standing)
            ctx.set(dut.i_mass.valid, standing is not None)
            if standing is not None and ctx.get(dut.i_mass.ready):
                due.append((standing["squeue"], standing["mass"]["id"], standing["mass"]))
                standing = None
            if cleared:  # a mass that comes with it goes, too
                due.append((squeue, page, None))
            ctx.set(dut.i.valid, asks)
            if asks:
                for noted in due:
                    golden.note(*noted)
                due.clear()
                bound = [rng.choice((SCORE_LEAST, SCORE_MOST, rng.randint(-9999, 9999)))] * HEADS
                ctx.set(dut.squeue, squeue)
                ctx.set(dut.i.p, {"score": bound, "id": page})
                asked.append((n + PageSeen.LATENCY, page, golden.scores(squeue, page, bound)))
            if ctx.get(dut.o.valid):
                told.append((n, ctx.get(dut.o.p.id), weights(ctx.get(dut.o.p.score))))
            await ctx.tick()

    simulate(dut, bench)
    assert len(asked) == 90 and golden.seen
    assert told == asked[: len(told)] and len(told) >= 88


def test_interval():
    """A mass and a page in each cycle."""
    dut = PageSeen(config=CONFIG)

    async def ready(ctx, dut):
        for _ in range(CONFIG.page_words + 1):
            await ctx.tick()

    noted = [{"mass": {"id": n % 64}} for n in range(40)]
    sends = {"i_mass": noted, "i": [{"id": n} for n in range(40)]}
    seen = pump(dut, Ends(sends=sends, takes=("o",), before=ready), cycles=50)
    for path in ("i_mass", "o"):
        times = [t.taken for t in seen[path]]
        assert len(times) == 40 and times[-1] - times[0] == 39 * PageSeen.INTERVAL
