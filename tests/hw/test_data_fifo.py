# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""DataFifo before the data path: its latency and interval, and flipped bits in it; `make bench`
measures the endpoint."""

from flips import NO_FAULT, fields, flip, simulate_memory
from timing import check_pace, offers, shown

from kelp_hw.endpoint import DataFifo
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
