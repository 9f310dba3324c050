# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The window of requests: in order, however often they are sent back."""

import random

from flips import NO_FAULT, fields, flip, simulate_memory
from simulation import simulate
from timing import check_pace, shown

from kelp_hw.coherence.directory import Directory
from kelp_hw.coherence.request_window import RequestWindow
from kelp_spec.coherence import SIZES, DirectoryOp, DirectoryOutcome
from kelp_spec.config import named

BACK = (DirectoryOutcome.WAIT, DirectoryOutcome.RECALL)


def new_window():
    return RequestWindow(config=named("unit"), sizes=SIZES["unit"])


def test_latency_and_interval():
    offers = [{"m2s_req.valid": 1, "m2s_req.p.tag": tag} for tag in (1, 2, 3)]
    check_pace(
        new_window(),
        "LATENCY",
        lambda dut: dut.waits * dut.message.tag,
        offers,
        prepare={"enable": 1, "take": 1},
        within=4,
    )


def test_they_end_in_order_however_often_they_are_sent_back():
    rng, dut = random.Random(3), new_window()
    ended, backs = [], 0

    async def bench(ctx):
        nonlocal backs
        sent, epoch, pipeline = 0, 0, [None] * Directory.LATENCY
        ctx.set(dut.enable, 1)
        ctx.set(dut.i_result.p.op.kind, DirectoryOp.REQUEST)
        while len(ended) < 800:
            ctx.set(dut.m2s_req.valid, rng.random() < 0.8)
            ctx.set(dut.m2s_req.p.tag, sent)
            take = ctx.get(dut.waits) and rng.random() < 0.8
            ctx.set(dut.take, take)
            here = pipeline.pop(0)
            counts = here is not None and here[1] == epoch
            back = rng.random() < 0.2
            outcome = rng.choice(BACK) if back else DirectoryOutcome.DONE
            ctx.set(dut.i_result.valid, here is not None)
            ctx.set(dut.i_result.p.dropped, not counts)
            ctx.set(dut.i_result.p.outcome, outcome)
            pipeline.append((ctx.get(dut.message.tag), ctx.get(dut.epoch)) if take else None)
            assert ctx.get(dut.ends) == (counts and not back)
            nothing = sent == len(ended) and not ctx.get(dut.m2s_req.valid)
            assert ctx.get(dut.idle) == nothing
            if counts and not back:
                ended.append(here[0])
            elif counts:
                epoch ^= 1
                backs += 1
            sent += ctx.get(dut.m2s_req.valid) and ctx.get(dut.m2s_req.ready)
            await ctx.tick()

    simulate(dut, bench)
    assert ended == list(range(800)) and backs > 100


def test_a_flip_is_corrected_two_are_told_where_the_request_leaves():
    dut, tags, faults = new_window(), [], []

    async def bench(ctx, memory):
        ctx.set(dut.enable, 1)
        ctx.set(dut.m2s_req.valid, 1)
        for n in range(3):
            ctx.set(dut.m2s_req.p.tag, 0x5A00 + n)
            await ctx.tick()
        ctx.set(dut.m2s_req.valid, 0)
        flip(ctx, memory, 1, 3)
        flip(ctx, memory, 2, 3, 9)
        for take in (1, 0, 1, 0, 1, 1):
            ctx.set(dut.take, take)
            tags.append(ctx.get(dut.message.tag))
            await ctx.tick()
            faults.append(fields(ctx, dut.fault))

    simulate_memory(dut, bench)
    assert tags[:3] == [0x5A00, 0x5A01, 0x5A01]
    corrected, fatal = NO_FAULT | {"corrected": 1}, NO_FAULT | {"fatal": 1}
    assert faults == [NO_FAULT, NO_FAULT, corrected, NO_FAULT, fatal, NO_FAULT]


def test_nothing_is_taken_before_it_is_enabled():
    assert shown("m2s_req", "tag")
    dut = new_window()

    async def bench(ctx):
        ctx.set(dut.m2s_req.valid, 1)
        assert not ctx.get(dut.m2s_req.ready)

    simulate(dut, bench)
