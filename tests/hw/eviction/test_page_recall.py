# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Pages that are to leave are asked for sector by sector, and wait no longer than they may."""

import random

from simulation import simulate
from timing import check_pace, shown

from kelp_hw.eviction.page_recall import PageRecall
from kelp_spec.config import named

CONFIG = named("unit_coherent").with_(queues=3)
SECTORS = CONFIG.page_lines // 4  # of a page


def new_recall():
    return PageRecall(config=CONFIG)


def test_latency_and_interval():
    claims = [{"i_claim.valid": 1, "i_claim.p.slot": 1, "i_claim.p.page.page": 3}]
    check_pace(
        new_recall(), "LATENCY", shown("o_ask", ""), claims, prepare={"o_ask.ready": 1}, within=4
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
