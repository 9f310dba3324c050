# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sectors that are asked for: each comes to its end once, however often it must wait."""

import random

from flips import opened
from simulation import simulate
from timing import check_pace

from kelp_hw.coherence.ask_queue import AskQueue
from kelp_hw.coherence.directory import Directory
from kelp_spec.coherence import SIZES, DirectoryOp, DirectoryOutcome
from kelp_spec.config import named


def new_queue():
    return AskQueue(config=named("unit"), sizes=SIZES["unit"])


def test_latency():
    check_pace(
        new_queue(),
        "LATENCY",
        lambda dut: dut.waits * dut.op.token,
        [{"i.valid": 1, "i.p.token": 7}],
    )


def test_each_token_ends_once():
    rng, dut = random.Random(4), new_queue()
    ended, waits = [], 0

    async def bench(ctx):
        nonlocal waits
        sent, recalls, pipeline, taken = 0, [], [None] * Directory.LATENCY, False
        while len(ended) < 300:
            ctx.set(dut.i.valid, rng.random() < 0.5 and sent < 300)
            ctx.set(dut.i.p.token, sent & 255)
            assert not (taken and ctx.get(dut.waits)), "two in a row"
            taken = ctx.get(dut.waits) and rng.random() < 0.8
            ctx.set(dut.take, taken)
            token, result = pipeline.pop(0), dut.i_result
            ctx.set(result.valid, 0)
            if token is not None:
                outcome = rng.choice([0, 1, 3])
                ctx.set(result.valid, 1)
                ctx.set(result.p.op.kind, DirectoryOp.ASK)
                ctx.set(result.p.op.token, token)
                ctx.set(result.p.outcome, outcome)
                waits += outcome == DirectoryOutcome.WAIT
                if outcome == DirectoryOutcome.DONE_RECALL:
                    recalls.append(token)
            elif recalls and rng.random() < 0.5:
                ctx.set(result.valid, 1)
                ctx.set(result.p.op.kind, DirectoryOp.FINISH)
                ctx.set(result.p.op.asked, 1)
                ctx.set(result.p.op.token, recalls.pop(0))
            pipeline.append(ctx.get(dut.op.token) if taken else None)
            if ctx.get(dut.o_unheld.valid):
                ended.append(ctx.get(dut.o_unheld.p))
            sent += ctx.get(dut.i.valid) and ctx.get(dut.i.ready)
            await ctx.tick()

    simulate(opened(dut)[0], bench)
    assert sorted(ended) == sorted(n & 255 for n in range(300)) and waits > 50
