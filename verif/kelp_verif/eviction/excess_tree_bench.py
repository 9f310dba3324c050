# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The excess tree alone, beside a model of its contract: leaves at random, often equal or a bit
apart, one as soon as another is done; each root after each walk, how long a walk takes, and that a
reset, amid anything, leaves nothing of what was given before it."""

import random

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_hw.eviction.excess_tree import ExcessTree
from kelp_hw.eviction.signatures import EvictionLayouts
from kelp_hw.export.packing import Packing
from kelp_spec.config import POOLS, Config

from ..harness.clocking import start_quiet
from ..harness.runner import bench_params, record


class TB:
    def __init__(self, dut):
        self.dut, self.rng = dut, random.Random(cocotb.RANDOM_SEED)
        self.config = Config.of_json(bench_params()["config"])
        root = EvictionLayouts(self.config).root
        self.root, self.root_bits = Packing(root), root.size
        self.excess_bits = self.root.fields["excess"][1].bit_length()
        self.latency = ExcessTree(config=self.config).LATENCY
        self.forget()
        self.walks = self.ties = self.resets = self.amid = 0

    def forget(self):
        """After a reset nobody has any excess."""
        self.given = [[0] * self.config.squeues for _ in POOLS]

    def largest(self, pool):
        """(excess, squeue) that the root has; the squeue says nothing where the excess is 0."""
        given = self.given[pool]
        excess = max(given)
        return excess, given.index(excess) if excess else None

    def check(self, but=None):
        """Each root but that of the pool `but`; in the read-only phase."""
        roots = int(self.dut.roots.value)
        for pool in range(len(POOLS)):
            root = self.root.unpack(roots >> pool * self.root_bits & (1 << self.root_bits) - 1)
            excess, squeue = self.largest(pool)
            assert pool == but or (root["excess"] == excess and squeue in (None, root["squeue"])), (
                f"pool {pool}: {root}, expected {excess} of {squeue}"
            )

    def nonsense(self):
        """What stands beside a `start` that is low is nothing."""
        rng, dut = self.rng, self.dut
        dut.start.value = 0
        dut.pool.value = rng.randrange(len(POOLS))
        dut.squeue.value = rng.randrange(self.config.squeues)
        dut.excess.value = rng.getrandbits(self.excess_bits)

    def offer(self, pool, squeue, excess):
        dut = self.dut
        dut.start.value, dut.pool.value = 1, pool
        dut.squeue.value, dut.excess.value = squeue, excess

    async def idle(self, cycles):
        for _ in range(cycles):
            self.nonsense()
            await ReadOnly()
            assert not self.dut.busy.value, "busy, and nothing was given"
            self.check()
            await RisingEdge(self.dut.clk)

    async def walk(self, pool, squeue, excess):
        """One leaf, from a cycle in which the block is not busy to the next."""
        dut = self.dut
        self.offer(pool, squeue, excess)
        await ReadOnly()
        assert not dut.busy.value
        await RisingEdge(dut.clk)
        given = self.given[pool]
        self.ties += excess > 0 and excess == max(given)
        given[squeue] = excess
        for _ in range(self.latency):
            self.nonsense()
            await ReadOnly()
            assert dut.busy.value, "a walk is over too soon"
            self.check(but=pool)
            await RisingEdge(dut.clk)
        self.nonsense()
        await ReadOnly()
        assert not dut.busy.value, "a walk takes too long"
        self.check()
        self.walks += 1
        await RisingEdge(dut.clk)

    async def reset(self):
        """Of one cycle, and the clearing after it, which is not longer than it must be."""
        dut = self.dut
        self.nonsense()
        dut.rst.value = 1
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        self.forget()
        await self.cleared()
        self.resets += 1

    async def cleared(self):
        for _ in range(2 * len(POOLS) << self.config.squeue_bits):
            self.nonsense()
            await ReadOnly()
            self.check()
            busy = self.dut.busy.value
            await RisingEdge(self.dut.clk)
            if not busy:
                return
        await ReadOnly()
        assert not self.dut.busy.value, "clearing takes longer than a cycle for each node"
        await RisingEdge(self.dut.clk)

    def an_excess(self):
        """Often what some queue has, or a bit beside it."""
        rng, bits = self.rng, self.excess_bits
        some = rng.choice(rng.choice(self.given))
        near = some ^ 1 << rng.randrange(bits)
        return rng.choice(
            [0, some, near, rng.getrandbits(bits), (1 << bits) - 1 - rng.randrange(2)]
        )


async def started(dut):
    tb = TB(dut)
    await start_quiet(dut, "start", "pool", "squeue", "excess")
    await tb.cleared()
    return tb


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def contract(dut):
    tb = await started(dut)
    rng, c = tb.rng, tb.config
    while tb.walks < bench_params()["walks"]:
        pools = rng.sample(range(len(POOLS)), rng.choice([1, 4]))
        few = rng.sample(range(c.squeues), min(4, c.squeues))
        idle = rng.choice([0, 0.5])
        for _ in range(40):
            squeue = rng.choice(few) if rng.random() < 0.5 else rng.randrange(c.squeues)
            await tb.walk(rng.choice(pools), squeue, tb.an_excess())
            if rng.random() < idle:
                await tb.idle(rng.randrange(1, 4))
    record(walks=tb.walks, ties=tb.ties)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def nothing_outlives_a_reset(dut):
    """Each node has something before a reset. After it every other queue says that it has no
    excess, so that each leaf beside, and each node above in one of two orders, is looked at before
    it is written."""
    tb = await started(dut)
    rng, c = tb.rng, tb.config
    order = [rng.sample(range(0, c.squeues, 2), c.squeues // 2) for _ in POOLS]
    for aside in (0, 1):
        for step in (1, -1):
            for pool in range(len(POOLS)):
                for squeue in range(c.squeues):
                    await tb.walk(pool, squeue, rng.randrange(1, 1 << tb.excess_bits))
            await tb.reset()
            for pool in range(len(POOLS)):
                for squeue in order[pool][::step]:
                    await tb.walk(pool, squeue | aside, 0)
    record(resets=tb.resets, walks=tb.walks)


@cocotb.test(timeout_time=20, timeout_unit="ms")
async def a_reset_ends_a_walk(dut):
    """And a clearing, wherever it is."""
    tb = await started(dut)
    rng, c, dut = tb.rng, tb.config, tb.dut
    nodes = 2 * len(POOLS) << c.squeue_bits - 1
    moments = [*range(tb.latency), *rng.sample(range(tb.latency, nodes), 4)]
    for moment in moments:
        pool, squeue = rng.randrange(len(POOLS)), rng.randrange(c.squeues)
        for each in range(len(POOLS)):
            await tb.walk(each, rng.randrange(c.squeues), rng.randrange(1, 1 << tb.excess_bits))
        if moment < tb.latency:
            tb.offer(pool, squeue, (1 << tb.excess_bits) - 1)
        else:
            dut.rst.value = 1
        await RisingEdge(dut.clk)
        dut.rst.value = 0
        for _ in range(moment):
            tb.nonsense()
            await RisingEdge(dut.clk)
        await tb.reset()
        for each in range(len(POOLS)):
            await tb.walk(each, squeue, rng.randrange(8))
    record(resets=tb.resets)
