# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""DataFifo before the data path: what it says of ops that wait, its latency and interval, and
flipped bits in it; `make bench` measures the endpoint."""

import random
from collections import deque

from amaranth.hdl import Value
from flips import NO_FAULT, fields, flip, opened, simulate_memory
from simulation import simulate
from timing import check_pace, offers, shown

from kelp_hw.endpoint import DataFifo
from kelp_hw.pipeline import RESERVE
from kelp_spec.config import named

UNIT = named("unit")


def test_latency_and_interval():
    check_pace(
        DataFifo(config=UNIT),
        "LATENCY",
        shown(field="offset"),
        offers(field="offset"),
        prepare={"o.ready": 1},
    )


def test_it_says_how_many_wait_and_whether_more_may_come():
    rng, dut, waiting, seen = random.Random(6), DataFifo(config=UNIT), deque(), set()
    i, o = Value.cast(dut.i.p), Value.cast(dut.o.p)

    async def bench(ctx):
        for n in range(1500):
            if n % 50 == 0:
                comes, leaves = rng.choice([(0.9, 0.3), (0.3, 0.9), (0.6, 0.6), (1.0, 0.0)])
            valid = len(waiting) < dut.DEPTH and rng.random() < comes
            item, ready = rng.getrandbits(len(i)), rng.random() < leaves
            ctx.set(dut.i.valid, valid)
            ctx.set(i, item)
            ctx.set(dut.o.ready, ready)
            assert ctx.get(dut.level) == len(waiting)
            assert ctx.get(dut.idle) == (not waiting)
            assert ctx.get(dut.ready) == (len(waiting) <= dut.DEPTH - RESERVE)
            seen.add(len(waiting))
            if valid:
                waiting.append(item)
            assert ctx.get(dut.o.valid) == bool(waiting)
            if waiting:
                assert ctx.get(o) == waiting[0]
                if ready:
                    waiting.popleft()
            await ctx.tick()

    simulate(opened(dut)[0], bench)
    assert seen == set(range(dut.DEPTH + 1))


def test_flipped_bits():
    dut = DataFifo(config=UNIT)

    async def bench(ctx, memory):
        for flips, expected in (((), NO_FAULT), ((3,), "corrected"), ((3, 5), "fatal")):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p.frame, 21)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            for row in range(memory.depth):
                flip(ctx, memory, row, *flips)
            await ctx.tick()
            ctx.set(dut.o.ready, 1)
            assert ctx.get(dut.o.valid) and (len(flips) == 2 or ctx.get(dut.o.p.frame) == 21)
            await ctx.tick()
            ctx.set(dut.o.ready, 0)
            fault = fields(ctx, dut.fault)
            assert fault == (NO_FAULT | {expected: 1} if flips else NO_FAULT)
            for row in range(memory.depth):
                ctx.set(memory[row], 0)
            await ctx.tick()

    simulate_memory(dut, bench)
