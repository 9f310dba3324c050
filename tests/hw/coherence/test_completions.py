# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Completions of three sources on one channel: each once, in the order in which they were taken, no
source without its turn."""

import random
from collections import Counter

import pytest
from flips import fields, flip, opened, simulate_memory
from simulation import simulate
from timing import check_pace, offers, shown

from kelp_hw.coherence.completions import Completions
from kelp_spec.coherence import MetaField
from kelp_spec.config import named
from kelp_spec.messages import S2MNDR


def new_completions():
    return Completions(config=named("unit"))


@pytest.mark.parametrize(
    ("attribute", "source"),
    [("LATENCY", "i_grant"), ("LATENCY", "i_inner"), ("OWN_LATENCY", "i_own")],
)
def test_latency_and_interval(attribute, source):
    check_pace(
        new_completions(),
        attribute,
        shown("s2m_ndr", "tag"),
        offers(stream=source, field="tag"),
        prepare={"s2m_ndr.ready": 1},
    )


def test_each_leaves_once_in_the_order_in_which_it_was_taken():
    rng, dut = random.Random(6), new_completions()
    sources = {"grant": dut.i_grant, "inner": dut.i_inner}
    taken, left, waited = [], [], dict.fromkeys(sources, 0)

    async def bench(ctx):
        tag, offered, own = 0, {}, 0
        while len(left) < 1500:
            for name, port in sources.items():
                if name not in offered and rng.random() < 0.7:
                    tag += 1
                    offered[name] = tag
                ctx.set(port.valid, name in offered)
                ctx.set(port.p.tag, offered.get(name, 0))
                ctx.set(port.p.ld_id, offered.get(name, 0) % 13)
            own_now = ctx.get(dut.level) < Completions.DEPTH - 1 and rng.random() < 0.4
            ctx.set(dut.i_own.valid, own_now)
            ctx.set(dut.i_own.p.tag, 40_000 + own)
            ctx.set(dut.i_own.p.ack, own & 1)
            ctx.set(dut.i_own.p.ld_id, (40_000 + own) % 13)
            own += own_now
            inside = len(taken) + own - len(left)
            assert not (inside and ctx.get(dut.idle))
            ctx.set(dut.s2m_ndr.ready, rng.random() < 0.7)
            for name, port in sources.items():
                if name in offered and ctx.get(port.ready):
                    taken.append(offered.pop(name))
                    waited[name] = 0
                elif name in offered and ctx.get(dut.s2m_ndr.ready):
                    waited[name] += 1
                    assert waited[name] < 8, f"{name} has no turn"
            if ctx.get(dut.s2m_ndr.valid) and ctx.get(dut.s2m_ndr.ready):
                tag_out = ctx.get(dut.s2m_ndr.p.tag)
                left.append(tag_out)
                assert ctx.get(dut.s2m_ndr.p.ld_id) == tag_out % 13
                ack = ctx.get(dut.s2m_ndr.p.opcode) == S2MNDR.BI_CONFLICT_ACK
                assert ack == (tag_out >= 40_000 and tag_out & 1)
                if tag_out >= 40_000:
                    assert ctx.get(dut.s2m_ndr.p.meta_field) == MetaField.NO_OP
            await ctx.tick()
        for port in (dut.i_grant, dut.i_inner, dut.i_own):
            ctx.set(port.valid, 0)
        ctx.set(dut.s2m_ndr.ready, 1)
        await ctx.tick().repeat(2 * Completions.DEPTH)
        assert ctx.get(dut.idle)

    simulate(opened(dut)[0], bench)
    others = [tag for tag in left if tag < 40_000]
    assert others == taken[: len(others)]
    mine = [tag for tag in left if tag >= 40_000]
    assert mine == list(range(40_000, 40_000 + len(mine))) and len(mine) > 200


@pytest.mark.parametrize("bits", [0, 1, 2])
def test_flipped_bits_of_its_queue(bits):
    """Own completions that wait: one bit of a row is corrected and told, two are fatal."""
    dut, left, told = new_completions(), [], Counter()

    async def bench(ctx, memory):
        for tag in range(8):
            ctx.set(dut.i_own.valid, 1)
            ctx.set(dut.i_own.p, {"tag": tag, "ld_id": 1, "ack": 0})
            await ctx.tick()
        ctx.set(dut.i_own.valid, 0)
        await ctx.tick()
        flip(ctx, memory, 6, *(3, 9)[:bits])
        ctx.set(dut.s2m_ndr.ready, 1)
        for _ in range(20):
            told.update(name for name, on in fields(ctx, dut.fault).items() if on)
            if ctx.get(dut.s2m_ndr.valid):
                left.append(ctx.get(dut.s2m_ndr.p.tag))
            await ctx.tick()

    simulate_memory(dut, bench)
    assert told == [{}, {"corrected": 1}, {"fatal": 1}][bits]
    assert len(left) == 8 and (bits == 2 or left == list(range(8)))
