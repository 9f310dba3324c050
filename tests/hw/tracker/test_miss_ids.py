# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MissIds: against a plain count, with nearly as many requests on an entry as can be parked; how
fast it counts."""

import random
from collections import deque

from simulation import simulate
from timing import check_interval

from kelp_hw.tracker.miss_ids import MissIds
from kelp_spec.config import named

UNIT = named("unit")
DEEP = UNIT.with_(parked=64)


def test_latency_and_interval():
    check_interval(lambda: MissIds(config=UNIT), "LATENCY", "level", [{"i.valid": 1}] * 3)


def test_it_counts_as_far_as_requests_can_be_parked():
    """Long runs of parking on one entry and of replays from it, and everything at once."""
    dut, rng = MissIds(config=DEEP), random.Random(1)
    met = {"full": 0, "none at hand": 0, "emptied": 0}

    async def bench(ctx):
        at_hand, counts, free = deque(), [0] * DEEP.misses, deque(range(DEEP.misses))
        select, entry, fills = 0, 0, True
        for cycle in range(12_000):
            if cycle % 150 == 0:
                entry, fills = rng.randrange(DEEP.misses), cycle % 300 == 0
            hot = rng.random() < 0.9
            look = entry if hot else rng.randrange(DEEP.misses)
            offered = bool(free) and rng.random() < 0.3
            ctx.set(dut.i.valid, offered)
            ctx.set(dut.i.payload, free[0] if offered else rng.randrange(DEEP.misses))
            ctx.set(dut.look, look)
            ctx.set(dut.select, select)
            assert ctx.get(dut.level) == len(at_hand) and ctx.get(dut.i.ready) == (
                len(at_hand) < dut.DEPTH
            )
            assert not at_hand or ctx.get(dut.id) == at_hand[0]
            assert not cycle or ctx.get(dut.empty) == (counts[select] == 0)
            kinds = ["park" if fills or rng.random() < 0.1 else "unpark", "take", "none"]
            (what,) = rng.choices(kinds, (8, 1, 1))
            park_id = entry if hot else rng.randrange(DEEP.misses)
            if what == "take" and not (at_hand and counts[at_hand[0]] == 0):
                what = "none"
            if (what == "park" and sum(counts) == DEEP.parked) or (
                what == "unpark" and (not cycle or not counts[select])
            ):
                what = "none"
            parked = int(sum(counts) < DEEP.parked and rng.random() < 0.5)
            for name in ("take", "park", "unpark"):
                ctx.set(getattr(dut, name), what == name)
            ctx.set(dut.parked, parked)
            ctx.set(dut.park_id, park_id)
            met["none at hand"] += not at_hand
            goes_in = offered and len(at_hand) < dut.DEPTH
            if what == "take":
                counts[at_hand[0]] = parked
                free.append(at_hand.popleft())
            elif what == "park":
                counts[park_id] += 1
                met["full"] = max(met["full"], counts[park_id])
            elif what == "unpark":
                counts[select] -= 1
                met["emptied"] += counts[select] == 0
            if goes_in:
                at_hand.append(free.popleft())
            await ctx.tick()
            select = look

    simulate(dut, bench)
    assert met["full"] > 48 and met["none at hand"] > 4 and met["emptied"] > 100, met
