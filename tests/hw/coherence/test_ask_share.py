# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Two askers: each has the answers to its own asks, in order, whatever the front's pace."""

import random
from collections import deque

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.coherence.ask_share import AskShare


@pytest.mark.parametrize(
    ("seed", "first", "second", "ready", "delay"),
    [(1, 0.9, 0.2, 0.7, 6), (2, 0.5, 0.9, 0.4, 3), (3, 1, 0.1, 1, 40)],
)
def test_each_has_its_own_answers(seed, first, second, ready, delay):
    dut, rng = AskShare(sector_bits=6), random.Random(seed)
    sent, got = {"first": [], "second": []}, {"first": [], "second": []}

    async def bench(ctx):
        waits, offered, standing = deque(), {}, None
        for cycle in range(1500):
            for name, often in (("first", first), ("second", second)):
                port = getattr(dut, "i_" + name)
                # The second waits for its answer.
                idle = name == "first" or len(got[name]) == len(sent[name])
                if name not in offered and idle and rng.random() < often:
                    offered[name] = rng.getrandbits(6)
                    ctx.set(port.p, offered[name])
                ctx.set(port.valid, name in offered)
            ctx.set(dut.o_ask.ready, rng.random() < ready)
            due = bool(waits) and waits[0][0] <= cycle
            ctx.set(dut.i_answer.valid, due)
            ctx.set(dut.i_answer.p, waits[0][1] & 1 if due else 0)
            offer = ctx.get(dut.o_ask.p) if ctx.get(dut.o_ask.valid) else None
            assert standing is None or offer == standing, f"seed {seed}: the offer does not stand"
            standing = None if ctx.get(dut.o_ask.ready) else offer
            for name in sent:
                port, answer = getattr(dut, "i_" + name), getattr(dut, "o_" + name)
                if ctx.get(port.valid) and ctx.get(port.ready):
                    assert ctx.get(dut.o_ask.valid) and offer == offered[name]
                    sent[name].append(offered.pop(name))
                if ctx.get(answer.valid):
                    got[name].append(ctx.get(answer.p))
            if offer is not None and ctx.get(dut.o_ask.ready):
                waits.append((cycle + rng.randrange(1, delay), offer))
                assert len(waits) <= AskShare.DEPTH + due
            if due:
                waits.popleft()
            await ctx.tick()

    simulate(dut, bench)
    for name, asked in sent.items():
        assert len(asked) > 20
        assert got[name] == [each & 1 for each in asked[: len(got[name])]], (seed, name)
        assert len(asked) - len(got[name]) <= AskShare.DEPTH


def test_latency_and_interval():
    given = [{"i_second.valid": 1, "i_second.p": n} for n in (1, 2, 3)]
    share = AskShare(sector_bits=6)
    assert changes(share, "o_ask.p", given, prepare={"o_ask.ready": 1}) == [0, 1, 2]
    assert (share.LATENCY, share.INTERVAL) == (0, 1)
