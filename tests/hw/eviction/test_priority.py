# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Recency and priority: the golden arithmetic, the pipeline against it, and the sorted list of
candidates."""

import random

import numpy as np
import pytest
from amaranth.sim import Simulator

from kelp_golden import arithmetic
from kelp_hw.eviction.candidates import CandidateList
from kelp_hw.eviction.priority import PriorityUnit
from kelp_spec.config import named
from kelp_spec.scores import recency_constants
from kelp_verif.harness.runner import run_cocotb


def test_worked_rows():
    m, sh = recency_constants(1000)
    assert arithmetic.priority(13828, arithmetic.decay(50, m, sh)) == 2520
    assert arithmetic.priority(5243, arithmetic.decay(2000, m, sh)) == 52132


@pytest.mark.parametrize("tau", [1, 2, 64, 1000, 65536])
def test_decay_is_monotonic_and_within_2_1_lsb(tau):
    ages = np.concatenate([np.arange(100_000), np.arange(100_000, 1 << 24, 257)])
    d = arithmetic.decay(ages, *recency_constants(tau))
    assert d.min() >= 0 and d.max() <= 65535 and (np.diff(d) >= 0).all()
    # The programmed constant is a rounded one: 2^-16 of it shifts the curve by up to 0.4 LSB.
    assert np.abs(d - np.minimum(65535, 65536 * -np.expm1(-ages / tau))).max() <= 2.1 + 0.4


def test_halving_never_rises():
    """Exhaustive over every exponent."""
    h = arithmetic.halving(np.arange(1 << 21))
    assert h[0] == 65536 and h[-1] == 0 and (np.diff(h) <= 0).all() and (h[2:] < 65536).all()


def test_age_wraps():
    assert arithmetic.age(3, (1 << 24) - 2) == 5


@pytest.mark.parametrize("config", ["unit", "llama70b"])
def test_pipeline_is_the_golden_arithmetic(config):
    run_cocotb(
        PriorityUnit(config=named(config)),
        bench="kelp_verif.eviction.priority_bench",
        test=["worked_rows", "random_sweeps"],
        params={"config": config, "pages": 4000},
        timeout_s=100,
    )


def test_one_page_per_cycle():
    config = "llama70b"
    result = run_cocotb(
        PriorityUnit(config=named(config)),
        bench="kelp_verif.eviction.priority_bench",
        test="full_rate",
        params={"config": config},
        timeout_s=100,
    )
    assert result.records["pages_per_cycle"] == 1 / PriorityUnit.INTERVAL


def test_list_has_a_new_best_after_its_latency():
    dut = CandidateList(config=named("unit"))

    async def bench(ctx):
        for n in range(3):  # each better than the one before, one a cycle
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p, {"priority": n + 1, "page": n})
            await ctx.tick()
        ctx.set(dut.i.valid, 0)
        assert dut.INTERVAL == 1
        assert ctx.get(dut.best.page) == 1
        await ctx.tick().repeat(dut.LATENCY - 1)
        assert ctx.get(dut.best.page) == 2 and ctx.get(dut.best.valid)

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("keep", [1, 4, 8])
def test_list_keeps_the_best_in_order(keep):
    """Random sweeps with many ties: what is taken is the sorted front, with idles between
    insertions."""
    rng = random.Random(keep)
    config = named("unit").with_(candidates=keep, pages=64)
    dut = CandidateList(config=config)
    sweeps = [
        [
            (rng.randrange(3), rng.choice([0, 7, 65535, rng.getrandbits(16)]), page)
            for page in range(64)
            if rng.random() < density
        ]
        for density in (0, 0.05, 0.1, 0.5, 1, 1)
    ]
    taken = []

    async def bench(ctx):
        for pages in sweeps:
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            for kind, priority, page in pages:
                for value in (1, 0)[: rng.randint(1, 2)]:
                    ctx.set(dut.i.valid, value)
                    ctx.set(
                        dut.i.p,
                        {"kind": kind, "priority": priority, "page": page, "last_step": page * 3},
                    )
                    await ctx.tick()
            ctx.set(dut.i.valid, 0)
            await ctx.tick()
            got = []
            while ctx.get(dut.best.valid):
                best = dut.best
                got.append((ctx.get(best.kind), ctx.get(best.priority), ctx.get(best.page)))
                assert ctx.get(best.last_step) == got[-1][2] * 3
                ctx.set(dut.take, 1)
                await ctx.tick()
            ctx.set(dut.take, 0)
            taken.append(got)

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert taken == [sorted(pages, key=lambda c: (c[0], -c[1], c[2]))[:keep] for pages in sweeps]
