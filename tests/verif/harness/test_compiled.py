# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A testbench on a compiled block: what it sees is what Amaranth's simulator shows."""

import random

import pytest
import simulation
from amaranth.hdl import Assert, Const, Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_verif.harness import compiled

PAIR = data.StructLayout({"small": 3, "large": signed(70)})


class Sum(wiring.Component):
    """The sum of what was taken, next to an input without a register; never 999."""

    def __init__(self):
        super().__init__(
            {
                "i": In(stream.Signature(PAIR, always_ready=True)),
                "interrupt": In(5, init=9),
                "sum": Out(signed(80)),
                "both": Out(data.StructLayout({"a": 3, "b": 5})),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [self.both.a.eq(self.i.p.small), self.both.b.eq(self.interrupt)]
        with m.If(self.i.valid):
            m.d.sync += self.sum.eq(self.sum + self.i.p.large)
        m.d.sync += Assert(self.sum != 999, "the sum is 999")
        return m


def seen(simulate):
    dut, rng, out = Sum(), random.Random(1), []

    async def bench(ctx):
        out.append((ctx.get(dut.both.b), ctx.get(dut.i.ready)))
        for _ in range(100):
            ctx.set(dut.i.valid, rng.random() < 0.5)
            ctx.set(
                dut.i.p, {"small": rng.randrange(8), "large": rng.randrange(-(1 << 69), 1 << 69)}
            )
            ctx.set(dut.i.p.small, rng.randrange(8))
            ctx.set(dut.interrupt[1:4], rng.randrange(8))
            out.append(
                (ctx.get(dut.sum), ctx.get(dut.both), ctx.get(dut.i.p.large), ctx.get(dut.both.a))
            )
            await ctx.tick()

    simulate(dut, bench)
    return out


def test_it_sees_what_amaranths_simulator_shows():
    assert seen(compiled.simulate) == seen(simulation.simulate)


async def fails(ctx, dut):
    """The sum becomes 999."""
    ctx.set(dut.i.p.large, 999)
    ctx.set(dut.i.valid, 1)
    for _ in range(3):
        await ctx.tick()


def test_an_assert_of_the_block_is_an_error():
    dut = Sum()

    async def bench(ctx):
        await fails(ctx, dut)

    with pytest.raises(AssertionError, match="an Assert of the block failed"):
        compiled.simulate(dut, bench)


def test_an_assert_is_told_of_the_block_that_it_is_in():
    """Also where another block was built since, and is gone."""
    dut = Sum()

    async def nothing(ctx):
        await ctx.tick()

    async def bench(ctx):
        compiled.simulate(Sum(), nothing)
        await fails(ctx, dut)

    with pytest.raises(AssertionError, match="an Assert of the block failed"):
        compiled.simulate(dut, bench)


def test_what_is_no_port_is_out_of_reach():
    dut, other = Sum(), Signal(name="other")

    async def bench(ctx):
        ctx.get(other)

    with pytest.raises(ValueError, match=r"\(sig other\) is no port of the block"):
        compiled.simulate(dut, bench)


def test_a_constant_is_not_set():
    async def bench(ctx):
        ctx.set(Const(1), 0)

    with pytest.raises(ValueError, match="is a constant"):
        compiled.simulate(Sum(), bench)
