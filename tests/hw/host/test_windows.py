# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The window router: each access goes to its window, once, and is answered once, in order."""

import random

import pytest
from amaranth.sim import Simulator
from timing import changes, offers, shown

from kelp_hw.host.windows import WindowRouter
from kelp_hw.pipeline import DECIDED
from kelp_spec.config import named


def test_a_register_access_is_handed_on_in_the_same_cycle():
    block = WindowRouter(config=named("unit"))
    handed = changes(block, shown("o_register", "tag"), offers(field="tag"))
    assert handed == [WindowRouter.ACCESS_LATENCY + k for k in range(3)]


def access(rng, hint):
    return {
        "hint": hint,
        "write": rng.getrandbits(1),
        "offset": rng.getrandbits(4),
        "byte_enable": rng.choice([(1 << 64) - 1, rng.getrandbits(64)]),
        "data": rng.getrandbits(512),
        "ld_id": rng.getrandbits(4),
        "tag": rng.getrandbits(16),
        "poison": int(rng.random() < 0.2),
    }


def run(todo, *, stall=0.0, seed=1):
    """Drives `todo` through a router whose registers answer each access by data that name its tag;
    returns hint lines, register accesses, answers, and the cycle of each of them."""
    dut, rng = WindowRouter(config=named("unit")), random.Random(seed)
    hints, registers, answers = [], [], []

    async def bench(ctx):
        queue, offered, serving, cycle = list(todo), None, None, 0
        shown = {}
        while len(answers) < len(todo):
            assert cycle < 40 * len(todo) + 100, "no answer"
            if offered is None and queue and rng.random() >= stall:
                offered = queue.pop(0)
                ctx.set(dut.i.p, offered)
            ctx.set(dut.i.valid, offered is not None)
            ctx.set(dut.o_hint.ready, rng.random() >= stall)
            ctx.set(dut.o.ready, rng.random() >= stall)
            # The registers: the answer comes while the access stands, which leaves a cycle later.
            leaves = serving == "answered"
            ctx.set(dut.o_register.ready, leaves)
            if serving is None and ctx.get(dut.o_register.valid) and rng.random() >= stall:
                serving = "serving"
                kept = {n: ctx.get(dut.o_register.p[n]) for n in dut.o_register.p.shape().members}
                registers.append((cycle, kept))
                ctx.set(
                    dut.i_register.p,
                    {n: kept[n] for n in ("write", "tag", "ld_id")} | {"data": kept["tag"] + 1},
                )
            ctx.set(dut.i_register.valid, serving == "serving")
            for name, port in (("hint", dut.o_hint), ("answer", dut.o)):
                now = ctx.get(port.valid), {n: ctx.get(port.p[n]) for n in port.p.shape().members}
                if name in shown:
                    assert now == shown[name], f"{name} was withdrawn or changed"
                shown.pop(name, None)
                if now[0] and not ctx.get(port.ready):
                    shown[name] = now
                if now[0] and ctx.get(port.ready):
                    (hints if name == "hint" else answers).append((cycle, now[1]))
            if serving == "serving" and ctx.get(dut.i_register.ready):
                serving = "answered"
            elif leaves:
                serving = None
            if ctx.get(dut.i.valid) and ctx.get(dut.i.ready):
                offered = None
            await ctx.tick()
            cycle += 1
        ctx.set(dut.i.valid, 0)
        await ctx.delay(1e-9)
        assert ctx.get(dut.idle)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return hints, registers, answers


@pytest.mark.parametrize("stall", [0.0, 0.3, 0.7])
def test_every_access_goes_to_its_window_and_is_answered_in_order(stall):
    rng = random.Random(f"windows {stall}")
    todo = [access(rng, int(rng.random() < 0.6)) for _ in range(300)]
    hints, registers, answers = run(todo, stall=stall, seed=stall)
    assert [line for _, line in hints] == [
        {
            "data": a["data"],
            "ld_id": a["ld_id"],
            "broken": int(a["poison"] or a["byte_enable"] != (1 << 64) - 1),
        }
        for a in todo
        if a["hint"] and a["write"]
    ]
    assert [line for _, line in registers] == [
        {name: value for name, value in a.items() if name != "hint"} for a in todo if not a["hint"]
    ]
    assert [answer for _, answer in answers] == [
        {name: a[name] for name in ("write", "tag", "ld_id")}
        | {"data": 0 if a["hint"] else a["tag"] + 1}
        for a in todo
    ]


def test_latency_and_interval_are_what_the_class_says():
    rng = random.Random(2)
    todo = [access(rng, 1) | {"write": 1} for _ in range(50)]
    hints, _, answers = run(todo)
    came = [cycle for cycle, _ in hints]
    assert {b - a for a, b in zip(came, came[1:], strict=False)} == {WindowRouter.INTERVAL}
    assert {cycle - c for (cycle, _), c in zip(answers, came, strict=True)} == {
        WindowRouter.LATENCY
    }


@pytest.mark.parametrize("busy", [0, 20, 1000])
def test_a_register_access_waits_until_hints_have_taken_effect(busy):
    """As long as the absorber is busy, and its last op on the way; 255 cycles at most."""
    dut = WindowRouter(config=named("unit"))

    async def bench(ctx):
        ctx.set(dut.hints_busy, busy > 0)
        await ctx.tick()
        ctx.set(dut.i.valid, 1)
        waited = 0
        while not ctx.get(dut.o_register.valid):
            waited += 1
            ctx.set(dut.hints_busy, waited < busy)
            await ctx.tick()
        most = DECIDED + 5
        assert waited == 0 if not busy else min(busy, 255) <= waited <= min(busy + most, 255)
        for _ in range(40):  # it stays
            await ctx.tick()
            assert ctx.get(dut.o_register.valid)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
