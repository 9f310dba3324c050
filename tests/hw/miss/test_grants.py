# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MissGrants: how soon a miss is granted a frame; the bench of the miss buffer says which."""

import pytest
from simulation import simulate
from timing import check_phases

from kelp_hw.miss.grants import MissGrants
from kelp_spec.config import named
from kelp_spec.metadata import Outcome
from kelp_spec.registers import LONGEST_WAIT


def test_latency_and_interval_at_each_phase():
    check_phases(
        lambda: MissGrants(config=named("unit")),
        "o_op.valid",
        [{"i.valid": 1, "i.p.miss": k, "i.p.pool": k} for k in range(4)],
        {
            "pool_free": 0x1111,
            "starve_limit": 1 << 20,
            "o_op.ready": 1,
            "i_outcome.valid": 1,
            "i_outcome.p": int(Outcome.DONE),
        },
    )


@pytest.mark.parametrize("phase", range(4))
def test_the_longest_wait_is_over(phase):
    """Whenever its entry is looked at: a time waited is a difference of 32 bits, and does not stay
    beyond a limit close to their end."""
    dut = MissGrants(config=named("unit"))

    async def bench(ctx):
        ctx.set(dut.starve_limit, LONGEST_WAIT)
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(20 + phase)
        for left in (40, 20, 1):
            ctx.set(dut.now, LONGEST_WAIT - left)
            await ctx.tick().repeat(20)
            assert not ctx.get(dut.o_op.valid)
        for late in range(20):
            ctx.set(dut.now, LONGEST_WAIT + late)
            await ctx.tick()
        assert ctx.get(dut.o_op.valid) and ctx.get(dut.o_op.p.failed)

    simulate(dut, bench)
