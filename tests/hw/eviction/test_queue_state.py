# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Queue state: residency map, excess trees, newest page and requester, against the golden model."""

import dataclasses
import random

import pytest
from flips import NO_FAULT, fields, flip, opened
from simulation import simulate

from kelp_golden.eviction import QueueState as GoldenQueueState
from kelp_hw.eviction.queue_state import QueueState
from kelp_spec.config import POOLS, named
from kelp_spec.metadata import PageState
from kelp_spec.policy import Policy
from kelp_verif.harness.runner import made, run_cocotb

WIDE = named("unit").with_(pages=256)  # several words of the map per queue


def run(config, test, **params):
    params["config"] = dataclasses.asdict(config)
    return run_cocotb(
        made(QueueState, config=config),
        bench="kelp_verif.eviction.queue_state_bench",
        test=test,
        params=params,
        timeout_s=200,
    )


@pytest.mark.parametrize(
    "config", [named("unit"), pytest.param(WIDE, marks=pytest.mark.night)], ids=["unit", "wide"]
)
def test_queue_state_is_its_golden_model(config):
    records = run(config, "random_results", rounds=100).records
    assert (
        records["checks"] == 100
        and records["results"] > 300
        and records["roots"] > 10
        and records["within"] > 5
        and records["offers"] > 5
        and records["words_read"] > 300
    )


def test_an_event_costs_one_walk_over_640_queues():
    config = named("ulx3s")
    cycles = run(config, "cost_of_an_event").records["cycles"]
    assert cycles == QueueState(config=config).INTERVAL


@pytest.mark.parametrize("lists", [True, False], ids=["listed", "unlisted"])
@pytest.mark.parametrize("use", ["shown", "refreshed", "looked up", "offered"])
@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.sampled
def test_settings_are_told_of_where_lines_are_counted(bits, use, lists):
    """Bits flip in the settings of a queue, and its lines are shown to the registers, its excess is
    worked out anew, or the evictor asks for it. Where it lists no page there is nothing to count,
    and its row may have been written by nobody."""
    config, squeue = named("unit"), 1
    dut = QueueState(config=config)
    top, memories = opened(dut)
    (rows,) = (data for path, data in memories.items() if path.startswith("settings."))

    async def bench(ctx):
        faults = dict(NO_FAULT)

        async def cycles(count):
            for _ in range(count):
                await ctx.tick()
                for name, said in fields(ctx, dut.fault).items():
                    faults[name] |= said

        async def configure(other):
            ctx.set(dut.config_write.p.squeue, other)
            ctx.set(dut.config_write.valid, 1)
            await cycles(1)
            ctx.set(dut.config_write.valid, 0)

        async def asked(request):
            ctx.set(request.valid, 1)
            while not ctx.get(request.ready):
                await cycles(1)
            await cycles(1)
            ctx.set(request.valid, 0)

        while not ctx.get(dut.initialised):
            await ctx.tick()
        await configure(squeue)
        if lists:
            r = dut.i_result.p
            ctx.set(r.op.squeue, squeue)
            ctx.set(r.word.state, PageState.RESIDENT)
            ctx.set(r.changed, 1)
            ctx.set(dut.i_result.valid, 1)
            await cycles(1)
            ctx.set(dut.i_result.valid, 0)
        await cycles(400)  # until all queues are refreshed
        assert ctx.get(dut.idle) and faults == NO_FAULT
        flip(ctx, rows, squeue, *range(bits))
        if use == "shown":
            ctx.set(dut.resident_squeue, squeue)
        elif use == "refreshed":
            await configure(squeue + 1)
        elif use == "looked up":
            ctx.set(dut.view.lookup.request.p, squeue)
            await asked(dut.view.lookup.request)
        else:
            ctx.set(dut.view.offer.request.p.squeue, squeue)
            await asked(dut.view.offer.request)
        await cycles(400)
        # What is shown is read again and again, so that one flipped bit is not counted there.
        told = lists and (bits == 2 or use != "shown")
        assert faults == NO_FAULT | {"corrected" if bits == 1 else "fatal": int(told)}
        if bits == 1 and use == "shown":
            assert ctx.get(dut.resident_known)
            assert ctx.get(dut.resident_lines) == lists * config.frame_lines[0]

    simulate(top, bench)


