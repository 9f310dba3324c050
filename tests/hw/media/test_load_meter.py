# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""DevLoad: what each answer says of the requests that wait."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.media.load_meter import LoadMeter
from kelp_spec.messages import DevLoad, M2SReq

DEPTH = 16


def test_the_load_follows_what_waits_and_an_answer_keeps_its_own():
    rng, dut = random.Random(4), LoadMeter(depth=DEPTH, most=64)
    seen = set()

    async def bench(ctx):
        waiting = load = before = 0
        offered: dict = {}
        for cycle in range(4000):
            busy = rng.random() < (0.5 if cycle // 400 % 2 else 0.1)
            spec = rng.random() < 0.2
            req, rwd = busy and waiting < 40, busy and waiting < 40 and rng.random() < 0.5
            ctx.set(dut.taken_req.valid, req)
            ctx.set(dut.taken_req.p.opcode, M2SReq.MEM_SPEC_RD if spec else M2SReq.MEM_RD)
            ctx.set(dut.taken_rwd, rwd)
            owed = waiting
            for name in ("drs", "ndr"):
                port = getattr(dut, "i_" + name)
                if name not in offered and owed > len(offered) and rng.random() < 0.3:
                    offered[name] = None
                ctx.set(port.valid, name in offered)
                ctx.set(port.p.dev_load, rng.randrange(4))
                ready = rng.random() < 0.6
                ctx.set(getattr(dut, "o_" + name).ready, ready)
                assert ctx.get(port.ready) == ready
            told = 0
            assert ctx.get(dut.load) == before
            for name in list(offered):
                says = ctx.get(getattr(dut, "o_" + name).p.dev_load)
                if offered[name] is None:
                    offered[name] = says
                    assert says == before
                assert says == offered[name]
                seen.add(says)
                if ctx.get(getattr(dut, "o_" + name).ready):
                    told += 1
                    del offered[name]
            load = min(3, waiting * 4 // DEPTH)
            waiting += (req and not spec) + rwd - told
            await ctx.tick()
            before = load

    simulate(dut, bench)
    assert seen == set(DevLoad)


def test_of_reads_alone_their_data_answers():
    """With `reads` completions and what has no data neither add nor take away."""
    dut = LoadMeter(depth=DEPTH, most=64, reads=True)

    async def bench(ctx):
        ctx.set(dut.o_drs.ready, 1)
        ctx.set(dut.o_ndr.ready, 1)
        ctx.set(dut.taken_rwd, 1)
        for opcode in (M2SReq.MEM_INV, M2SReq.MEM_CLN_EVCT, M2SReq.MEM_SPEC_RD):
            ctx.set(dut.taken_req.valid, 1)
            ctx.set(dut.taken_req.p.opcode, opcode)
            ctx.set(dut.i_ndr.valid, 1)
            for _ in range(DEPTH):
                await ctx.tick()
            assert ctx.get(dut.load) == DevLoad.LIGHT
        ctx.set(dut.taken_req.p.opcode, M2SReq.MEM_RD_DATA)
        for _ in range(DEPTH):
            await ctx.tick()
        ctx.set(dut.taken_req.valid, 0)
        await ctx.tick()
        assert ctx.get(dut.load) == DevLoad.SEVERE
        ctx.set(dut.i_drs.valid, 1)
        for _ in range(DEPTH):
            await ctx.tick()
        ctx.set(dut.i_drs.valid, 0)
        await ctx.tick()
        assert ctx.get(dut.load) == DevLoad.LIGHT

    simulate(dut, bench)


def test_an_answer_to_no_request_is_an_assertion():
    async def bench(ctx):
        ctx.set(dut.i_drs.valid, 1)
        ctx.set(dut.o_drs.ready, 1)
        for _ in range(2):
            await ctx.tick()

    dut = LoadMeter(depth=DEPTH, most=64)
    with pytest.raises(AssertionError, match="an answer to no request"):
        simulate(dut, bench)


def test_a_depth_that_is_none_is_refused():
    with pytest.raises(ValueError, match="depth = 6 is refused"):
        LoadMeter(depth=6, most=8)


def test_latency_and_interval():
    dut = LoadMeter(depth=4, most=8)
    given = [{"taken_rwd": 1}] * 3
    assert changes(dut, "load", given) == [dut.LOAD_LATENCY + k * dut.INTERVAL for k in range(3)]
    given = [{"i_drs.valid": 1, "i_drs.p.tag": 5, "taken_rwd": 1}]
    assert changes(dut, "o_drs.p.tag", given) == [dut.LATENCY]
