# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Pages that are to leave are asked for sector by sector, and wait no longer than they may."""

import random
from collections import deque

from simulation import simulate
from timing import check_pace, shown

from kelp_hw.eviction.page_recall import PageRecall
from kelp_spec.config import named

UNIT = named("unit_coherent")
CONFIG = UNIT.with_(queues=3, half_lines=8)
SECTORS = CONFIG.page_lines // 4  # of a page
NAMES = ("squeue", "page")


def new_recall(config=CONFIG):
    return PageRecall(config=config)


def test_latency_and_interval():
    claims = [{"i_claim.valid": 1, "i_claim.p.slot": 1, "i_claim.p.page.page": 3}]
    check_pace(
        new_recall(UNIT),
        "LATENCY",
        shown("o_ask", ""),
        claims,
        prepare={"o_ask.ready": 1},
        within=4,
    )


class Front:
    """Answers each sector `delay` cycles after it was asked for; `held` of them are the host's."""

    def __init__(self, ctx, dut, rng):
        self.ctx, self.dut, self.rng = ctx, dut, rng
        self.held, self.asked, self.pipeline = set(), [], [None] * 3
        self.gone = []  # (slot, held)

    async def tick(self, count=1, **inputs):
        ctx, dut = self.ctx, self.dut
        for _ in range(count):
            ready = self.rng.random() < 0.7
            ctx.set(dut.o_ask.ready, ready)
            answer = self.pipeline.pop(0)
            ctx.set(dut.i_answer.valid, answer is not None)
            ctx.set(dut.i_answer.p, answer in self.held)
            taken = ready and ctx.get(dut.o_ask.valid)
            self.pipeline.append(ctx.get(dut.o_ask.p) if taken else None)
            if taken:
                self.asked.append(ctx.get(dut.o_ask.p))
            if ctx.get(dut.o_flushed.valid):
                self.gone.append((ctx.get(dut.o_flushed.p.slot), ctx.get(dut.o_flushed.p.held)))
            await ctx.tick()

    async def claim(self, slot, squeue, page):
        ctx, i = self.ctx, self.dut.i_claim
        ctx.set(i.valid, 1)
        ctx.set(i.p.slot, slot)
        ctx.set(i.p.page.squeue, squeue)
        ctx.set(i.p.page.page, page)
        await self.tick()
        ctx.set(i.valid, 0)

    async def flush(self, slot):
        self.ctx.set(self.dut.i_flushed.valid, 1)
        self.ctx.set(self.dut.i_flushed.p, slot)
        await self.tick()
        self.ctx.set(self.dut.i_flushed.valid, 0)


def run(test):
    dut = new_recall()

    async def bench(ctx):
        await test(Front(ctx, dut, random.Random(5)))

    simulate(dut, bench)


def sectors(squeue, page):
    session, queue = divmod(squeue, CONFIG.queues)
    base = ((session << CONFIG.queue_bits | queue) << CONFIG.page_bits | page) * SECTORS
    return list(range(base, base + SECTORS))


def test_an_eviction_goes_on_when_it_is_flushed_and_nothing_is_held():
    async def test(front):
        idle = front.dut.idle
        assert front.ctx.get(idle)
        await front.claim(2, 5, 6)
        assert not front.ctx.get(idle)
        await front.tick(40)
        assert front.asked == sectors(5, 6) and not front.gone
        await front.flush(2)
        assert not front.ctx.get(idle)
        await front.tick(2)
        assert front.gone == [(2, 0)] and front.ctx.get(idle)
        await front.claim(2, 1, 1)
        await front.flush(2)
        await front.tick(40)
        assert front.gone[1:] == [(2, 0)] and front.asked[SECTORS:] == sectors(1, 1)

    run(test)


def test_a_page_is_asked_for_until_its_recall_has_ended():
    async def test(front):
        front.held = {sectors(3, 2)[1]}
        await front.claim(0, 3, 2)
        await front.flush(0)
        await front.tick(100)
        assert not front.gone and len(front.asked) > 3 * SECTORS
        front.held = set()
        await front.tick(40)
        assert front.gone == [(0, 0)]

    run(test)


