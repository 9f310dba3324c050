# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""QueueFormats: what is written is read, also in the same cycle; one flipped bit is corrected and
written back, two are fatal where it is used."""

import random

from amaranth.lib import data
from flips import NO_FAULT, fields, flip, simulate_memory
from simulation import simulate

from kelp_hw.tracker.queue_formats import QueueFormats
from kelp_spec.config import named

UNIT = named("unit")


def test_what_is_written_is_read_in_the_same_cycle():
    dut, rng, rows = QueueFormats(config=UNIT), random.Random(1), {}

    async def bench(ctx):
        for _ in range(600):
            squeue, read = rng.randrange(UNIT.squeues), rng.randrange(UNIT.squeues)
            row = {name: rng.getrandbits(3) for name in dut.shape.members}
            row = {name: bits % (1 << len(dut.o[name])) for name, bits in row.items()}
            writes = rng.random() < 0.6
            ctx.set(dut.write.valid, writes)
            ctx.set(dut.write.p.squeue, squeue)
            ctx.set(dut.read_squeue, read)
            for name, bits in row.items():
                ctx.set(dut.write.p.queue_config[name], bits)
            if writes:
                rows[squeue] = row
            await ctx.tick()
            if read in rows:
                assert {name: ctx.get(dut.o[name]) for name in row} == rows[read]
            assert fields(ctx, dut.fault) == NO_FAULT

    simulate(dut, bench)


def test_flipped_bits():
    dut, rng = QueueFormats(config=UNIT), random.Random(3)
    rows = [rng.getrandbits(8) for _ in range(UNIT.squeues)]
    names = list(dut.shape.members)

    async def read(ctx, squeue, used=1):
        ctx.set(dut.read_squeue, squeue)
        await ctx.tick()
        ctx.set(dut.read_squeue, 0)
        value = ctx.get(dut.o.as_value())
        await ctx.tick()
        ctx.set(dut.used, used)
        await ctx.tick()
        ctx.set(dut.used, 0)
        return value, fields(ctx, dut.fault)

    async def bench(ctx, memory):
        for squeue, row in enumerate(rows):
            row = data.Const(dut.shape, row % (1 << dut.shape.size))
            rows[squeue] = row.as_value().value
            ctx.set(dut.write.valid, 1)
            ctx.set(dut.write.p.squeue, squeue)
            for name in names:
                ctx.set(dut.write.p.queue_config[name], row[name])
            await ctx.tick()
        ctx.set(dut.write.valid, 0)
        for squeue in range(1, UNIT.squeues):
            good = ctx.get(memory[squeue])
            first, second = rng.sample(range(len(memory[squeue])), 2)
            flip(ctx, memory, squeue, first)
            assert await read(ctx, squeue) == (rows[squeue], NO_FAULT | {"corrected": 1})
            assert ctx.get(memory[squeue]) == good, "not written back"
            flip(ctx, memory, squeue, first, second)
            assert (await read(ctx, squeue, used=0))[1] == NO_FAULT
            assert (await read(ctx, squeue))[1] == NO_FAULT | {"fatal": 1}
            ctx.set(memory[squeue], good)
            assert await read(ctx, squeue) == (rows[squeue], NO_FAULT)

    simulate_memory(dut, bench)
