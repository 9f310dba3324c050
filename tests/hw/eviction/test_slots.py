# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Flipped bits in what is known of a page that leaves: one changes neither where it goes nor
whether it is written, two are fatal when they are used."""

import random

import pytest
from amaranth.sim import Simulator
from flips import opened

from kelp_hw.eviction.slots import EvictionSlots
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome

UNIT = named("unit")
SLOT, FRAME, SQUEUE, PAGE, MASK = 2, 5, 3, 6, 0b10010010
TABLES = ("begun", "found", "line_masks", "writes", "releases")


def evict(flips, config=UNIT):
    """One dirty eviction with `flips`, {memory: bits}, once it is known; (write-back, RELEASE,
    faults by kind)."""
    dut = EvictionSlots(config=config)
    top, memories = opened(dut)
    seen = {"corrected": 0, "poisoned": 0, "fatal": 0}
    got = {}

    def memory(name):
        (found,) = (data for path, data in memories.items() if path.split(".")[0] == name)
        return found

    def flip(name):
        rows = memory(name)
        row = 0 if name in ("writes", "releases") else SLOT
        mask = sum(1 << bit for bit in flips.get(name, ()))
        return rows[row], mask

    async def bench(ctx):
        async def cycle():
            await ctx.tick()
            for kind in seen:
                seen[kind] += ctx.get(dut.fault[kind])

        async def send(port, **fields):
            for name, value in fields.items():
                view = port.p
                for part in name.split("__"):
                    view = view[part]
                ctx.set(view, value)
            ctx.set(port.valid, 1)
            await cycle()
            ctx.set(port.valid, 0)

        async def flipped(*names):
            for name in names:
                row, mask = flip(name)
                ctx.set(row, ctx.get(row) ^ mask)

        await cycle()
        await send(
            dut.i_result,
            op__kind=Op.CLAIM,
            op__slot=SLOT,
            op__squeue=SQUEUE,
            op__page=PAGE,
            outcome=Outcome.DONE,
            pool=1,
        )
        await cycle()
        await send(
            dut.i_claim,
            slot=SLOT,
            frame=FRAME,
            dirty=1,
            line_mask__valid=MASK,
            line_mask__poison=MASK,
        )
        await cycle()
        await flipped("begun", "found", "line_masks")
        ctx.set(dut.i_flushed.p, SLOT)
        ctx.set(dut.i_flushed.valid, 1)
        await cycle()
        ctx.set(dut.i_flushed.valid, 0)
        await flipped("writes")
        for _ in range(4):
            if ctx.get(dut.o_write_back.valid):
                break
            await cycle()
        else:
            return
        p = dut.o_write_back.p
        got["write back"] = [ctx.get(x) for x in (p.token, p.squeue, p.page, p.frame)]
        got["masks"] = [ctx.get(p.line_mask.valid), ctx.get(p.line_mask.poison)]
        ctx.set(dut.o_write_back.ready, 1)
        await cycle()
        ctx.set(dut.o_write_back.ready, 0)
        await send(dut.i_written_back, token=SLOT)
        await flipped("releases")
        await cycle()
        p = dut.o_op.p
        assert ctx.get(dut.o_op.valid)
        got["release"] = [
            ctx.get(x) for x in (p.slot, p.squeue, p.page, p.frame, p.pool, p.written)
        ]
        ctx.set(dut.o_op.ready, 1)
        await cycle()
        ctx.set(dut.o_op.ready, 0)
        await cycle()

    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return got, seen


RIGHT = {
    "write back": [SLOT, SQUEUE, PAGE, FRAME],
    "masks": [MASK, MASK],
    "release": [SLOT, SQUEUE, PAGE, FRAME, 1, 1],
}


def width(name):
    _, memories = opened(EvictionSlots(config=UNIT))
    (found,) = (data for path, data in memories.items() if path.split(".")[0] == name)
    return found.shape.width if hasattr(found.shape, "width") else found.shape


def test_an_eviction_without_flips():
    assert evict({}) == (RIGHT, {"corrected": 0, "poisoned": 0, "fatal": 0})


@pytest.mark.parametrize("name", TABLES)
def test_one_flip_is_corrected_and_two_are_fatal(name):
    rng, bits = random.Random(name), range(width(name))
    for bit in rng.sample(bits, 2):
        got, seen = evict({name: [bit]})
        assert got == RIGHT and seen["corrected"] and not seen["fatal"], bit
    assert evict({name: rng.sample(bits, 2)})[1]["fatal"]


def test_without_protection_a_dirty_page_is_dropped():
    """What these tests are for."""
    got, seen = evict({"found": [UNIT.frame_bits]}, UNIT.with_(protect=False))
    assert "write back" not in got and not any(seen.values())
