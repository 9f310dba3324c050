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
        assert (await ask(ctx, Moment.SWEPT))[0] == Verdict.WAIT
        assert await offered(ctx, 500) == (Verdict.LOOK, 2)
        known["squeue"] = 2
        assert await ask(ctx, Moment.JUDGE) == (Verdict.SWEEP, 0)
        await ask(ctx, Moment.SWEPT)
        assert await offered(ctx, 500) == (Verdict.TAKE, 2)
        ctx.set(dut.best, {"valid": 1, "priority": 300, "page": 5})  # once it is taken
        await ask(ctx, Moment.GIVEN)
        assert await offered(ctx, 300) == (Verdict.DONE, 0)

    simulate(dut, bench)


def test_where_all_pages_are_in_use_the_queue_that_asks_gives():
    """What is in use offers next to nothing; after its turn, what it will offer in the next step;
    the newest page offers no more then either."""
    dut = KelpSearch(config=UNIT)
    search, facts = dut.search, {"squeue": 1, "kelp": 1, "eligible": 1, "root": 1, "asking": 3}

    async def swept(ctx, kind, *, evict):
        """What is offered for a best page of class `kind`, and the verdict after it."""
        for moment in (Moment.BEGIN, Moment.SWEPT):
            ctx.set(dut.best, {"valid": 1, "priority": 500, "kind": kind})
            ctx.set(search.facts, facts | {"evict": evict})
            ctx.set(search.moment, moment)
            await ctx.tick()
        ctx.set(search.moment, Moment.NONE)
        excess = ctx.get(dut.offer.request.p.excess)
        ctx.set(dut.offer.request.ready, 1)
        await ctx.tick()
        ctx.set(dut.offer.done, 1)
        await ctx.tick()
        ctx.set(dut.offer.done, 0)
        while (verdict := ctx.get(search.verdict)) == Verdict.WAIT:
            await ctx.tick()
        move = ctx.get(search.move)
        await ctx.tick()
        return excess, verdict, move.valid and move.squeue

    async def bench(ctx):
        assert await swept(ctx, 0, evict=1) == (500, Verdict.TAKE, 1)
        assert await swept(ctx, 1, evict=1) == (1, Verdict.LOOK, 3)
        assert ctx.get(dut.asked)
        for kind, excess in ((0, 500), (1, 500), (2, 1)):
            assert await swept(ctx, kind, evict=0) == (excess, Verdict.REST, 0)

    simulate(dut, bench)
