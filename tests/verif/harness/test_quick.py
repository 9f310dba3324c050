# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A bench whose design settles once for all that it sets sees what Amaranth's own shows it."""

import random

import pytest
from amaranth.hdl import Array, Cat, Module, Signal, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from quick import settled_late

PAIR = data.StructLayout({"low": unsigned(3), "high": data.ArrayLayout(unsigned(2), 2)})


class Block(wiring.Component):
    """Fields, signs, a register, and what depends on its inputs in the same cycle."""

    def __init__(self):
        super().__init__(
            {"a": In(4), "b": In(signed(4)), "pair": In(PAIR), "at": In(1)}
            | {"sum": Out(signed(6)), "held": Out(PAIR), "seen": Out(8)}
        )

    def elaborate(self, platform):
        m = Module()
        m.d.comb += [
            self.sum.eq(self.a + self.b),
            self.seen.eq(Cat(self.pair.low, self.held.high[0], Array(self.pair.high)[self.at])),
        ]
        m.d.sync += self.held.eq(self.pair)
        return m


def _seen(wrapped, seed):
    """All that a bench reads which sets and reads at random."""
    block, rng, found = Block(), random.Random(seed), []

    async def bench(ctx):
        for _ in range(400):
            match rng.randrange(8):
                case 0:
                    ctx.set(block.a, rng.randrange(16))
                case 1:
                    ctx.set(block.b, rng.randrange(-8, 8))
                case 2:
                    ctx.set(block.pair, {"low": rng.randrange(8), "high": [1, rng.randrange(4)]})
                case 3:
                    ctx.set(block.pair.high[rng.randrange(2)], rng.randrange(4))
                case 4:
                    ctx.set(block.a[1:3], rng.randrange(4))
                case 5:
                    ctx.set(block.at, rng.randrange(2))
                case 6:
                    await ctx.tick().repeat(rng.randrange(1, 3))
                case 7:
                    _, _, *sampled = await ctx.tick().sample(block.sum, block.seen)
                    found.append(sampled)
            if rng.random() < 0.6:
                found.append(
                    [
                        ctx.get(block.sum),
                        ctx.get(block.b),
                        ctx.get(block.held.high[1]),
                        ctx.get(block.held).as_bits(),
                        ctx.get(block.sum + block.seen),
                        ctx.get(block.seen[2:5]),
                    ]
                )

    simulator = Simulator(block)
    simulator.add_clock(1e-6)
    simulator.add_testbench(wrapped(bench))
    simulator.run()
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_bench_sees_what_it_would(seed):
    assert _seen(settled_late, seed) == _seen(lambda bench: bench, seed)


def test_what_the_block_drives_is_not_set():
    block = Block()

    async def bench(ctx):
        ctx.set(block.seen, 1)

    simulator = Simulator(block)
    simulator.add_clock(1e-6)
    simulator.add_testbench(settled_late(bench))
    with pytest.raises(Exception, match="driven"):
        simulator.run()


def test_expressions_without_end_are_forgotten(monkeypatch):
    """One that is made in each cycle has the id of another before it."""
    monkeypatch.setattr("kelp_verif.harness.places._MOST", 20)
    block, seen = Block(), []

    async def bench(ctx):
        for n in range(300):
            ctx.set(block.a, n % 16)
            seen.append(ctx.get(block.a[n % 4]) == n % 16 >> n % 4 & 1)
            seen.append(ctx.get(Signal(init=1)) == 1)

    simulator = Simulator(block)
    simulator.add_clock(1e-6)
    simulator.add_testbench(settled_late(bench))
    simulator.run()
    assert len(seen) == 600 and all(seen)