def test_a_host_that_keeps_its_lines_ends_that_eviction_and_holds_up_no_other():
    async def test(front):
        front.held = set(sectors(3, 2))
        await front.claim(0, 3, 2)
        await front.flush(0)
        await front.claim(1, 4, 2)
        await front.flush(1)
        await front.tick(PageRecall.PATIENCE - 10)
        assert front.gone == [(1, 0)]
        await front.tick(PageRecall.PATIENCE // 2 + 40)
        assert front.gone == [(1, 0), (0, 1)]

    run(test)


def test_the_closer_waits_as_long_as_it_takes_and_others_go_on():
    async def test(front):
        ctx, dut = front.ctx, front.dut
        front.held = {sectors(5, 1)[0]}
        ctx.set(dut.i_scrub.valid, 1)
        ctx.set(dut.i_scrub.p.squeue, 5)
        ctx.set(dut.i_scrub.p.page, 1)
        for _ in range(3 * PageRecall.PATIENCE):
            assert not ctx.get(dut.i_scrub.ready)
            await front.tick()
        await front.claim(3, 2, 2)
        await front.flush(3)
        await front.tick(60)
        assert front.gone == [(3, 0)]
        front.held = set()
        for _ in range(40):
            if ctx.get(dut.i_scrub.ready):
                break
            await front.tick()
        assert ctx.get(dut.i_scrub.ready)
        await front.tick()
        ctx.set(dut.i_scrub.valid, 0)
        await front.tick(20)
        assert not ctx.get(dut.i_scrub.ready)

    run(test)


class Model:
    """What the block has been told of its pages, and what it may do."""

    def __init__(self):
        self.slots = {}  # slot → its eviction: page, since, walk, flushed, over
        self.scrub = None  # the closer's page: sectors, since
        self.walk = None  # (slot or "scrub", sectors, answers)
        self.walks, self.begun, self.ended = [], 0, {"held": 0, "clear": 0, "scrub": 0}

    def asked(self, sector, cycle):
        """The next sector of the page at hand, or the first one of a page whose turn it is."""
        if self.walk is None:
            (who,) = (
                who
                for who, each in {**self.slots, "scrub": self.scrub}.items()
                if each and each["sectors"][0] == sector and not each.get("over")
            )
            self._turn(who, cycle)
            self.walks.append((who, cycle))
            self.walk = who, deque(self._of(who)["sectors"]), []
        assert self.walk[1].popleft() == sector

    def _of(self, who):
        return self.scrub if who == "scrub" else self.slots[who]

    def _turn(self, who, cycle):
        """Nobody who has waited since before the last walk of `who` began has been passed over."""
        before = [n for n, (other, _) in enumerate(self.walks) if other == who]
        if who == "scrub":
            before = [n for n in before if n == len(self.walks) - 1]
        if before:
            walked = {other for other, _ in self.walks[before[-1] :]}
            since = self.walks[before[-1]][1]
            # One that may have failed may wait for its flush alone.
            sure = {k: e for k, e in self.slots.items() if not e["over"] and not e.get("may")}
            waiting = {k for k, each in sure.items() if each["since"] < since - 4}
            passed = waiting - walked
            assert not passed or who == "scrub" and len(passed) < len(waiting), (who, passed)
        if who != "scrub" and self.scrub and len(self.walks) > 1:
            (last, began), waits = self.walks[-1], self.scrub["since"]
            assert last == "scrub" or waits >= began - 4, "the closer is passed over"

    def answered(self, held, cycle):
        who, left, answers = self.walk
        answers.append(held)
        if len(answers) < SECTORS:
            return
        self.walk = None
        each = self._of(who)
        each["held"] = any(answers)
        if who == "scrub":
            each["done"] = not any(answers)
        elif not any(answers) or cycle - each["since"] > PageRecall.PATIENCE * 3 // 2 + 40:
            each["over"] = True
        elif cycle - each["since"] > PageRecall.PATIENCE:
            each["may"] = True  # it fails in this half of its patience, or in the next

    def gone(self, slot, held, cycle):
        each = self.slots.pop(slot)
        assert each["flushed"] and (each["over"] or each.get("may"))
        assert held == each["held"]
        self.ended["held" if held else "clear"] += 1


def test_any_pages_of_any_slots_in_turn_beside_the_closers():
    """With a host that keeps some of its lines, in any slot; a frame is flushed before, amid or
    after. Each page is asked for sector by sector, and fails when it has waited so long."""
    rng, model, dut = random.Random(9), Model(), new_recall()

    async def bench(ctx):
        held, asked, waited = set(), deque(), 0
        for cycle in range(10_000):
            ends = cycle > 9_000
            claims = flushes = False
            free = [k for k in range(CONFIG.write_backs) if k not in model.slots]
            taken = {tuple(each["page"]) for each in (*model.slots.values(), model.scrub) if each}
            page = rng.randrange(CONFIG.squeues), rng.randrange(CONFIG.pages)
            busy = cycle // 1000 % 3 * 0.04 + 0.01
            if free and page not in taken and not ends and rng.random() < busy:
                slot = rng.choice(free)
                model.slots[slot] = {
                    "page": page,
                    "sectors": sectors(*page),
                    "since": cycle,
                    "flushed": False,
                    "over": False,
                }
                claims = True
                ctx.set(dut.i_claim.p, {"slot": slot, "page": dict(zip(NAMES, page, strict=True))})
                held |= {each for each in sectors(*page) if rng.random() < 0.2}
            elif model.scrub is None and page not in taken and not ends and rng.random() < 0.05:
                model.scrub = {"page": page, "sectors": sectors(*page), "since": cycle}
                ctx.set(dut.i_scrub.p, dict(zip(NAMES, page, strict=True)))
                held |= {each for each in sectors(*page) if rng.random() < 0.2}
            ctx.set(dut.i_claim.valid, claims)
            ctx.set(dut.i_scrub.valid, model.scrub is not None)
            owed = [k for k, each in model.slots.items() if not each["flushed"]]
            new = slot if claims else None
            if [k for k in owed if k != new] and rng.random() < 0.02 + ends:
                flushes = True
                flushed = rng.choice([k for k in owed if k != new])
                ctx.set(dut.i_flushed.p, flushed)
            ctx.set(dut.i_flushed.valid, flushes)
            if held and rng.random() < (1 if ends else 0.01):
                held.remove(rng.choice(sorted(held)))
            answers = bool(asked) and rng.random() < 0.6
            ctx.set(dut.i_answer.valid, answers)
            answer = int(asked.popleft() in held) if answers else rng.randrange(2)
            ctx.set(dut.i_answer.p, answer)
            ctx.set(dut.o_ask.ready, rng.random() < 0.7)

            evictions = model.slots.values()
            if any(e["flushed"] or not e["over"] and not e.get("may") for e in evictions):
                assert not ctx.get(dut.idle)
            elif all(each["over"] for each in evictions):
                assert ctx.get(dut.idle)
            if ctx.get(dut.o_ask.valid) and ctx.get(dut.o_ask.ready):
                model.asked(ctx.get(dut.o_ask.p), cycle)
                asked.append(ctx.get(dut.o_ask.p))
            done = ctx.get(dut.i_scrub.ready)
            assert bool(done) == bool(model.scrub and model.scrub.get("done"))
            if ctx.get(dut.o_flushed.valid):
                model.gone(ctx.get(dut.o_flushed.p.slot), ctx.get(dut.o_flushed.p.held), cycle)
            if answers:
                model.answered(answer, cycle)
            if flushes:
                model.slots[flushed]["flushed"] = True
            await ctx.tick()
            if done:
                model.scrub = None
                model.ended["scrub"] += 1
            # Who may go on does, one a cycle.
            late = [k for k, each in model.slots.items() if each["over"] and each["flushed"]]
            waited = waited + 1 if late else 0
            assert waited <= CONFIG.write_backs
        assert ctx.get(dut.idle)

    simulate(dut, bench)
    assert not model.slots and model.scrub is None
    assert min(model.ended.values()) > 10, model.ended
