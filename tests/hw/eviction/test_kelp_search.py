# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KelpSearch: what policy `kelp` decides at each moment."""

from simulation import simulate

from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_hw.eviction.signatures import Moment, Verdict
from kelp_spec.config import named

UNIT = named("unit")


def test_policy_kelp_offers_what_it_swept_and_sweeps_what_offers_more():
    dut = KelpSearch(config=UNIT)
    search = dut.search
    known = {"squeue": 1, "kelp": 1, "eligible": 1, "evict": 1, "root": 2, "offered": 1}
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
