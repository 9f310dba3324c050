# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""OrderFifo: cycle by cycle a buffered FIFO of amaranth.lib."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib.fifo import SyncFIFOBuffered
from flips import fields, flip, simulate_memory
from simulation import simulate
from timing import check_fifo

from kelp_hw.lib.order_fifo import OrderFifo


def test_latency_and_interval():
    check_fifo(OrderFifo(width=8, depth=4))


@pytest.mark.parametrize(
    ("idle", "stall"), [(0, 0), (0.7, 0), (0, 0.7), (0.3, 0.3), (0.5, 0.4), (0.2, 0.9)]
)
def test_it_is_a_buffered_fifo(idle, stall):
    rng, m, dut, model, received = (
        random.Random(3),
        Module(),
        OrderFifo(width=16, depth=8),
        SyncFIFOBuffered(width=16, depth=8),
        [],
    )
    m.submodules.dut, m.submodules.model = dut, model

    async def bench(ctx):
        sent, cycles, fullest = 0, 0, 0
        while len(received) < 400:
            valid, ready = sent < 400 and rng.random() >= idle, rng.random() >= stall
            for port, value in (
                (dut.i.valid, valid),
                (model.w_en, valid),
                (dut.i.p, sent if valid else rng.getrandbits(16)),
                (model.w_data, sent),
                (dut.o.ready, ready),
                (model.r_en, ready),
            ):
                ctx.set(port, value)
            state = [ctx.get(port) for port in (dut.i.ready, dut.o.valid, dut.level)]
            assert state == [ctx.get(port) for port in (model.w_rdy, model.r_rdy, model.level)]
            if state[1] and ready:
                received.append(ctx.get(dut.o.p))
            sent += valid and state[0]
            cycles, fullest = cycles + 1, max(fullest, state[2])
            await ctx.tick()
        assert received == list(range(400))
        assert cycles == 402 or idle or stall, "one item a cycle, two from `i` to `o`"
        assert fullest == 8 or stall <= idle

    simulate(m, bench)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="depth = 2 is refused"):
        OrderFifo(width=8, depth=2)


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize("flips", [0, 1, 2])
def test_flips_are_reported_with_their_item(protect, flips):
    """In the cycle in which the item moves from the RAM to the output, and in no other."""
    dut, taken, told = OrderFifo(width=12, depth=4, protect=protect), [], []

    async def bench(ctx, memory):
        for item in (0x123, 0x456, 0x789, 0xABC):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p, item)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(3)
        # The first is at the output, the second is what the RAM shows.
        flip(ctx, memory, 2, *(1, 7)[:flips])
        for cycle in range(20):
            ready = cycle % 4 == 3
            ctx.set(dut.o.ready, ready)
            moves = ready and ctx.get(dut.o.valid)
            told.append((moves and len(taken) == 1, *fields(ctx, dut.fault).values()))
            if moves:
                taken.append(ctx.get(dut.o.p))
            await ctx.tick()

    simulate_memory(dut, bench)
    one, two = protect and flips == 1, protect and flips == 2
    assert told == [(here, here and one, here and two) for here, *_ in told]
    assert taken[:2] == [0x123, 0x456] and taken[3:] == [0xABC]
    assert flips == 2 or (taken[2] == 0x789) == (protect or not flips)


def test_parts_beyond_repair_are_told_with_their_item():
    """Two flips in the second part's code word: its bit stands with the item, and no other's."""
    dut, seen = OrderFifo(width=12, depth=4, protect=True, parts=(4, 8)), []

    async def bench(ctx, memory):
        for item in (0x123, 0x456, 0x789, 0xABC):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p, item)
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(3)
        flip(ctx, memory, 2, 9, 10)  # behind the 4 + 4 bits of the first part
        for cycle in range(16):
            ctx.set(dut.o.ready, cycle % 4 == 3)
            if ctx.get(dut.o.valid):
                seen.append((ctx.get(dut.o.p) & 0xF, ctx.get(dut.lost)))
            await ctx.tick()

    simulate_memory(dut, bench)
    assert set(seen) == {(3, 0), (6, 0), (9, 0b10), (0xC, 0)}
