# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Counts become events of the monitor, each once."""

import random

from simulation import simulate
from timing import changes

from kelp_hw.media.monitor_events import MonitorEvents
from kelp_spec.config import named
from kelp_spec.cxlio.pmu import VENDOR_COUNTERS, VendorEvent
from kelp_spec.registers import COUNTERS

UNIT = named("unit").with_(cxlio="joined")
MOST = 64 - max(map(len, VENDOR_COUNTERS.values()))  #: that are owed before as many come
NAMES = [name for name, _ in COUNTERS]


def test_every_count_is_told_once():
    """And as soon as may be: in each cycle in which one is owed."""
    dut, rng, most = MonitorEvents(config=UNIT), random.Random(4), 0
    wanted = dict.fromkeys(VENDOR_COUNTERS, 0)
    owed = dict.fromkeys(VENDOR_COUNTERS, 0)

    async def bench(ctx):
        nonlocal most
        for cycle in range(400):
            given = rng.getrandbits(len(NAMES)) & rng.getrandbits(len(NAMES)) if cycle < 300 else 0
            if cycle % 4:
                given &= (1 << NAMES.index("prefetch_issued_window")) - 1
            if 200 <= cycle < 300 and max(owed.values()) < MOST:
                given = (1 << len(NAMES)) - 1
            most = max(most, *owed.values())
            ctx.set(dut.counted, given)
            for event, names in VENDOR_COUNTERS.items():
                now = sum(given >> NAMES.index(name) & 1 for name in names)
                wanted[event] += now
                owed[event] += now
                told = ctx.get(dut.o) >> event & 1
                assert told == (owed[event] > 0), f"cycle {cycle}, {event}"
                owed[event] -= told
            await ctx.tick()

    simulate(dut, bench)
    assert not any(owed.values()) and min(wanted.values()) > 30
    assert MOST <= most <= 64


def test_latency_and_interval():
    dut = MonitorEvents(config=UNIT)
    hit = 1 << NAMES.index("hits")
    given = [{"counted": hit}, {"counted": 0}, {"counted": hit}]
    seen = changes(dut, lambda each: each.o[VendorEvent.HIT], given)
    assert seen == [dut.LATENCY + i * dut.INTERVAL for i in range(3)]
