# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The performance monitor: random events, settings, freezes, against the golden model."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_golden.cxlio.pmu import Pmu as Golden
from kelp_hw.cxlio.pmu import Pmu
from kelp_spec.cxlio.config import named_cxlio
from kelp_spec.cxlio.pmu import COUNTER_BITS, EVENT_BITS, pmu_map

FULL = named_cxlio("full")
THRESHOLDS = (0, 0, 0, 1, 1, 2, 3, 4, 7, 12, 13, 64, 255)
FILTERS = (0, 1, 9, 0xFFFF, 0xFFFFFFFF)


class Both:
    """The block and the golden model, which is told of an event in the cycle in which the block
    counts it: one later."""

    def __init__(self):
        self.golden, self.dut = Golden(FULL), Pmu(config=FULL)
        self.idle = [(0, 0)] * len(self.golden.map.capabilities)
        self.before, self.told, self.heard = self.idle, 0, 0

    async def step(self, ctx, now=None):
        now = now or self.idle
        for i, (events, decoder) in enumerate(now):
            ctx.set(self.dut.counted[i], {"events": events, "decoder": decoder})
        self.told += self.golden.cycle(self.before)
        await ctx.tick()
        self.heard += ctx.get(self.dut.interrupt)
        self.before = now

    async def write(self, ctx, at, size, value):
        ctx.set(self.dut.access.lane, at // 8)
        ctx.set(self.dut.access.write, 1)
        ctx.set(self.dut.access.strobe, ((1 << size) - 1) << at % 8)
        ctx.set(self.dut.access.write_data, value << 8 * (at % 8))
        values = self.golden.registers.values
        frozen = values["freeze"]
        await self.step(ctx)
        # A write meets the locks of its own cycle; an overflow of that cycle freezes all the same.
        stopped, values["freeze"] = values["freeze"], frozen
        self.golden.registers.write(at, size, value)
        if stopped != frozen or at != 0x18:
            values["freeze"] = stopped
        ctx.set(self.dut.access.write, 0)

    async def check(self, ctx, at):
        ctx.set(self.dut.access.lane, at // 8)
        wanted = self.golden.registers.read(at, 8)
        await self.step(ctx)
        shown = ctx.get(self.dut.access.read_data)
        assert shown == wanted, f"{at:#x}: {shown:#x}, not {wanted:#x}"
        return shown


def test_random_events():
    rng, both, overflows, counted = random.Random(3), Both(), 0, 0
    counters, capabilities = len(both.golden.map.counters), len(both.idle)

    async def set_up(ctx):
        for i in range(counters):
            if rng.random() < 0.3:
                setting = 1 << 8 | rng.getrandbits(2) << 9 | rng.choice(THRESHOLDS) << 16
                setting |= rng.choice((0, 0, 0, 1, 2, 3)) << 11 | rng.getrandbits(12) << 24
                await both.write(ctx, 0x200 + 8 * i, 8, setting | rng.choice((0, 0, 0, 1)) << 59)
                await both.write(ctx, 0x400 + 32 * i, 4, rng.choice(FILTERS))
        await both.write(ctx, 0x18, 8, (1 << 64) - 1)
        for i in range(counters):
            if rng.random() < 0.3:
                near = (1 << COUNTER_BITS) - rng.randrange(1, 30)
                await both.write(ctx, 0xC00 + 8 * i, 8, rng.choice((0, near)))

    async def bench(ctx):
        nonlocal overflows, counted
        for _ in range(120):
            await set_up(ctx)
            await both.write(ctx, 0x18, 8, rng.getrandbits(counters) & rng.getrandbits(counters))
            for _ in range(rng.randrange(1, 25)):
                events = rng.choice((rng.getrandbits(12), 0xFFF))
                now = [(events, rng.choice((0, 1, 9))) for _ in range(capabilities)]
                await both.step(ctx, now)
            for _ in range(2):
                await both.step(ctx)
            # Written while it counts, a counter stays as it is.
            await both.write(ctx, 0xC00 + 8 * rng.randrange(counters), 8, 5)
            overflows += bool(await both.check(ctx, 0x10))
            for at in (0, 0x18, *(0xC00 + 8 * i for i in range(counters))):
                counted += bool(await both.check(ctx, at))
            await both.write(ctx, 0x18, 8, (1 << 64) - 1)
            await both.step(ctx)
            assert both.heard == both.told
            await both.write(ctx, 0x10, 8, (1 << 64) - 1)

    simulate(both.dut, bench)
    assert overflows > 15 and both.told > 10 and counted > 300


@pytest.mark.parametrize("name", ["full", "joined_coherent"])
def test_every_event_has_a_counter(name):
    """Of every capability but the first, which the configurable ones count: what is offered can be
    counted."""
    pmu = pmu_map(named_cxlio(name))
    offered = {
        (i, event)
        for i, (_, _, events) in enumerate(pmu.capabilities)
        for event in range(EVENT_BITS)
        if i and events >> event & 1
    }
    fixed = [what for what in pmu.counters if what]
    assert set(fixed) == offered and len(fixed) == len(offered)
    assert pmu.counters.count(None) >= 1


@pytest.mark.parametrize("coherent", [False, True])
def test_every_message_of_the_channels_is_an_event(coherent):
    """All that the device sends, and all that it does not call unknown."""
    c = named_cxlio("joined_coherent" if coherent else "joined")
    events = {group: bits for vendor, group, bits in pmu_map(c).capabilities if vendor == 0x1E98}
    wanted = {0x20: 0b111_0000_0111, 0x21: 0b110, 0x24: 0b1, 0x25: 0b11}
    if coherent:
        wanted |= {0x21: 0b1_0110, 0x22: 0b111_0111, 0x23: 0b100_0100, 0x24: 0b1_0111}
    del events[1]
    assert events == wanted


def test_a_configuration_without_a_monitor_is_refused():
    with pytest.raises(ValueError, match="monitor"):
        Pmu(config=named_cxlio("recorded"))


def test_latency_and_interval():
    dut = Pmu(config=FULL)
    enable = [
        {
            "access.lane": 0x210 // 8,
            "access.write": 1,
            "access.strobe": 2,
            "access.write_data": 1 << 8,
        }
    ]
    count = [{"counted.1.events": 1 << 1}] * 3
    # What is read is a cycle behind what is counted.
    prepare = {"access.lane": 0xC10 // 8}
    seen = changes(dut, "access.read_data", count, before=enable, prepare=prepare)
    assert seen == [dut.LATENCY + 1 + i * dut.INTERVAL for i in range(3)]
