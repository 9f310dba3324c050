# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ErrorReports: how soon an error of a slot is offered, and the next."""

import pytest
from simulation import cycles_until, simulate

from kelp_hw.datapath.error_reports import ErrorReports
from kelp_spec.config import named

UNIT = named("unit")


@pytest.mark.parametrize("buffer", ["lines", "scales"])
def test_latency_and_interval(buffer):
    """Every slot has an error, so that the slot that is looked at has one."""
    block = ErrorReports(config=UNIT)
    slots = getattr(block, buffer)

    async def bench(ctx):
        ctx.set(slots.any, 1)
        ctx.set(slots.there, 1)
        ctx.set(slots.offset, 5)
        assert await cycles_until(ctx, block.o.valid) == block.LATENCY
        assert ctx.get(block.o.p.offset) == 5
        ctx.set(block.o.ready, 1)
        reported = []
        for _ in range(3):
            assert ctx.get(slots.done.valid)
            reported.append(ctx.get(slots.done.p.slot))
            await ctx.tick()
            assert 1 + await cycles_until(ctx, block.o.valid) == block.INTERVAL
        assert len(set(reported)) == 3

    simulate(block, bench)
