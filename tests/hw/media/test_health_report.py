# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Health follows what the endpoint tells."""

from simulation import simulate
from timing import changes

from kelp_hw.media.health_report import HealthReport
from kelp_spec.config import named
from kelp_spec.cxlio.events import MediaStatus
from kelp_spec.metadata import Event
from kelp_spec.registers import COUNTERS

UNIT = named("unit").with_(cxlio="joined")
CORRECTED = 1 << [name for name, _ in COUNTERS].index("corrected")


def test_what_is_lost_and_what_is_corrected():
    dut = HealthReport(config=UNIT)

    async def bench(ctx):
        async def shown(code=None):
            if code is not None:
                ctx.set(dut.i.p.code, code)
                ctx.set(dut.i.valid, 1)
                await ctx.tick()
                ctx.set(dut.i.valid, 0)
            await ctx.tick()
            return ctx.get(dut.o.status), ctx.get(dut.o.media)

        assert await shown() == (0, MediaStatus.NOT_READY)
        ctx.set(dut.ready, 1)
        ctx.set(dut.temperature, 0xFFFE)
        for code in (Event.CLOSED_SESSION, Event.POISON_RECEIVED, Event.CORRECTED):
            assert await shown(code) == (0, MediaStatus.NORMAL)
        assert ctx.get(dut.o.temperature) == 0xFFFE
        ctx.set(dut.i.p.code, Event.FATAL)  # which nobody tells
        assert await shown() == (0, MediaStatus.NORMAL)
        assert await shown(Event.FETCH_FAILED) == (1, MediaStatus.NORMAL)
        assert await shown(Event.FATAL) == (5, MediaStatus.ALL_DATA_LOST)
        ctx.set(dut.counted, CORRECTED)
        for _ in range(7):
            await ctx.tick()
        ctx.set(dut.counted, CORRECTED ^ -1 & (1 << len(COUNTERS)) - 1)
        await ctx.tick()
        assert ctx.get(dut.o.corrected) == 7
        ctx.set(dut.counted, CORRECTED)
        ctx.set(dut.corrected, (1 << 32) - 2)
        for _ in range(3):
            await ctx.tick()
        assert ctx.get(dut.o.corrected) == (1 << 32) - 1

    simulate(dut, bench)


def test_latency_and_interval():
    dut = HealthReport(config=UNIT)
    seen = changes(dut, "o.corrected", [{"counted": CORRECTED}] * 3)
    assert seen == [dut.LATENCY + i * dut.INTERVAL for i in range(3)]
