# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""KelpSearch: what policy `kelp` decides at each moment."""

import random

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
        self.cleared, self.offered = ctx.get(dut.clear), None
        assert not ctx.get(dut.offer.request.valid)
        await ctx.tick()
        if self.cleared:
            ctx.set(dut.best.valid, 0)  # the list's, from the next cycle on
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


class Golden:
    """A search by the rules of docs/policy.md: of each moment the verdict, the queue to move to,
    and what is offered of the queue at hand, or None."""

    def begin(self):
        self.at, self.sweeps, self.worthy, self.named, self.other = "tree", 0, 0, None, False

    def judge(self, facts, best):
        if facts["kelp"] and facts["eligible"]:
            return Verdict.SWEEP, None, None
        if self.at == "tree":
            return self._named(facts, {"valid": 0, "kind": 0})
        if self.at == "asks":
            return Verdict.TAKE, self.named, None
        return Verdict.NEXT, None, None

    def swept(self, facts, best):
        if self.at == "tree":
            return self._named(facts, best)
        if self.at == "asks" and self.other and (not best["valid"] or best["kind"] == 2):
            self.at = "in turn"
            return Verdict.LOOK, self.named, self._worth(best)
        return Verdict.TAKE, None, None

    def empty(self, facts, best):
        self.at = "in turn"
        return Verdict.NEXT, None, self._worth(best)

    def given(self, facts, best):
        self.at = "given"
        return Verdict.DONE, None, self._worth(best)

    def _worth(self, best):
        return (best["priority"] if best["kind"] == 0 else 1) if best["valid"] else 0

    def _named(self, facts, best):
        """Behind the offer of a queue that the tree named."""
        offer, page = self._worth(best), best["valid"] and best["kind"] == 0
        self.sweeps, self.worthy = self.sweeps + 1, self.worthy + bool(page)
        if not facts["evict"]:
            return Verdict.REST, None, offer
        self.named, self.other = facts["squeue"], bool(best["valid"])
        others = facts["offered"] and facts["root"] != facts["squeue"]
        if others and self.worthy < SWEEPS and self.sweeps < SWEEPS_MOST:
            return Verdict.LOOK, facts["root"], offer
        if page or facts["asking"] == facts["squeue"]:
            return Verdict.TAKE, facts["squeue"], offer
        self.at = "asks"
        return Verdict.LOOK, facts["asking"], offer


@pytest.mark.parametrize("seed", [1, 2])
def test_any_search_goes_by_the_rules(seed):
    """Any queues, offers, pages and policies, search after search: some end amid their way."""
    print("seed", seed)
    dut, rng, seen = KelpSearch(config=UNIT), random.Random(seed), set()
    wide = len(dut.best.priority)

    async def bench(ctx):
        search, golden, turns = Searching(ctx, dut), Golden(), 0

        async def step(moment):
            best = {
                "valid": int(rng.random() < 0.8),
                "kind": rng.choice(kinds),
                "priority": rng.getrandbits(wide),
            }
            # What no verdict looks at is anything.
            ctx.set(dut.best, best | {"page": rng.randrange(UNIT.pages), "last_step": 3})
            facts = {name: int(rng.random() < chance) for name, chance in chances.items()}
            facts |= {name: rng.randrange(UNIT.squeues) for name in ("squeue", "root", "asking")}
            if rng.random() < 0.2:
                facts["asking"] = facts["squeue"]
            while long and facts["root"] == facts["squeue"]:
                facts["root"] = rng.randrange(UNIT.squeues)
            told = await search.ask(moment, **facts, evict=evict)
            if moment == Moment.JUDGE and search.cleared:
                best["valid"] = 0
            rule = getattr(golden, moment.name.lower())
            verdict, to, offer = rule(search.facts, best)
            assert told == (verdict, to), (moment, golden.at)
            assert search.cleared == (moment == Moment.JUDGE and offer is not None)
            assert search.offered == (None if offer is None else (facts["squeue"], offer))
            assert ctx.get(dut.asked) == (golden.at == "asks")
            seen.add((moment, verdict, to is None))
            return verdict

        for _ in range(60):
            evict, moment, steps = rng.random() < 0.9, Moment.JUDGE, 0
            long = rng.random() < 0.2  # as many queues as there may be, and none with a page
            kinds = (1, 2) if long else (0, 1, 1, 2)
            chances = {"kelp": 0.9, "eligible": rng.choice((0.5, 0.9)), "offered": long or 0.8}
            chances |= {"usable": 0.5, "fresh": 0.5}
            assert await search.ask(Moment.BEGIN) == (Verdict.WAIT, None)
            golden.begin()
            if rng.random() < 0.2:  # queues of another policy came first
                assert await search.ask(Moment.NEXT) == (Verdict.WAIT, None)
                golden.at = "in turn"
            while steps < 40:
                steps += 1
                verdict = await step(moment)
                if verdict == Verdict.SWEEP:
                    moment = Moment.SWEPT
                elif verdict == Verdict.TAKE:
                    moment = rng.choice((Moment.EMPTY, Moment.GIVEN))
                elif verdict in (Verdict.DONE, Verdict.REST):
                    break
                else:
                    moment = Moment.JUDGE
                    if verdict == Verdict.NEXT:
                        assert await search.ask(Moment.NEXT) == (Verdict.WAIT, None)
                        golden.at = "in turn"
            turns += golden.sweeps == SWEEPS_MOST
        assert turns

    simulate(dut, bench)
    assert len(seen) >= 10, seen
