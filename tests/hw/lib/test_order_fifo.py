# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""OrderFifo: cycle by cycle a buffered FIFO of amaranth.lib."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib.fifo import SyncFIFOBuffered
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
