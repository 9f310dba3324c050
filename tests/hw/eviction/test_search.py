# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The parts of a search for victims: which pool needs a frame, what the policies decide, prefetches
of policy `kelp`; their latencies and intervals."""

from amaranth.sim import Simulator

from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_hw.eviction.plain_search import PlainSearch
from kelp_hw.eviction.policy_prefetch import PolicyPrefetch
from kelp_hw.eviction.pool_need import PoolNeed
from kelp_hw.eviction.signatures import Moment, Verdict
from kelp_spec.config import named
from kelp_spec.metadata import Op, PageState, PrefetchSource

UNIT = named("unit")


def simulate(dut, bench):
    simulator = Simulator(dut)
    simulator.add_clock(1e-8, if_exists=True)
    simulator.add_testbench(bench)
    simulator.run()


async def cycles_until(ctx, signal, limit=20):
    """Cycles until the signal is on; the inputs were set in this one."""
    for cycle in range(limit):
        if ctx.get(signal):
            return cycle
        await ctx.tick()
    raise AssertionError(f"{signal} is off after {limit} cycles")


def test_pools_below_the_mark_take_turns():
    dut = PoolNeed(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.low_water, 2)
        await ctx.tick().repeat(3)
        ctx.set(dut.pools.used, [1, 1, 0, 1])
        ctx.set(dut.pools.spare, [1, 2, 0, 0])
        assert await cycles_until(ctx, dut.need.valid) == dut.LATENCY
        served = []
        ctx.set(dut.begin, 1)
        for _ in range(4):
            served.append(ctx.get(dut.need.pool))
            await ctx.tick().repeat(dut.INTERVAL)
        assert served == [0, 3, 0, 3]  # pool 1 has enough, pool 2 gives nothing

    simulate(dut, bench)


def test_evictions_run_ahead_for_every_entry_that_waits():
    """As many side by side as entries wait and as are to be kept free."""
    dut = PoolNeed(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.low_water, 1)
        ctx.set(dut.pools.used, [8, 0, 0, 0])
        ctx.set(dut.pools.spare, [-2, 0, 0, 0])
        await ctx.tick().repeat(3)
        for under_way in range(4):
            ctx.set(dut.slots.count, [under_way, 0, 0, 0])
            await ctx.tick()
            assert ctx.get(dut.need.valid) == (under_way < 3)

    simulate(dut, bench)


def test_a_pool_without_a_victim_rests_until_one_may_have_appeared():
    dut = PoolNeed(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.pools.used, [1, 0, 0, 0])
        await cycles_until(ctx, dut.need.valid)
        for appears in (0, 1):  # a page that becomes resident during a search counts
            ctx.set(dut.begin, 1)
            await ctx.tick()
            ctx.set(dut.begin, 0)
            ctx.set(dut.i_result.valid, appears)
            ctx.set(dut.i_result.p.changed, 1)
            ctx.set(dut.i_result.p.word.state, PageState.RESIDENT)
            await ctx.tick()
            ctx.set(dut.i_result.valid, 0)
            assert ctx.get(dut.unreported) == 1 - appears
            ctx.set(dut.failed, 1)
            await ctx.tick()
            ctx.set(dut.failed, 0)
            await ctx.tick().repeat(2)
            assert ctx.get(dut.need.valid) == appears and not ctx.get(dut.unreported)
            if not appears:
                ctx.set(dut.i_result.p.op.kind, Op.RELEASE)
                ctx.set(dut.i_result.valid, 1)
                await ctx.tick()
                ctx.set(dut.i_result.valid, 0)
                await cycles_until(ctx, dut.need.valid)

    simulate(dut, bench)


def test_policy_0_answers_in_the_same_cycle():
    dut = PlainSearch(config=UNIT)
    facts, verdict = dut.search.facts, dut.search.verdict
    rows = (
        (Moment.JUDGE, {"usable": 1, "eligible": 1}, Verdict.TAKE),
        (Moment.JUDGE, {"eligible": 1}, Verdict.SWEEP),
        (Moment.JUDGE, {}, Verdict.NEXT),
        (Moment.SWEPT, {}, Verdict.TAKE),
        (Moment.EMPTY, {"fresh": 1}, Verdict.NEXT),
        (Moment.EMPTY, {}, Verdict.LOOK),
        (Moment.GIVEN, {}, Verdict.DONE),
    )
    assert (dut.LATENCY, dut.INTERVAL) == (0, 1)

    async def bench(ctx):
        for moment, known, expected in rows:
            ctx.set(dut.search.moment, moment)
            ctx.set(facts, known)
            assert ctx.get(verdict) == expected, (moment, known)

    simulate(dut, bench)


def test_policy_kelp_offers_what_it_swept_and_sweeps_what_gives_more_gladly():
    dut = KelpSearch(config=UNIT)
    search = dut.search
    known = {"squeue": 1, "kelp": 1, "eligible": 1, "evict": 1, "root": 2, "gladly": 1}
    assert (dut.LATENCY, dut.INTERVAL) == (0, 1)

    async def ask(ctx, moment, **facts):
        ctx.set(search.moment, moment)
        ctx.set(search.facts, {**known, **facts})
        verdict, move = ctx.get(search.verdict), ctx.get(search.move)
        await ctx.tick()
        ctx.set(search.moment, Moment.NONE)
        return verdict, move.valid and move.squeue

    async def offered(ctx, excess):
        """The offer is made; then the next verdict."""
        assert ctx.get(dut.offer.request.valid)
        assert ctx.get(dut.offer.request.p.excess) == excess
        ctx.set(dut.offer.request.ready, 1)
        await ctx.tick()
        ctx.set(dut.offer.request.ready, 0)
        await ctx.tick()
        ctx.set(dut.offer.done, 1)
        await ctx.tick()
        ctx.set(dut.offer.done, 0)
        for _ in range(3):
            verdict, move = ctx.get(search.verdict), ctx.get(search.move)
            await ctx.tick()
            if verdict != Verdict.WAIT:
                return verdict, move.valid and move.squeue
        raise AssertionError("no verdict after an offer")

    async def bench(ctx):
        await ask(ctx, Moment.BEGIN)
        assert await ask(ctx, Moment.JUDGE) == (Verdict.SWEEP, 0)
        ctx.set(dut.best, {"valid": 1, "priority": 500, "page": 3})
        ctx.set(dut.other, {"valid": 1, "priority": 400, "page": 4})
        assert (await ask(ctx, Moment.SWEPT))[0] == Verdict.WAIT
        assert await offered(ctx, 500) == (Verdict.LOOK, 2)
        known["squeue"] = 2
        assert await ask(ctx, Moment.JUDGE) == (Verdict.SWEEP, 0)
        await ask(ctx, Moment.SWEPT)
        assert await offered(ctx, 500) == (Verdict.TAKE, 2)
        ctx.set(dut.explore, 1)  # the opinions differ: the other one's turn
        assert ctx.get(dut.take_other)
        await ask(ctx, Moment.TAKE)
        assert ctx.get(dut.given_by) == 2 and not ctx.get(dut.take_other)
        ctx.set(search.moment, Moment.GIVEN)
        assert ctx.get(dut.gave.valid) and ctx.get(dut.gave.p) == 65535 - 400
        await ask(ctx, Moment.GIVEN)
        assert await offered(ctx, 500) == (Verdict.DONE, 0)

    simulate(dut, bench)


def test_an_opinion_left_from_a_look_ahead_decides_nothing():
    """After a sweep, `first_take` ends with the search: a list of policy 0 has one opinion."""
    dut = KelpSearch(config=UNIT)

    async def bench(ctx):
        ctx.set(dut.best, {"valid": 1, "page": 3})
        ctx.set(dut.other, {"valid": 1, "page": 4})
        ctx.set(dut.explore, 1)
        ctx.set(dut.search.moment, Moment.SWEPT)
        await ctx.tick()
        assert ctx.get(dut.take_other)
        ctx.set(dut.search.moment, Moment.BEGIN)
        await ctx.tick()
        assert not ctx.get(dut.take_other)

    simulate(dut, bench)


def test_prefetches_one_page_at_a_time_while_there_is_credit_and_room():
    dut = PolicyPrefetch(config=UNIT)
    fetch = dut.o_prefetch

    async def bench(ctx):
        ctx.set(dut.pools.spare, [0, 3, 0, 0])
        ctx.set(dut.water, 2)
        ctx.set(dut.in_credit, 1)
        ctx.set(dut.pool.p, 1)
        ctx.set(dut.pool.valid, 1)
        ctx.set(dut.queue.p, {"squeue": 2})
        ctx.set(dut.queue.valid, 1)
        await ctx.tick().repeat(3)
        ctx.set(dut.wanted.p, 5)
        ctx.set(dut.wanted.valid, 1)
        ctx.set(fetch.ready, 1)
        ctx.set(dut.i_result.p.op, {"kind": Op.PREFETCH, "source": PrefetchSource.POLICY})
        ctx.set(dut.i_result.valid, 1)
        ctx.set(dut.turn, 1)
        assert await cycles_until(ctx, fetch.valid) == dut.LATENCY
        assert (ctx.get(fetch.p.page), ctx.get(fetch.p.squeue)) == (5, 2)
        assert ctx.get(dut.wanted.ready)
        await ctx.tick()
        assert ctx.get(dut.busy)
        assert 1 + await cycles_until(ctx, fetch.valid) == dut.INTERVAL
        await ctx.tick()
        ctx.set(dut.pools.spare, [3, 2, 3, 3])  # at the mark, and nothing makes room
        await cycles_until(ctx, ~dut.busy)
        await cycles_until(ctx, dut.wanted.ready)
        assert not ctx.get(fetch.valid)
        ctx.set(dut.room_comes, 1)
        await ctx.tick().repeat(3)
        assert not ctx.get(dut.busy) and not ctx.get(dut.wanted.ready)

    simulate(dut, bench)
