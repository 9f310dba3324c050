# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The hot list against the golden model; overflow, fill, ranges, registers while scores come."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_golden.cxlio.chmu import HotList
from kelp_hw.cxlio import chmu
from kelp_hw.cxlio.chmu import Chmu
from kelp_spec.cxlio.chmu import CHMU_LIST, Mode, unit_bits
from kelp_spec.cxlio.config import named_cxlio

ENTRIES, LENGTH = 8, 6
CONFIG = named_cxlio("joined").replace(
    name="hot", hot_entries=ENTRIES, period_ns=1000, bandwidth_mb=60
)
CAPABILITY, CONFIGURE, HOW, FILL, STATUS, HEAD, RANGES = 0x10, 0x50, 0x58, 0x60, 0x70, 0x78, 0x80
ENABLE, RESET, OVERFLOW_IRQ, FILL_IRQ, ALL = 1 << 16, 1 << 17, 1 << 9, 1 << 10, 3


class Host:
    def __init__(self, seed=1, config=CONFIG):
        self.dut, self.rng = Chmu(config=config), random.Random(seed)
        self.told = 0

    async def tick(self, ctx, heat=None):
        dut = self.dut
        ctx.set(dut.i.valid, heat is not None)
        if heat:
            ctx.set(dut.i.p, {"unit": heat[0], "score": heat[1]})
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        self.told += ctx.get(dut.interrupt)

    async def write(self, ctx, at, value, size=8):
        access = self.dut.access
        ctx.set(access.lane, at // 8)
        ctx.set(access.strobe, ((1 << size) - 1) << at % 8)
        ctx.set(access.write_data, value << 8 * (at % 8))
        ctx.set(access.write, 1)
        await self.tick(ctx)
        ctx.set(access.write, 0)

    async def read(self, ctx, at, size=8):
        ctx.set(self.dut.access.lane, at // 8)
        await self.tick(ctx)
        return ctx.get(self.dut.access.read_data) >> 8 * (at % 8) & (1 << 8 * size) - 1

    async def start(self, ctx, *, mode, threshold, fill=ENTRIES, length=0, ranges=1, scale=1):
        await self.write(ctx, RANGES, ranges)
        await self.write(ctx, HOW, mode << 40 | scale << 48 | length << 52)
        await self.write(ctx, FILL, fill)
        await self.write(ctx, CONFIGURE, ALL | OVERFLOW_IRQ | FILL_IRQ | ENABLE | threshold << 32)
        await self.tick(ctx)  # it is emptied from the next cycle on
        await self.tick(ctx)
        while not await self.read(ctx, STATUS) & 1:
            assert await self.read(ctx, STATUS) >> 16 & 0xFFFF in (0, 1)

    async def ended(self, ctx):
        """A cycle; whether an epoch ends with it."""
        over = ctx.get(self.dut.over)
        await self.tick(ctx)
        return over

    async def listed(self, ctx):
        """What waits, and the head behind it."""
        head, tail = await self.read(ctx, HEAD, 2), await self.read(ctx, HEAD + 2, 2)
        found = []
        while head != tail:
            found.append(await self.read(ctx, CHMU_LIST + 8 * head))
            head = (head + 1) % self.dut.config.hot_entries
        await self.write(ctx, HEAD, head, 2)
        return found


@pytest.mark.parametrize("mode", [Mode.EPOCH, Mode.ALWAYS])
@pytest.mark.parametrize(("seed", "entries"), [(1, ENTRIES), (2, ENTRIES), (3, 16)])
def test_the_list_is_the_golden_models(mode, seed, entries):
    """Also where a unit's address is no whole number of places' numbers."""
    host = Host(seed, config=CONFIG.replace(hot_entries=entries))
    rng = host.rng
    golden = HotList(entries, always=mode == Mode.ALWAYS, threshold=600, fill=3)
    seen = {}

    async def bench(ctx):
        await host.start(ctx, mode=mode, threshold=600, fill=3, length=LENGTH)
        for epoch in range(5):
            # An epoch has 600 cycles, from where the last ended; what comes is over before.
            for _ in range(rng.randrange(60, 400)):
                if rng.random() < 0.3:
                    await host.tick(ctx)
                    continue
                unit = rng.choice((rng.randrange(6), rng.randrange(1 << unit_bits(CONFIG))))
                heat = unit, rng.randrange(1000)
                golden.heat(*heat)
                await host.tick(ctx, heat)
            while not await host.ended(ctx):
                pass
            golden.end()
            for _ in range(2 * entries):
                await host.tick(ctx)
            status = await host.read(ctx, STATUS)
            assert (status >> 40 & 1, status >> 41 & 1) == (golden.overflow, golden.filled), epoch
            assert await host.listed(ctx) == golden.entries
            golden.entries.clear()
            await host.write(ctx, STATUS, 3 << 40)
            golden.overflow = golden.filled = False
        seen["told"] = host.told

    simulate(host.dut, bench)
    assert seen["told"] == golden.told > 0


def test_scores_in_each_cycle_keep_no_list_from_being_made():
    """Of eight in a row one is not looked at while a list is made, and no more than that."""
    host = Host()

    async def bench(ctx):
        await host.start(ctx, mode=Mode.EPOCH, threshold=600, length=LENGTH)
        for unit in range(5):
            await host.tick(ctx, (unit, 700 + unit))
        over = 0
        while not over:
            over = ctx.get(host.dut.over)
            await host.tick(ctx, (0, 700))
        for _ in range(ENTRIES * (host.dut.PATIENCE + 1)):
            await host.tick(ctx, (0, 700))
        assert await host.listed(ctx) == [unit << 16 | 700 + unit for unit in range(5)]

    simulate(host.dut, bench)


@pytest.mark.parametrize(
    "free", [3, 4, 5], ids=["amid the walk", "in its last cycle", "after the walk"]
)
def test_an_epoch_that_ends_while_the_last_ones_list_is_made_has_a_list(free):
    """Of 16 places; with scores in all cycles but `free` the walk takes 128 − 7 · `free` cycles, an
    epoch 100."""
    host = Host(config=CONFIG.replace(hot_entries=16))

    async def bench(ctx):
        await host.start(ctx, mode=Mode.EPOCH, threshold=600, length=1)
        while not await host.ended(ctx):
            pass
        over = []
        for cycle in range(100):
            over.append(ctx.get(host.dut.over))
            await host.tick(ctx, None if cycle < free else (0, 700))
        assert over == [0] * 99 + [1]
        for _ in range(2 * 16):
            await host.tick(ctx)
        assert await host.listed(ctx) == [700]

    simulate(host.dut, bench)


@pytest.mark.parametrize("mode", [Mode.EPOCH, Mode.ALWAYS])
def test_edges_of_both_thresholds(mode):
    """A score at the threshold is hot; entries as many as the fill threshold are not too many."""
    host = Host()

    async def bench(ctx):
        await host.start(ctx, mode=mode, threshold=600, fill=2, length=LENGTH)
        filled = []
        for unit, score in ((1, 600), (2, 599), (3, 601), (4, 600)):
            await host.tick(ctx, (unit, score))
            if mode == Mode.EPOCH:
                while not await host.ended(ctx):
                    pass
            for _ in range(2 * ENTRIES):
                await host.tick(ctx)
            filled.append(await host.read(ctx, STATUS) >> 41 & 1)
        assert filled == [0, 0, 0, 1]
        assert await host.listed(ctx) == [
            unit << 16 | s for unit, s in ((1, 600), (3, 601), (4, 600))
        ]

    simulate(host.dut, bench)


@pytest.mark.parametrize("bit, entries", [(40, ENTRIES), (41, 3)])
def test_a_status_that_is_set_as_it_is_cleared_interrupts_again(bit, entries):
    """Overflow, and more entries than asked for: otherwise it stands, and none interrupts again."""
    host = Host()

    async def bench(ctx):
        await host.start(ctx, mode=Mode.ALWAYS, threshold=5, fill=2)
        for unit in range(entries):
            await host.tick(ctx, (unit, 9))
        await host.tick(ctx)
        await host.tick(ctx)
        assert await host.read(ctx, STATUS) >> bit & 1
        before = host.told
        await host.tick(ctx, (entries, 10))
        await host.write(ctx, STATUS, 1 << bit)
        await host.tick(ctx)
        assert host.told == before + 1
        assert await host.read(ctx, STATUS) >> bit & 1

    simulate(host.dut, bench)


def test_an_epoch_is_as_long_as_it_says(monkeypatch):
    """Length by scale; one of length 0, and of a scale that there is not, never ends. A tick is a
    cycle here."""
    monkeypatch.setattr(chmu, "TICK_NS", CONFIG.period_ns)
    host = Host()

    async def bench(ctx):
        for length, scale in ((0, 1), (37, 0), (1, 6), (1, 7), (1, 15), (0, 5)):
            await host.start(ctx, mode=Mode.EPOCH, threshold=600, length=length, scale=scale)
            for _ in range(300):
                assert not await host.ended(ctx), (length, scale)
            await host.write(ctx, CONFIGURE, ALL)
        for length, scale in ((2, 1), (37, 1), (2050, 1), (7, 2), (3, 3), (1, 4), (1, 5)):
            await host.start(ctx, mode=Mode.EPOCH, threshold=600, length=length, scale=scale)
            cycles, ends = length * 10 ** (scale - 1), []
            for cycle in range((2 * cycles if cycles < 500 else cycles) + 30):
                if await host.ended(ctx):
                    ends.append(cycle)
            if cycles < 500:
                assert ends[1] - ends[0] == cycles
            else:  # from where it is enabled on, a few cycles from here
                assert len(ends) == 1 and abs(cycles - ends[0]) < 20, (length, scale)
            await host.write(ctx, CONFIGURE, ALL)

    simulate(host.dut, bench)


def test_only_ranges_that_are_chosen_are_tracked():
    config, rng = CONFIG.replace(name="large", capacity=8), random.Random(7)
    host, bits = Host(config=config), unit_bits(config) - 3

    async def bench(ctx):
        for chosen in (1, 1 << 7, 0b10101010, 0xFF, 0xFFFF_FF00):
            await host.start(ctx, mode=Mode.ALWAYS, threshold=5, ranges=chosen)
            wanted = []
            for n, number in enumerate(rng.sample(range(8), ENTRIES - 1)):
                # Each is hotter than the one before, whose place it may take.
                unit = number << bits | rng.getrandbits(bits)
                await host.tick(ctx, (unit, 100 + n))
                if chosen >> number & 1:
                    wanted.append(unit << 16 | 100 + n)
            await host.tick(ctx)
            await host.tick(ctx)
            assert await host.listed(ctx) == wanted
            await host.write(ctx, CONFIGURE, ALL | RESET)

    simulate(host.dut, bench)


def test_nothing_is_listed_that_is_not_asked_for():
    """Disabled; another kind of request; a range that is not chosen; a threshold beyond any score;
    an epoch that never ends. Reset empties what waits."""
    host = Host()

    async def bench(ctx):
        async def tried(unit=3, **how):
            await host.write(ctx, CONFIGURE, ALL)  # what was listed before is forgotten
            await host.start(ctx, **{"mode": Mode.ALWAYS, "threshold": 5} | how)
            await host.tick(ctx, (unit, 900))
            for _ in range(4):
                await host.tick(ctx)
            return await host.listed(ctx)

        await host.tick(ctx, (3, 900))
        assert await tried() == [3 << 16 | 900]
        assert await tried(ranges=2) == []
        for bit in (16, 20, 31):
            assert await tried(threshold=1 << bit) == []
        assert await tried(mode=Mode.EPOCH) == []
        await host.start(ctx, mode=Mode.ALWAYS, threshold=5)
        for other in (2, 7, 0x83):
            await host.write(ctx, CONFIGURE, other | ENABLE | 5 << 32)
            await host.tick(ctx, (4, 900))
        await host.write(ctx, CONFIGURE, ALL)
        await host.tick(ctx, (5, 900))
        assert await host.listed(ctx) == []
        # Disabled as the list of an epoch is made.
        await host.start(ctx, mode=Mode.EPOCH, threshold=5, length=1)
        await host.tick(ctx, (7, 900))
        while not await host.ended(ctx):
            pass
        await host.write(ctx, CONFIGURE, ALL)
        for _ in range(2 * ENTRIES):
            await host.tick(ctx)
        assert await host.listed(ctx) == []
        await host.start(ctx, mode=Mode.ALWAYS, threshold=5)
        for unit in range(5):
            await host.tick(ctx, (unit, 9))
        await host.write(ctx, CONFIGURE, ALL | ENABLE | RESET)
        assert (await host.read(ctx, HEAD, 2), await host.read(ctx, HEAD + 2, 2)) == (0, 0)
        # Accesses that no register has: read zero, change nothing.
        for at in (0x30, 0x88, 0x7F8, CHMU_LIST + 8 * ENTRIES, 0xFF8):
            await host.write(ctx, at, (1 << 64) - 1)
            assert await host.read(ctx, at) == 0
        assert await host.read(ctx, 0) == 0x101
        assert await host.read(ctx, CAPABILITY) >> 48 == ENTRIES

    simulate(host.dut, bench)


def test_latency_and_interval():
    writes = {"access.write": 1, "access.strobe": 255}
    before = [
        writes | {"access.lane": at // 8, "access.write_data": value}
        for at, value in (
            (RANGES, 1),
            (HOW, Mode.ALWAYS << 40),
            (CONFIGURE, ALL | ENABLE),
        )
    ]
    given = [{"i.valid": 1, "i.p.unit": unit, "i.p.score": 1} for unit in (1, 2, 3)]
    dut = Chmu(config=CONFIG)
    before += [{}] * (2 * ENTRIES)
    seen = changes(dut, "tail", given, before=before)
    assert seen == [dut.LATENCY + i * dut.INTERVAL for i in range(3)]


def test_without_a_list_there_is_no_monitor():
    with pytest.raises(ValueError, match="'full' has no hot list"):
        Chmu(config=named_cxlio("full"))
    for bad in (3, 2, 512):
        with pytest.raises(ValueError, match=f"hot_entries = {bad} is refused"):
            named_cxlio("joined").replace(hot_entries=bad)
