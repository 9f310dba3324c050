# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Registers between blocks: what goes in comes out, in order, at full rate, and nothing looks
through."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import data
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.sim import Simulator

from kelp_hw.lib.bypass_fifo import AnswerQueue
from kelp_hw.lib.order_fifo import OrderQueue
from kelp_hw.lib.request_fifo import RequestQueue
from kelp_hw.lib.skid import Skid

_ITEM = data.StructLayout({"rest": 11, "kind": 5})


def simulate(top, bench):
    sim = Simulator(top)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def through_skid(seed, *, idle, stall, late=None, count=400):
    """Items received and the cycles that it took; checks that `ready` and `valid` do not follow an
    input within a cycle."""
    rng, dut, received, cycles = random.Random(seed), Skid(_ITEM, late=late), [], 0

    async def bench(ctx):
        nonlocal cycles
        sent = 0
        while len(received) < count:
            before = ctx.get(dut.i.ready), ctx.get(dut.o.valid), ctx.get(dut.o.p.as_value())
            valid, ready = sent < count and rng.random() >= idle, rng.random() >= stall
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.p.as_value(), sent if valid else rng.getrandbits(16))
            ctx.set(dut.o.ready, ready)
            assert before == (
                ctx.get(dut.i.ready),
                ctx.get(dut.o.valid),
                ctx.get(dut.o.p.as_value()),
            ), "an input is seen through"
            assert ctx.get(dut.idle) == (sent == len(received))
            if ready and before[1]:
                received.append(before[2])
            sent += bool(valid and before[0])
            comes = ready and before[1], ctx.get(dut.behind_valid), ctx.get(dut.behind.as_value())
            await ctx.tick()
            cycles += 1
            if comes[0]:
                assert ctx.get(dut.o.valid) == comes[1] and (
                    not comes[1] or ctx.get(dut.o.p.as_value()) == comes[2]
                ), "what was foretold does not come"

    simulate(dut, bench)
    return received, cycles


@pytest.mark.parametrize("late", [None, (), ("kind",)])
@pytest.mark.parametrize(("idle", "stall"), [(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3)])
def test_a_skid_passes_everything_on_in_order(idle, stall, late):
    received, cycles = through_skid(1, idle=idle, stall=stall, late=late)
    assert received == list(range(400))
    assert cycles == 401 or idle or stall, "one item a cycle, one cycle late"


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("stall", [0, 0.3, 0.9])
def test_an_answer_queue_waits_for_its_channel_alone(stall, apart):
    rng, dut, received, waited = (
        random.Random(2),
        AnswerQueue(depth=4, shape=16, apart=apart),
        [],
        0,
    )
    unseen = 0  # cycles until what has waited is in the register, at most

    async def bench(ctx):
        nonlocal waited, unseen
        sent = 0
        while len(received) < 300:
            held = sent - len(received)
            valid, ready = sent < 300 and held < 4 and rng.random() < 0.8, rng.random() >= stall
            ctx.set(dut.i_valid, valid)
            ctx.set(dut.i, sent if valid else rng.getrandbits(16))
            ctx.set(dut.o.ready, ready)
            offered = ctx.get(dut.o.valid)
            assert offered or not (unseen == 0 if held else valid), "what comes is there at once"
            assert not offered or held or valid
            if offered and ready:
                received.append(ctx.get(dut.o.p))
            unseen = (
                max(unseen - 1, 0) if apart and held and not (offered and ready) else int(apart)
            )
            sent += valid
            waited = max(waited, sent - len(received))
            await ctx.tick()

    simulate(dut, bench)
    assert received == list(range(300)) and waited == (4 if stall else 0)


@pytest.mark.parametrize(
    ("idle", "stall"), [(0, 0), (0.7, 0), (0, 0.7), (0.3, 0.3), (0.5, 0.4), (0.2, 0.9)]
)
def test_an_order_queue_is_a_buffered_fifo(idle, stall):
    rng, m, dut, model, received = (
        random.Random(3),
        Module(),
        OrderQueue(width=16, depth=8),
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
        assert cycles == 402 or idle or stall, "one item a cycle, two cycles late"
        assert fullest == 8 or stall <= idle

    simulate(m, bench)


@pytest.mark.parametrize(("idle", "stall"), [(0, 0), (0.7, 0), (0.3, 0.3), (0.2, 0.9)])
def test_a_request_queue_keeps_what_came_with_its_valid(idle, stall):
    rng, dut, received = random.Random(4), RequestQueue(depth=4, shape=16), []

    async def bench(ctx):
        sent, fullest, cycles = 0, 0, 0
        while len(received) < 300:
            level = sent - len(received)
            valid, ready = sent < 300 and level < 4 and rng.random() >= idle, rng.random() >= stall
            ctx.set(dut.i_valid, valid)
            ctx.set(dut.i, sent if valid else rng.getrandbits(16))
            ctx.set(dut.o.ready, ready)
            assert (ctx.get(dut.level), ctx.get(dut.o.valid)) == (level, level > 0)
            if level and ready:
                received.append(ctx.get(dut.o.p))
            sent += valid
            fullest, cycles = max(fullest, level), cycles + 1
            await ctx.tick()
        assert received == list(range(300))
        assert cycles == 301 or idle or stall, "one item a cycle, one cycle late"
        assert fullest == 4 or stall <= idle

    simulate(dut, bench)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="depth = 12 is refused"):
        AnswerQueue(depth=12, shape=8)
    with pytest.raises(ValueError, match="depth = 2 is refused"):
        OrderQueue(width=8, depth=2)
    with pytest.raises(ValueError, match="depth = 6 is refused"):
        RequestQueue(shape=8, depth=6)