@pytest.mark.parametrize("policy", [0, 1], ids=["plain", "kelp"])
def test_a_queue_that_goes_to_another_pool_leaves_the_first_ones_tree(policy):
    """A session is closed, and opened with other formats at once: its queue's pool is written while
    pages of the owner before still leave, one event behind the other. Nothing of them is left in
    the tree of the pool that they were of."""
    config, squeue, (old, new) = named("unit"), 1, (0, 2)
    dut = QueueState(config=config)
    pages = min(config.pages, config.frames[old])

    async def bench(ctx):
        async def configure(pool, policy):
            write = dut.config_write
            ctx.set(write.p.squeue, squeue)
            ctx.set(write.p.queue_config.pool, pool)
            ctx.set(write.p.queue_config.policy, policy)
            ctx.set(write.valid, 1)
            await ctx.tick()
            ctx.set(write.valid, 0)

        async def results(pool, before, after):
            r = dut.i_result.p
            for page in range(pages):
                ctx.set(r.op.squeue, squeue)
                ctx.set(r.op.page, page)
                ctx.set(r.pool, pool)
                ctx.set(r.old.state, before)
                ctx.set(r.word.state, after)
                ctx.set(r.changed, 1)
                ctx.set(dut.i_result.valid, 1)
                await ctx.tick()
            ctx.set(dut.i_result.valid, 0)

        async def rest():
            for _ in range(4):
                await ctx.tick()
            while not ctx.get(dut.idle):
                await ctx.tick()
            return [ctx.get(root.excess) for root in dut.view.roots]

        while not ctx.get(dut.initialised):
            await ctx.tick()
        await configure(old, 0)
        await results(old, PageState.ABSENT, PageState.RESIDENT)
        excess = await rest()
        assert excess[old] and not any(excess[1:])
        await results(old, PageState.RESIDENT, PageState.ABSENT)
        await ctx.tick()
        assert not ctx.get(dut.idle), "everything was absorbed before the queue was given a pool"
        await configure(new, policy)
        assert await rest() == [0] * len(POOLS)
        await results(new, PageState.ABSENT, PageState.RESIDENT)
        excess = await rest()
        assert bool(excess[new]) == (not policy) and not excess[old]

    simulate(dut, bench)


async def offer(ctx, dut, squeue, excess):
    """What the queue offers, until it is taken."""
    request = dut.view.offer.request
    ctx.set(request.p, {"squeue": squeue, "excess": excess})
    ctx.set(request.valid, 1)
    while not ctx.get(request.ready):
        await ctx.tick()
    await ctx.tick()
    ctx.set(request.valid, 0)
    while not ctx.get(dut.view.offer.done):
        await ctx.tick()


