# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Req and RwD behind two delays: they come out in the order in which they were taken, at the rate
of one channel."""

import random

import pytest
from simulation import simulate

from kelp_hw.media.channel_order import ChannelOrder

DEPTH = 4


def through(*, offers, takes, cycles=600, seed=3):
    """Messages through two channels that have two places each: (taken, come out), each a list of
    (channel, tag)."""
    dut, rng = ChannelOrder(depth=DEPTH), random.Random(seed)
    taken, out = [], []

    async def bench(ctx):
        places = {"req": [], "rwd": []}
        ports = {name: (getattr(dut, f"i_{name}"), getattr(dut, f"o_{name}")) for name in places}
        tag = 0
        for _ in range(cycles):
            for name, (i, o) in ports.items():
                ctx.set(i.valid, bool(places[name]))
                ctx.set(i.p.tag, places[name][0] if places[name] else 0)
                ctx.set(o.ready, rng.random() < takes[name])
            coming = []
            for name in ("rwd", "req"):
                comes = len(places[name]) < 2 and rng.random() < offers[name]
                ctx.set(getattr(dut, f"taken_{name}"), comes)
                if comes:
                    tag += 1
                    coming.append((name, tag))
            for name, (i, o) in ports.items():
                if ctx.get(o.valid) and ctx.get(o.ready):
                    assert ctx.get(i.ready)
                    out.append((name, ctx.get(o.p.tag)))
                    assert places[name].pop(0) == out[-1][1]
                else:
                    assert not (ctx.get(i.valid) and ctx.get(i.ready))
            await ctx.tick()
            for name, given in coming:
                places[name].append(given)
                taken.append((name, given))

    simulate(dut, bench)
    return taken, out


@pytest.mark.parametrize("req", [0.1, 0.5, 1])
@pytest.mark.parametrize("rwd", [0.1, 0.5, 1])
@pytest.mark.sampled
def test_they_come_out_in_the_order_in_which_they_were_taken(req, rwd):
    for takes in ({"req": 1, "rwd": 0.1}, {"req": 0.2, "rwd": 1}, {"req": 0.6, "rwd": 0.6}):
        taken, out = through(offers={"req": req, "rwd": rwd}, takes=takes)
        assert out == taken[: len(out)] and len(taken) - len(out) <= DEPTH
        assert len(out) > 30


@pytest.mark.parametrize("channel", ["req", "rwd"])
def test_interval_and_latency_are_what_the_class_says(channel):
    """Of one channel, and of both, a message in each cycle."""
    assert (ChannelOrder.LATENCY, ChannelOrder.INTERVAL) == (0, 1)
    free = {"req": 1, "rwd": 1}
    for offers in ({"req": 0, "rwd": 0} | {channel: 1}, free):
        taken, out = through(offers=offers, takes=free, cycles=100)
        assert len(out) >= 98 and out == taken[: len(out)]


@pytest.mark.parametrize("depth", [0, -1, 1.5])
def test_bad_parameters_are_refused(depth):
    with pytest.raises(ValueError, match="depth = .* is refused; legal: 1 and up"):
        ChannelOrder(depth=depth)
