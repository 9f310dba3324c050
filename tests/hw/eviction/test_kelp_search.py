# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KelpSearch: what policy `kelp` decides at each moment."""

import pytest
from simulation import simulate

from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_hw.eviction.signatures import Moment, Verdict
from kelp_spec.config import named
from kelp_spec.policy import SWEEPS, SWEEPS_MOST

UNIT = named("unit")


class Searching:
    """The search, as the evictor asks it; the tree and the list of pages are the test's."""

    def __init__(self, ctx, dut, **facts):
        self.ctx, self.dut = ctx, dut
        self.facts = {"squeue": 1, "kelp": 1, "eligible": 1, "evict": 1, "asking": 3} | facts

    async def ask(self, moment, **facts):
        """(verdict, queue to move to or None) of a moment; after the offer where it makes one."""
        ctx, dut = self.ctx, self.dut
        self.facts |= facts
        ctx.set(dut.search.facts, self.facts)
        ctx.set(dut.search.moment, moment)
        verdict = self.verdict()
        self.cleared = ctx.get(dut.clear)
        await ctx.tick()
        ctx.set(dut.search.moment, Moment.NONE)
        if not ctx.get(dut.offer.request.valid):
            return verdict
        assert verdict == (Verdict.WAIT, None)
        self.offered = ctx.get(dut.offer.request.p.squeue), ctx.get(dut.offer.request.p.excess)
        for port in (dut.offer.request.ready, dut.offer.done):
            await ctx.tick()  # it waits for either
            assert self.verdict() == (Verdict.WAIT, None)
            ctx.set(port, 1)
            await ctx.tick()
            ctx.set(port, 0)
        while self.verdict()[0] == Verdict.WAIT:
            await ctx.tick()
        verdict = self.verdict()
        await ctx.tick()
        return verdict

    def verdict(self):
        move = self.ctx.get(self.dut.search.move)
        return self.ctx.get(self.dut.search.verdict), move.squeue if move.valid else None


@pytest.mark.parametrize("kind", [0, 1])
def test_it_sweeps_up_to_its_limits(kind):
    """The tree always names another queue: some sweeps with a page to give, more without."""
    dut, most = KelpSearch(config=UNIT), SWEEPS_MOST if kind else SWEEPS

    async def bench(ctx):
        search = Searching(ctx, dut, offered=1)
        ctx.set(dut.best, {"valid": 1, "priority": 500, "kind": kind})
        await search.ask(Moment.BEGIN)
        for n in range(most):
            here, root = n % 2, 1 - n % 2
            assert await search.ask(Moment.JUDGE, squeue=here, root=root) == (Verdict.SWEEP, None)
            verdict = await search.ask(Moment.SWEPT)
            assert search.offered == (here, 1 if kind else 500)
            if n < most - 1:
                assert verdict == (Verdict.LOOK, root), n
        # Then the best page that was found goes; without one the queue that asks gives.
        assert verdict == ((Verdict.LOOK, 3) if kind else (Verdict.TAKE, here))
        assert ctx.get(dut.asked) == kind

    simulate(dut, bench)


@pytest.mark.parametrize("facts", [{"kelp": 0}, {"eligible": 0}])
def test_a_queue_that_cannot_give(facts):
    """Named by the tree, it offers that it has none; asking, what was found before it goes; else
    the next one is tried."""
    dut = KelpSearch(config=UNIT)
    able = {"kelp": 1, "eligible": 1}

    async def bench(ctx):
        search = Searching(ctx, dut, offered=1, root=1)
        await search.ask(Moment.BEGIN)
        assert not ctx.get(dut.asked)
        assert await search.ask(Moment.JUDGE, **facts) == (Verdict.LOOK, 3)
        assert search.cleared and search.offered == (1, 0) and ctx.get(dut.asked)
        assert await search.ask(Moment.JUDGE, squeue=3) == (Verdict.TAKE, 1)
        assert not search.cleared
        assert await search.ask(Moment.JUDGE, **able) == (Verdict.SWEEP, None)
        assert await search.ask(Moment.SWEPT) == (Verdict.TAKE, None)
        # The list had none after all: it is offered so, and the queues are tried in turn.
        assert await search.ask(Moment.EMPTY) == (Verdict.NEXT, None)
        assert search.offered == (3, 0) and not ctx.get(dut.asked)
        for moment in (None, Moment.NEXT):
            if moment:
                assert await search.ask(moment) == (Verdict.WAIT, None)
            assert await search.ask(Moment.JUDGE, **facts) == (Verdict.NEXT, None)
            assert await search.ask(Moment.JUDGE, **able) == (Verdict.SWEEP, None)
            assert await search.ask(Moment.SWEPT) == (Verdict.TAKE, None)

    simulate(dut, bench)


@pytest.mark.parametrize(
    ("best", "gives"),
    [
        ({"valid": 1, "kind": 0, "priority": 7}, True),
        ({"valid": 1, "kind": 1}, True),
        ({"valid": 1, "kind": 2}, False),
        ({"valid": 0}, False),
    ],
)
@pytest.mark.parametrize("other", [0, 1])
def test_the_queue_that_asks_keeps_its_newest_page(best, gives, other):
    """It offers next to nothing, and the queue before it is swept again, where that has a page; a
    page that goes from it there goes as in any search."""
    dut = KelpSearch(config=UNIT)

    async def bench(ctx):
        search = Searching(ctx, dut, offered=0, root=1)
        await search.ask(Moment.BEGIN)
        ctx.set(dut.best, {"valid": other, "kind": 1})
        assert await search.ask(Moment.JUDGE) == (Verdict.SWEEP, None)
        assert await search.ask(Moment.SWEPT) == (Verdict.LOOK, 3)
        assert await search.ask(Moment.JUDGE, squeue=3) == (Verdict.SWEEP, None)
        ctx.set(dut.best, best)
        verdict = await search.ask(Moment.SWEPT)
        if gives or not other:
            assert verdict == (Verdict.TAKE, None)
            return
        assert verdict == (Verdict.LOOK, 1) and not ctx.get(dut.asked)
        assert search.offered == (3, best["valid"])
        assert await search.ask(Moment.JUDGE, squeue=1, eligible=0) == (Verdict.NEXT, None)
        assert await search.ask(Moment.JUDGE, eligible=1) == (Verdict.SWEEP, None)
        assert await search.ask(Moment.SWEPT) == (Verdict.TAKE, None)

    simulate(dut, bench)


def test_the_last_named_queue_gives_what_it_has():
    """Where the tree names no other with an offer: a page, or what the queue that asks, if it is
    this one, has in use."""
    dut = KelpSearch(config=UNIT)

    async def bench(ctx):
        for facts in ({"root": 1, "offered": 1}, {"root": 2, "offered": 0}):
            for kind, asking, verdict in (
                (0, 3, (Verdict.TAKE, 1)),
                (1, 3, (Verdict.LOOK, 3)),
                (1, 1, (Verdict.TAKE, 1)),
            ):
                search = Searching(ctx, dut, **facts | {"asking": asking})
                ctx.set(dut.best, {"valid": 1, "priority": 9, "kind": kind})
                await search.ask(Moment.BEGIN)
                assert await search.ask(Moment.SWEPT) == verdict

    simulate(dut, bench)


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
        for kind, excess in ((0, 500), (1, 1), (2, 1)):
            assert await swept(ctx, kind, evict=0) == (excess, Verdict.REST, 0)

    simulate(dut, bench)
