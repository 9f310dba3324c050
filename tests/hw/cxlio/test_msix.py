# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MSI-X: table, masks, pending bits, messages, against the golden model."""

import random

from flips import flip, opened
from simulation import simulate
from timing import changes

from kelp_golden.cxlio.msix import Msix as Golden
from kelp_hw.cxlio.msix import Msix

VECTORS = 5


def test_random_triggers_and_masks():
    rng = random.Random(4)
    golden, dut = Golden(VECTORS), Msix(vectors=VECTORS)
    sent = []

    async def step(ctx, cycles=1):
        for _ in range(cycles):
            ctx.set(dut.o.ready, rng.random() < 0.6)
            if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                sent.append((ctx.get(dut.o.p.address), ctx.get(dut.o.p.data)))
            await ctx.tick()

    async def bench(ctx):
        for _ in range(700):
            what = rng.random()
            if what < 0.4:
                vector = rng.randrange(VECTORS)
                ctx.set(dut.trigger, 1 << vector)
                golden.trigger(vector)
                await step(ctx)
                ctx.set(dut.trigger, 0)
            elif what < 0.6:
                golden.enable = rng.random() < 0.9
                golden.mask, golden.bus_master = rng.random() < 0.3, rng.random() < 0.8
                golden.send()
                for name in ("enable", "mask", "bus_master"):
                    ctx.set(getattr(dut, name), getattr(golden, name))
            else:
                size = rng.choice((4, 8))
                at = rng.randrange(0, 16 * (VECTORS + 1), size)
                value = rng.getrandbits(8 * size)
                ctx.set(dut.table.lane, at // 8)
                ctx.set(dut.table.write_data, value << 8 * (at % 8))
                ctx.set(dut.table.strobe, ((1 << size) - 1) << at % 8)
                ctx.set(dut.table.write, 1)
                golden.write(at, size, value)
                await step(ctx)
                ctx.set(dut.table.write, 0)
            await step(ctx, 30)
            assert sent == golden.sent
            assert ctx.get(dut.pending_access.read_data) == golden.pending_bits()
            lane = rng.randrange(2 * VECTORS + 2)
            ctx.set(dut.table.lane, lane)
            await step(ctx)
            assert ctx.get(dut.table.read_data) == golden.read(8 * lane, 8)

    simulate(dut, bench)
    assert len(sent) > 60 and any(golden.pending)


def test_a_message_stands_while_the_table_changes():
    dut, seen = Msix(vectors=1), []

    async def bench(ctx):
        ctx.set(dut.enable, 1)
        ctx.set(dut.bus_master, 1)
        for lane, value in ((0, 0xFEE00000), (1, 0x25)):
            ctx.set(dut.table.lane, lane)
            ctx.set(dut.table.write_data, value)
            ctx.set(dut.table.strobe, 0xFF)
            ctx.set(dut.table.write, 1)
            await ctx.tick()
        ctx.set(dut.table.write, 0)
        ctx.set(dut.trigger, 1)
        await ctx.tick().repeat(2)
        ctx.set(dut.table.lane, 0)
        ctx.set(dut.table.write_data, 1)
        ctx.set(dut.table.write, 1)
        for _ in range(4):
            await ctx.tick()
            seen.append((ctx.get(dut.o.valid), ctx.get(dut.o.p.address), ctx.get(dut.o.p.data)))

    simulate(dut, bench)
    assert seen == [(1, 0xFEE00000, 0x25)] * 4


def test_beyond_the_table_nothing_is_read():
    dut, seen = Msix(vectors=4), []

    async def bench(ctx):
        for vector in range(6):
            ctx.set(dut.table.lane, 2 * vector + 1)
            await ctx.tick()
            seen.append(ctx.get(dut.table.read_data) >> 32)

    simulate(dut, bench)
    assert seen == [1, 1, 1, 1, 0, 0]


def test_a_flip_that_the_host_does_not_meet_is_not_told_of():
    dut = Msix(vectors=3, protect=True)
    top, memories = opened(dut)
    rows = memories["data.memory"]

    async def bench(ctx):
        flip(ctx, rows, 0, 3)
        flip(ctx, rows, 1, 3, 9)
        for lane, read, strobe, told in (
            (1, 1, 0x00, (1, 0)),
            (1, 0, 0x00, (0, 0)),
            (3, 1, 0x00, (0, 1)),
            (6, 1, 0x00, (0, 0)),
            (3, 0, 0xF0, (0, 0)),  # the mask alone
            (3, 0, 0xF1, (0, 1)),
        ):
            ctx.set(dut.table.lane, lane)
            ctx.set(dut.table.read, read)
            ctx.set(dut.table.write, strobe != 0)
            ctx.set(dut.table.strobe, strobe)
            await ctx.tick()
            fault = dut.host_fault
            assert (ctx.get(fault.corrected), ctx.get(fault.uncorrected)) == told

    simulate(top, bench)


def test_clear_makes_addresses_and_data_zero():
    """After it a host may read a vector that it has never written."""
    dut = Msix(vectors=VECTORS, protect=True)
    top, memories = opened(dut)

    async def bench(ctx):
        rng = random.Random(6)
        for memory in memories.values():
            for vector in range(VECTORS):
                ctx.set(memory[vector], rng.getrandbits(len(memory[vector])))
        ctx.set(dut.clear, 1)
        await ctx.tick().repeat(VECTORS)
        ctx.set(dut.clear, 0)
        ctx.set(dut.table.read, 1)
        for lane in range(2 * VECTORS):
            ctx.set(dut.table.lane, lane)
            await ctx.tick()
            assert ctx.get(dut.table.read_data) == (1 << 32 if lane % 2 else 0)
            assert not ctx.get(dut.host_fault.corrected)
            assert not ctx.get(dut.host_fault.uncorrected)

    simulate(top, bench)
    assert len(memories) == 2


def test_latency_and_interval():
    on = {"enable": 1, "bus_master": 1, "o.ready": 1}
    unmask = [{"table.write": 1, "table.strobe": 0xFF, "table.lane": 2 * i + 1} for i in range(2)]
    both = {"trigger": 3, "table.lane": 4}
    dut = Msix(vectors=2)
    seen = changes(dut, "o.valid", [both], prepare=on | {"table.lane": 4}, before=unmask)
    assert seen == [dut.LATENCY]
    triggered = [both, {}, {}, {}, {}, {}]
    seen = changes(
        Msix(vectors=2), "o.valid", triggered, prepare=on | {"table.lane": 4}, before=unmask
    )
    assert seen[2] - seen[0] == dut.INTERVAL
    reads = [{"table.lane": 1}]
    assert changes(Msix(vectors=2), "table.read_data", reads) == [dut.READ_LATENCY]
