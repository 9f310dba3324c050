# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""GatherWindow: slots' addresses become their pages', at full rate."""

from flips import fields, flip, opened
from simulation import simulate
from streams import Ends, pump

from kelp_hw.select.gather_window import GatherWindow
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.config import named

CONFIG = named("unit_select")
MAP = AddressMap(CONFIG)
PAGES = {(0, 1): (5, 63, 17), (1, 3): (2,)}  #: (session, queue) → the pages of its slots
GENERATION = 6


async def fill(ctx, dut):
    """The slots of `PAGES`; the last one of each queue does not hold its page."""
    for _ in range(1 << dut.queue_bits):
        assert not ctx.get(dut.ready)
        await ctx.tick()
    assert ctx.get(dut.ready)
    for (session, queue), pages in PAGES.items():
        ctx.set(dut.squeue, session << CONFIG.queue_bits | queue)
        for slot, page in enumerate(pages):
            ctx.set(dut.slot, slot)
            ctx.set(dut.new_slot, {"page": page, "held": page != 17})
            ctx.set(dut.write_slot, 1)
            await ctx.tick()
        ctx.set(dut.write_slot, 0)
        ctx.set(dut.new_queue, {"count": len(pages), "generation": GENERATION})
        ctx.set(dut.write_queue, 1)
        await ctx.tick()
        ctx.set(dut.write_queue, 0)


def asked():
    """Addresses, and what becomes of each. Outside the map none names a page that it means not."""

    def at(session, queue, page, kv, line, region):
        return (
            MAP.encode(KvAddress(session, queue, page, kv, line)) | region << CONFIG.aperture_bits
        )

    for (session, queue), pages in PAGES.items():
        for slot in range(CONFIG.select):
            for kv, line in ((0, 2), (1, 3)):
                there = slot < len(pages) and pages[slot] != 17
                page, region = (pages[slot], Region.GATHER) if there else (0, Region.OUTSIDE)
                asks = MAP.gather(session, queue, GENERATION, kv, slot, line)
                yield asks, at(session, queue, page, kv, line, region)
        asks = MAP.gather(session, queue, GENERATION + 1, 0, 0, 0)
        yield asks, at(session, queue, 0, 0, 0, Region.OUTSIDE)
    yield MAP.gather(0, 0, 0, 0, 0, 0), Region.OUTSIDE << CONFIG.aperture_bits
    for other in (MAP.encode(KvAddress(1, 2, 9, 1, 1)), MAP.hint_base, MAP.select_base + 64):
        yield other, other


def run(offer, take):
    cases = list(asked())
    sends = [{"address": address >> 6, "tag": n} for n, (address, _) in enumerate(cases)]
    ends = Ends(sends={"i": sends}, takes=("o",), offer=offer, take=take, before=fill)
    seen = pump(GatherWindow(config=CONFIG), ends, cycles=int(len(cases) / offer / take) + 20)
    for t, (n, (_, place)) in zip(seen["o"], enumerate(cases), strict=True):
        assert t.item.tag == n
        assert t.item.address << 6 == place
    return seen


def test_addresses():
    run(0.6, 0.7)


def test_the_choice_reads_its_rows_and_is_told_of_those_it_uses():
    """A slot that is none of the queue's may hold anything."""
    dut = GatherWindow(config=CONFIG)
    top, memories = opened(dut)
    squeue, pages = 1, PAGES[0, 1]
    found, told = [], []

    async def bench(ctx):
        await fill(ctx, dut)
        (rows,) = (each for path, each in memories.items() if path.startswith("slots_own"))
        for slot in (1, len(pages)):
            flip(ctx, rows, squeue << CONFIG.slot_bits | slot, 0, 1)
        ctx.set(dut.squeue, squeue)
        for slot, read in ((0, 1), (1, 1), (1, 0), (len(pages), 1)):
            ctx.set(dut.slot, slot)
            ctx.set(dut.read, read)
            await ctx.tick()
            if read:
                queue = fields(ctx, dut.found_queue)
                assert queue == {"count": len(pages), "generation": GENERATION}
            found.append(ctx.get(dut.found_slot.page))
            ctx.set(dut.read, 0)
            await ctx.tick()
            told.append(ctx.get(dut.fault.poisoned))

    simulate(top, bench)
    assert found[0] == pages[0] and told == [0, 1, 0, 0]


def test_a_slot_beyond_correction_is_told_of_once():
    """However long its request waits; one that is none of the queue's is not, whoever asks."""
    dut = GatherWindow(config=CONFIG)
    top, memories = opened(dut)
    squeue, pages, told = 1, PAGES[0, 1], []

    async def bench(ctx):
        await fill(ctx, dut)
        (rows,) = (each for path, each in memories.items() if path.startswith("slots_asked"))
        for slot in (1, len(pages)):
            flip(ctx, rows, squeue << CONFIG.slot_bits | slot, 0, 1)
            ctx.set(dut.i.p.address, MAP.gather(0, squeue, GENERATION, 0, slot, 0) >> 6)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            assert ctx.get(dut.o.valid)
            assert ctx.get(dut.o.p.address) << 6 >> CONFIG.aperture_bits == Region.OUTSIDE
            for ready in (0, 0, 0, 1, 0):
                ctx.set(dut.o.ready, ready)
                await ctx.tick()
                told.append(ctx.get(dut.fault.poisoned))

    simulate(top, bench)
    assert told == [0, 0, 0, 1, 0] + 5 * [0]


def test_it_is_idle_without_a_message():
    dut, seen = GatherWindow(config=CONFIG), []

    async def bench(ctx):
        await fill(ctx, dut)
        for valid, ready in ((0, 0), (1, 0), (0, 0), (0, 1), (0, 1)):
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.o.ready, ready)
            seen.append(ctx.get(dut.idle))
            await ctx.tick()

    simulate(dut, bench)
    assert seen == [1, 0, 0, 0, 1]


def test_latency_and_interval():
    seen = run(1, 1)
    pairs = zip(seen["i"], seen["o"], strict=True)
    assert {o.offered - i.offered for i, o in pairs} == {GatherWindow.LATENCY}
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {GatherWindow.INTERVAL}