@pytest.mark.parametrize("offered", [0, 1, 60_000])
def test_an_offer_that_comes_behind_the_last_page_is_none(offered):
    """A session closes while the evictor is at a queue of it: what the rest of its list would offer
    comes when its last page has gone. It would stand in the tree of a pool that the queue leaves
    with its session, before all that others offer there."""
    config, squeue = named("unit"), 1
    dut, golden = QueueState(config=config), GoldenQueueState(config)

    async def bench(ctx):
        async def rest():
            await ctx.tick().repeat(4)
            while not ctx.get(dut.idle):
                await ctx.tick()
            return ctx.get(dut.view.roots[0])

        async def told(before, after):
            golden.observe(squeue, 0, before, after)
            r = dut.i_result.p
            ctx.set(r.op.squeue, squeue)
            ctx.set(r.old.state, before)
            ctx.set(r.word.state, after)
            ctx.set(r.changed, 1)
            ctx.set(dut.i_result.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_result.valid, 0)
            await rest()

        async def offers():
            golden.offer(squeue, offered)
            await offer(ctx, dut, squeue, offered)
            excess = (await rest()).excess
            assert bool(excess) == (golden.root(0)[0] is not None)
            return bool(excess)

        while not ctx.get(dut.initialised):
            await ctx.tick()
        golden.configure(squeue, 0, 0, Policy.KELP)
        write = dut.config_write
        ctx.set(write.p.squeue, squeue)
        ctx.set(write.p.queue_config.policy, Policy.KELP)
        ctx.set(write.valid, 1)
        await ctx.tick()
        ctx.set(write.valid, 0)
        await told(PageState.ABSENT, PageState.RESIDENT)
        assert await offers() == bool(offered)
        await told(PageState.RESIDENT, PageState.ABSENT)
        assert not await offers()
        await told(PageState.ABSENT, PageState.RESIDENT)
        assert not (await rest()).excess

    simulate(dut, bench)


@pytest.mark.parametrize("offered", [0, 1, 60_000])
def test_an_offer_that_comes_after_the_policy_has_changed_is_none(offered):
    """The queue has a budget by then: what stands in the tree is what it has beyond that, so that
    it neither gives what it may keep nor keeps what is to go."""
    config, squeue = named("unit"), 1
    dut = QueueState(config=config)

    async def bench(ctx):
        async def rest():
            await ctx.tick().repeat(4)
            while not ctx.get(dut.idle):
                await ctx.tick()
            return ctx.get(dut.view.roots[0])

        while not ctx.get(dut.initialised):
            await ctx.tick()
        r, write = dut.i_result.p, dut.config_write
        ctx.set(write.p.squeue, squeue)
        ctx.set(write.valid, 1)
        await ctx.tick()
        ctx.set(write.valid, 0)
        ctx.set(r.op.squeue, squeue)
        ctx.set(r.word.state, PageState.RESIDENT)
        ctx.set(r.changed, 1)
        ctx.set(dut.i_result.valid, 1)
        await ctx.tick()
        ctx.set(dut.i_result.valid, 0)
        root = await rest()
        assert root.squeue == squeue and root.excess
        await offer(ctx, dut, squeue, offered)
        after = await rest()
        assert (after.squeue, after.excess) == (squeue, root.excess)

    simulate(dut, bench)


def test_golden_root_is_the_largest_excess():
    rng = random.Random(5)
    config = named("unit")
    queues = GoldenQueueState(config)
    for _ in range(3000):
        squeue = rng.randrange(config.squeues)
        if rng.random() < 0.1:
            if not queues.listed[squeue]:
                queues.configure(squeue, rng.randrange(4), rng.choice([0, 8, 20]))
        else:
            queues.observe(
                squeue,
                rng.randrange(config.pages),
                0,
                rng.choice([PageState.RESIDENT, PageState.COLD]),
            )
        for pool in range(4):
            excess = {
                q: queues.resident_lines(q) - queues.budget[q]
                for q in range(config.squeues)
                if queues.pool[q] == pool and queues.listed[q]
            }
            root = max(excess, key=lambda q: (excess[q], -q), default=None)
            assert queues.root(pool) == ((None, 0) if root is None else (excess[root], root))


def test_golden_budgets_without_a_limit_are_equal():
    """The registers hold larger budgets than the device has lines (`SessionControl` takes the most
    that it can tell): whose budget has the larger number does not decide then."""
    config = named("unit")
    queues, most = GoldenQueueState(config), 1 << config.dram_line_bits
    for squeue, budget in ((0, most - 1), (1, most), (2, (1 << 31) - 1)):
        queues.configure(squeue, 0, budget)
        for page in range(squeue + 1):
            queues.observe(squeue, page, PageState.ABSENT, PageState.RESIDENT)
    assert queues.root(0) == (3 * config.frame_lines[0] - most + 1, 2)
