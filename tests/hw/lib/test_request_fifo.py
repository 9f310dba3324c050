# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""RequestFifo: in order, at full rate, and only what came with its valid."""

import random

import pytest
from simulation import simulate
from timing import check_fifo

from kelp_hw.lib.request_fifo import RequestFifo


def test_latency_and_interval():
    check_fifo(RequestFifo(depth=4, shape=8))


@pytest.mark.parametrize(("idle", "stall"), [(0, 0), (0.7, 0), (0.3, 0.3), (0.2, 0.9)])
def test_it_keeps_what_came_with_its_valid(idle, stall):
    rng, dut, received = random.Random(4), RequestFifo(depth=4, shape=16), []

    async def bench(ctx):
        sent, fullest, cycles = 0, 0, 0
        while len(received) < 300:
            level = sent - len(received)
            valid, ready = sent < 300 and level < 4 and rng.random() >= idle, rng.random() >= stall
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.p, sent if valid else rng.getrandbits(16))
            ctx.set(dut.o.ready, ready)
            assert (ctx.get(dut.level), ctx.get(dut.o.valid)) == (level, level > 0)
            if level and ready:
                received.append(ctx.get(dut.o.p))
            sent += valid
            fullest, cycles = max(fullest, level), cycles + 1
            await ctx.tick()
        assert received == list(range(300))
        assert cycles == 301 or idle or stall, "one item a cycle, a cycle from `i` to `o`"
        assert fullest == 4 or stall <= idle

    simulate(dut, bench)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="depth = 6 is refused"):
        RequestFifo(shape=8, depth=6)
