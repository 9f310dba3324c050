# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""QueueConfig: it has what was written last, how fast a field is read, and which there are."""

import random

import pytest
from flips import fields, flip, opened
from simulation import simulate
from timing import check_pace, varied

from kelp_hw.control.queue_config import QueueConfig
from kelp_spec.config import named

UNIT = named("unit")


def written(squeue, window):
    return {"write.valid": 1, "write.p.squeue": squeue, "write.p.queue_config.window": window}


def test_what_was_written_last_is_read():
    """Also by a read of the same cycle; it stays while nothing is read."""
    rng, dut = random.Random(7), QueueConfig(config=UNIT, fields=("window", "alpha"))
    rows, shown, same = [None] * UNIT.squeues, None, 0

    async def bench(ctx):
        nonlocal shown, same
        for _ in range(1500):
            squeue, of = rng.randrange(UNIT.squeues), rng.randrange(UNIT.squeues)
            row = {"window": rng.getrandbits(6), "alpha": rng.getrandbits(8)}
            writes, reads = rng.random() < 0.5, rng.random() < 0.5
            ctx.set(dut.write.valid, writes)
            ctx.set(dut.write.p.squeue, squeue)
            for name, value in row.items():
                ctx.set(dut.write.p.queue_config[name], value)
            ctx.set(dut.read_en, reads)
            ctx.set(dut.read_squeue, of)
            if shown is not None:
                assert fields(ctx, dut.o) == shown
            await ctx.tick()
            if writes:
                rows[squeue] = row
            if reads:
                same += writes and of == squeue
                shown = rows[of]

    simulate(dut, bench)
    assert same > 20


@pytest.mark.parametrize(("bits", "expected"), [(1, (1, 0)), (2, (0, 1))])
def test_a_flip_is_told(bits, expected):
    dut, told = QueueConfig(config=UNIT, fields=("window",), protect=True), []
    top, memories = opened(dut)

    async def bench(ctx):
        ctx.set(dut.write.valid, 1)
        ctx.set(dut.write.p.squeue, 2)
        ctx.set(dut.write.p.queue_config.window, 5)
        await ctx.tick()
        ctx.set(dut.write.valid, 0)
        await ctx.tick()
        for memory in memories.values():
            flip(ctx, memory, 2, *range(bits))
        ctx.set(dut.read_en, 1)
        ctx.set(dut.read_squeue, 2)
        await ctx.tick()
        told.append((ctx.get(dut.fault.corrected), ctx.get(dut.fault.uncorrected)))
        assert bits > 1 or ctx.get(dut.o.window) == 5

    simulate(top, bench)
    assert told == [expected]


def test_latency_and_interval():
    check_pace(
        QueueConfig(config=UNIT, fields=("window",)),
        "LATENCY",
        "o",
        varied("read_squeue"),
        prepare={"read_en": 1},
        before=[written(k, k) for k in (1, 2, 3)],
    )


def test_unknown_field_is_refused():
    with pytest.raises(ValueError, match="'tau' is refused; legal: alpha"):
        QueueConfig(config=UNIT, fields=("tau",))
