# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""BypassFifo: straight through when nothing waits, in order, and an offer stays."""

import random

import pytest
from flips import fields, flip, simulate_memory
from simulation import simulate
from timing import changes, check_fifo, offers

from kelp_hw.lib.bypass_fifo import BypassFifo


@pytest.mark.parametrize("registered", [False, True])
def test_latency_and_interval(registered):
    check_fifo(BypassFifo(depth=4, shape=8, registered=registered))


@pytest.mark.parametrize(
    ("registered", "interval"),
    [(False, BypassFifo.INTERVAL), (True, BypassFifo.REGISTERED_INTERVAL)],
)
def test_items_that_wait_leave_at_its_interval(registered, interval):
    fifo = BypassFifo(depth=4, shape=8, registered=registered)
    taken = changes(fifo, "level", [{"o.ready": 1}] * 8, before=offers())
    assert taken == [1, 1 + interval, 1 + 2 * interval]


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("stall", [0, 0.3, 0.9])
def test_it_waits_for_its_channel_alone(stall, registered):
    rng, dut = random.Random(2), BypassFifo(depth=4, shape=16, registered=registered)
    received = []

    async def bench(ctx):
        sent, fullest, held, unseen = 0, 0, None, 0
        while len(received) < 300:
            waiting = sent - len(received)
            valid = sent < 300 and waiting < 4 and rng.random() < 0.8
            ready = rng.random() >= stall
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.p, sent if valid else rng.getrandbits(16))
            ctx.set(dut.o.ready, ready)
            offered, item = ctx.get(dut.o.valid), ctx.get(dut.o.p)
            assert held is None or (offered, item) == (1, held), "an offer is withdrawn"
            if not waiting:
                assert offered == valid, "what comes is there at once"
            else:
                assert offered or unseen, "what waits is not there in time"
            if offered and ready:
                received.append(item)
            # When an item leaves the register, the next one is in it two cycles later.
            unseen = registered and offered and ready and waiting
            held = item if offered and not ready else None
            sent += valid
            fullest = max(fullest, sent - len(received))
            await ctx.tick()
        assert fullest == (4 if stall else 0)

    simulate(dut, bench)
    assert received == list(range(300))


@pytest.mark.parametrize("registered", [False, True])
def test_an_offer_that_bypasses_the_rows_stays(registered):
    # Of the registered kind `valid` once went 0 1 0 1 1 here.
    dut, seen = BypassFifo(depth=4, shape=16, registered=registered), []

    async def bench(ctx):
        for cycle in range(5):
            ctx.set(dut.i.valid, cycle == 1)
            ctx.set(dut.i.p, 7 if cycle == 1 else 100 + cycle)
            if ctx.get(dut.o.valid):
                assert ctx.get(dut.o.p) == 7
            seen.append((ctx.get(dut.o.valid), ctx.get(dut.oldest.valid), ctx.get(dut.level)))
            await ctx.tick()

    simulate(dut, bench)
    assert seen == [(0, 0, 0), (1, 0, 0), (1, 1, 1), (1, 1, 1), (1, 1, 1)]


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="depth = 12 is refused"):
        BypassFifo(depth=12, shape=8)


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize("flips", [0, 1, 2])
def test_flips_are_reported_with_their_item(registered, protect, flips):
    """One flipped bit is corrected and counted once, when its item leaves; two are reported as long
    as their item is offered; what bypasses the rows, and what is left in a row, never is."""
    dut = BypassFifo(depth=4, shape=12, registered=registered, protect=protect)
    taken, told = [], []

    async def bench(ctx, memory):
        for n, item in enumerate((0x123, 0x456, 0x789)):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p, item)
            await ctx.tick()
            flip(ctx, memory, n, *((1, 7)[:flips] if n == 1 else ()))
        ctx.set(dut.i.valid, 0)
        for cycle in range(24):
            ready = cycle % 4 == 3
            ctx.set(dut.o.ready, ready)
            fault = fields(ctx, dut.fault)
            if ctx.get(dut.o.valid):
                told.append((len(taken), ready, fault["corrected"], fault["uncorrected"]))
                if ready:
                    taken.append(ctx.get(dut.o.p))
            else:
                assert not any(fault.values())
            await ctx.tick()
        ctx.set(dut.i.valid, 1)  # straight through, past the row with the flips
        ctx.set(dut.o.ready, 1)
        for _ in range(6):
            assert not any(fields(ctx, dut.fault).values())
            await ctx.tick()

    simulate_memory(dut, bench)
    one, two = protect and flips == 1, protect and flips == 2
    assert told == [(n, ready, n == 1 and ready and one, n == 1 and two) for n, ready, *_ in told]
    assert {n for n, *_ in told} == {0, 1, 2} and taken[::2] == [0x123, 0x789]
    assert (taken[1] == 0x456) == (not flips or one) or two
