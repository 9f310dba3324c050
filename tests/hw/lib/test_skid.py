# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Skid: what goes in comes out, in order, at full rate, and nothing looks through."""

import random

import pytest
from amaranth.lib import data
from simulation import simulate
from timing import check_fifo

from kelp_hw.lib.skid import Skid

_ITEM = data.StructLayout({"rest": 11, "kind": 5})
#: Each is another, in both fields.
_ITEMS = [n * 40503 & 0xFFFF for n in range(400)]


@pytest.mark.parametrize("registered", [None, ()], ids=["registered", "none registered"])
def test_latency_and_interval(registered):
    check_fifo(Skid(8, registered=registered))


def through_skid(seed, *, idle, stall, registered=None):
    """Items received and the cycles that it took; checks that `ready` and `valid` do not follow an
    input within a cycle."""
    rng, dut, received, cycles = random.Random(seed), Skid(_ITEM, registered=registered), [], 0

    async def bench(ctx):
        nonlocal cycles
        sent = 0
        while len(received) < len(_ITEMS):
            before = ctx.get(dut.i.ready), ctx.get(dut.o.valid), ctx.get(dut.o.p.as_value())
            valid, ready = sent < len(_ITEMS) and rng.random() >= idle, rng.random() >= stall
            ctx.set(dut.i.valid, valid)
            ctx.set(dut.i.p.as_value(), _ITEMS[sent] if valid else rng.getrandbits(16))
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
            behind = ctx.get(dut.behind)
            comes = ready and before[1], behind.valid, behind.item.as_value().value
            await ctx.tick()
            cycles += 1
            if comes[0]:
                assert ctx.get(dut.o.valid) == comes[1] and (
                    not comes[1] or ctx.get(dut.o.p.as_value()) == comes[2]
                ), "what was foretold does not come"

    simulate(dut, bench)
    return received, cycles


@pytest.mark.parametrize("registered", [None, (), ("kind",)])
@pytest.mark.parametrize(("idle", "stall"), [(0, 0), (0.5, 0), (0, 0.5), (0.3, 0.3)])
def test_a_skid_passes_everything_on_in_order(idle, stall, registered):
    received, cycles = through_skid(1, idle=idle, stall=stall, registered=registered)
    assert received == _ITEMS
    assert cycles == 401 or idle or stall, "one item a cycle, a cycle from `i` to `o`"
