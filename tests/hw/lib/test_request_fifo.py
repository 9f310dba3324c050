# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""RequestFifo: in order, at full rate, and only what came with its valid."""

import random

import pytest
from flips import fields, flip, simulate_memory
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


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize("flips", [0, 1, 2])
def test_flips_are_reported_with_their_item(protect, flips):
    """One flipped bit is corrected and counted once, when its item leaves; two are reported as long
    as their item stands at the end; what is in a row that nobody waits in never is."""
    dut, taken = RequestFifo(depth=4, shape=12, protect=protect), []

    async def bench(ctx, memory):
        for n, item in enumerate((0x123, 0x456, 0x789)):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p, item)
            await ctx.tick()
            flip(ctx, memory, n, *((1, 7)[:flips] if n == 1 else ()))
        ctx.set(dut.i.valid, 0)
        for cycle in range(16):
            ready = cycle % 4 == 3
            ctx.set(dut.o.ready, ready)
            shown = len(taken) == 1
            assert fields(ctx, dut.fault) == {
                "corrected": shown and ready and protect and flips == 1,
                "uncorrected": shown and protect and flips == 2,
            }
            if ready and ctx.get(dut.o.valid):
                taken.append(ctx.get(dut.o.p))
            await ctx.tick()
        flip(ctx, memory, 3, 2, 4)
        assert not any(fields(ctx, dut.fault).values())

    simulate_memory(dut, bench)
    assert taken[::2] == [0x123, 0x789] and len(taken) == 3
    assert flips == 2 or (taken[1] == 0x456) == (protect or not flips)
