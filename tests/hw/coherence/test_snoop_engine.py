# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Recalls: a BISnp for each line that is held, or for two or four; every kind of answer and none.
Traffic is the front's (test_front.py)."""

import random
from dataclasses import replace

import pytest
from flips import fields, opened
from simulation import simulate
from timing import check_pace, shown

from kelp_golden.coherence import snoops
from kelp_hw.coherence.snoop_engine import SnoopEngine
from kelp_spec.coherence import SIZES
from kelp_spec.config import named
from kelp_spec.messages import M2SBIRsp, S2MBISnp

SIZES_ = SIZES["unit"]


def new_engine(sector=SIZES_.sector):
    config = named("unit" if sector <= SIZES_.sector else "llama70b")
    return SnoopEngine(config=config, sizes=replace(SIZES_, sector=sector))


def test_latency_and_interval():
    """Four lines of a recall, one a cycle."""
    recall = {"i.valid": 1, "i.p.sector": 5, "i.p.lines": 0b1110}
    check_pace(
        new_engine(),
        "LATENCY",
        shown("s2m_bisnp", "address"),
        [recall, {}, {}],
        prepare={"s2m_bisnp.ready": 1},
    )


class Bench:
    """The engine, with a recall of lines 0 and 2 of sector 5 whose BISnp are out."""

    def __init__(self, ctx, dut):
        self.ctx, self.dut, self.events, self.cycle = ctx, dut, [], 0

    async def tick(self, count=1):
        ctx, dut = self.ctx, self.dut
        for _ in range(count):
            ctx.set(dut.now, self.cycle)
            if ctx.get(dut.s2m_bisnp.valid):
                self.events.append(("bisnp", fields(ctx, dut.s2m_bisnp.p)))
            if ctx.get(dut.o_lost.valid):
                lost = fields(ctx, dut.o_lost.p)
                self.events.append(("lost", lost["line"], lost["refused"]))
            if ctx.get(dut.o_finish.valid):
                end = fields(ctx, dut.o_finish.p)
                self.events.append(("end", end["sector"], end["way"]))
            if ctx.get(dut.unasked):
                self.events.append(("unasked",))
            await ctx.tick()
            self.cycle += 1
            ctx.set(dut.m2s_birsp.valid, 0)

    def begin(self, sector=5, lines=0b101):
        ctx, dut = self.ctx, self.dut
        for name, value in (("sector", sector), ("place", 3), ("lines", lines)):
            ctx.set(dut.i.p[name], value)
        ctx.set(dut.i.valid, 1)

    async def answer(self, tag, opcode=M2SBIRsp.I, bi_id=9, low_address=0):
        ctx, dut = self.ctx, self.dut
        ctx.set(dut.m2s_birsp.valid, 1)
        ctx.set(dut.m2s_birsp.p.bi_tag, tag)
        ctx.set(dut.m2s_birsp.p.bi_id, bi_id)
        ctx.set(dut.m2s_birsp.p.opcode, opcode)
        ctx.set(dut.m2s_birsp.p.low_address, low_address)
        await self.tick()

    def seen(self, kind):
        return [event for event in self.events if event[0] == kind]


def run(test, timeout=0):
    dut, kept = new_engine(), []

    async def bench(ctx):
        b = Bench(ctx, dut)
        for port in (dut.s2m_bisnp, dut.o_finish, dut.o_lost):
            ctx.set(port.ready, 1)
        ctx.set(dut.bi_id, 9)
        ctx.set(dut.timeout, timeout)
        b.begin()
        await b.tick()
        ctx.set(dut.i.valid, 0)
        await b.tick(8)
        await test(ctx, b)
        await b.tick(12)
        kept.append(b)

    simulate(opened(dut)[0], bench)
    return kept[0]


def tags(b):
    return [event[1]["bi_tag"] for event in b.seen("bisnp")]


END = ("end", 5, 1)


def test_each_line_is_called_back_and_the_last_answer_ends_it():
    async def test(ctx, b):
        first, second = (event[1] for event in b.seen("bisnp"))
        assert [first["address"], second["address"]] == [5 * 4, 5 * 4 + 2]
        assert first["opcode"] == second["opcode"] == S2MBISnp.INV and first["bi_id"] == 9
        await b.answer(second["bi_tag"])
        await b.tick(8)
        assert not b.seen("end")
        await b.answer(first["bi_tag"])

    b = run(test)
    assert b.seen("end") == [END] and not b.seen("lost") and not b.seen("unasked")


@pytest.mark.parametrize("opcode", [M2SBIRsp.S, M2SBIRsp.E])
def test_a_line_that_the_host_keeps_is_lost(opcode):
    async def test(ctx, b):
        first, second = tags(b)
        await b.answer(first, opcode)
        await b.answer(second)

    b = run(test)
    assert b.seen("lost") == [("lost", 0, 1)] and b.seen("end") == [END]


def test_silence_is_lost_and_a_late_answer_is_unasked():
    async def test(ctx, b):
        first, second = tags(b)
        await b.answer(first)
        await b.tick(60)
        assert b.seen("lost") == [("lost", 2, 0)] and b.seen("end") == [END]
        b.begin()
        await b.tick()
        ctx.set(b.dut.i.valid, 0)
        await b.tick(8)
        assert tags(b)[2:] != [first, second]
        await b.answer(second)

    assert len(run(test, timeout=20).seen("unasked")) == 1


@pytest.mark.parametrize(
    "answer",
    [{"tag": 1}, {"tag": 0xFFF}, {"bi_id": 8}]
    + [{"opcode": code} for code in range(16) if code > M2SBIRsp.E],
    ids=str,
)
def test_an_answer_that_nobody_asked_for_is_told_and_dropped(answer):
    async def test(ctx, b):
        await b.answer(**({"tag": tags(b)[0]} | answer))

    b = run(test)
    assert len(b.seen("unasked")) == 1 and not b.seen("end") and not b.seen("lost")


class Answers:
    """What a host may say to the BISnp of one recall, and what becomes of it."""

    def __init__(self, rng, said, sector, lines):
        self.rng, self.said, self.sector, self.size = rng, said, sector, lines
        self.owed = {bisnp["bi_tag"]: self._lines(bisnp) for bisnp in said}
        self.blocks = {b["bi_tag"] for b in said if b["opcode"] == S2MBISnp.INV_BLK}
        self.of = {tag: set(owed) for tag, owed in self.owed.items()}
        self.lost, self.unasked = set(), 0

    def _lines(self, bisnp):
        first, part = bisnp["address"] & ~3, bisnp["address"] & 3
        if bisnp["opcode"] == S2MBISnp.INV:
            return {bisnp["address"]}
        return {first + k for k in {1: (0, 1), 2: (2, 3), 3: (0, 1, 2, 3)}[part]}

    def draw(self):
        """An answer, sound or not, as the arguments of `Bench.answer`."""
        rng, tag = self.rng, self.rng.choice(list(self.owed))
        opcode = rng.choices(list(M2SBIRsp), (8, 1, 1, 8, 1, 1))[0]
        low = rng.randrange(4)
        if rng.random() < 0.1:
            tag ^= 1 << rng.randrange(3)
        return {"tag": tag, "opcode": opcode, "low_address": low}

    def take(self, tag, opcode, low_address):
        owed, for_all = self.owed.get(tag, set()), opcode >= M2SBIRsp.I_BLK
        if for_all:
            heard = set(owed) if tag in self.blocks else set()
        elif tag in self.blocks:
            heard = {line for line in owed if line & 3 == low_address}
        else:
            heard = set(owed)
        self.unasked += not heard
        if opcode & 3:
            self.lost |= heard
        if heard:
            self.owed[tag] = owed - heard


@pytest.mark.parametrize("sector", [2, 4, 8, 32])
@pytest.mark.parametrize("blocks", [0, 1])
def test_blocks_are_called_back_at_once_and_answered_in_any_form(sector, blocks):
    rng, dut, seen = random.Random(sector), new_engine(sector), set()

    async def bench(ctx):
        b = Bench(ctx, dut)
        for port in (dut.s2m_bisnp, dut.o_finish, dut.o_lost):
            ctx.set(port.ready, 1)
        ctx.set(dut.bi_id, 9)
        ctx.set(dut.blocks, blocks)
        for _ in range(40):
            held = rng.choice([rng.getrandbits(sector), (1 << sector) - 1, rng.getrandbits(sector)])
            held, at = held or 1, rng.randrange(64)
            lines, b.events = [k for k in range(sector) if held >> k & 1], []
            b.begin(at, held)
            await b.tick()
            ctx.set(dut.i.valid, 0)
            await b.tick(sector + 4)
            said = [event[1] for event in b.seen("bisnp")]
            got = [(s["opcode"], s["address"], s["bi_tag"] % sector) for s in said]
            assert got == snoops(at * sector, lines, blocks=bool(blocks))
            seen.update((s["opcode"], s["address"] & 3) for s in said)
            model = Answers(rng, said, at, sector)
            while any(model.owed.values()):
                assert not b.seen("end")
                answer = model.draw()
                model.take(**answer)
                await b.answer(**answer)
                await b.tick(rng.randrange(2))
            await b.tick(2 * sector + 8)
            assert {at * sector + event[1] for event in b.seen("lost")} == model.lost
            assert len(b.seen("unasked")) == model.unasked and b.seen("end") == [("end", at, 1)]
            await b.answer(said[0]["bi_tag"], M2SBIRsp.I_BLK if blocks else M2SBIRsp.I)
            assert len(b.seen("unasked")) == model.unasked + 1

    simulate(opened(dut)[0], bench)
    if blocks:
        wanted = {(S2MBISnp.INV_BLK, part) for part in ((1, 2, 3) if sector > 2 else (1, 2))}
        assert wanted <= seen


class Recall:
    """One that is under way: what it is to send, what the host owes, and since when."""

    def __init__(self, sector, way, held, size, blocks):
        lines = [k for k in range(size) if held >> k & 1]
        self.sector, self.way, self.base = sector, way, sector * size
        self.to_send = snoops(self.base, lines, blocks=blocks)
        self.answers = None
        self.sent, self.told, self.silent = [], set(), set()
        self.last = 0  #: when its last BISnp was taken

    def owed(self):
        return set().union(*self.answers.owed.values()) if self.answers else set()


@pytest.mark.parametrize(("sector", "timeout", "seed"), [(4, 0, 1), (8, 60, 2), (32, 150, 3)])
def test_recalls_side_by_side(sector, timeout, seed):
    """As many as there is room for, every port standing still at times: each BISnp once and in
    order, each line that is kept told of once, an end when all is over; a silent line is given up
    when its time is over, and no sooner."""
    dut, rng = new_engine(sector), random.Random(seed)
    config_way = dut.sizes.way_bits
    seen = {"most": 0, "ends": 0, "lost": 0, "silent": 0, "blocks": 0}

    async def bench(ctx):
        active, offered, just_begun = [], None, None
        ctx.set(dut.bi_id, 9)
        ctx.set(dut.blocks, 1)
        ctx.set(dut.timeout, timeout)
        for cycle in range(4_000):
            ctx.set(dut.now, cycle)
            if just_begun:
                active.append(just_begun)
                just_begun = None
            count = len(active)
            seen["most"] = max(seen["most"], count)
            assert ctx.get(dut.free) == (count < dut.sizes.recalls), cycle
            assert ctx.get(dut.idle) == (count == 0), cycle
            begins = count < dut.sizes.recalls and rng.random() < 0.2 and cycle < 3_500
            ctx.set(dut.i.valid, begins)
            if begins:
                at = rng.choice([n for n in range(64) if n not in {r.sector for r in active}])
                held = rng.choice([1, (1 << sector) - 1, rng.getrandbits(sector) or 1])
                way = rng.randrange(1 << config_way)
                ctx.set(dut.i.p.sector, at)
                ctx.set(dut.i.p.lines, held)
                ctx.set(dut.i.p.place, rng.randrange(4) << config_way | way)
                just_begun = Recall(at, way, held, sector, True)
            ctx.set(dut.s2m_bisnp.ready, rng.random() < 0.6)
            ctx.set(dut.o_lost.ready, rng.random() < 0.3)
            ctx.set(dut.o_finish.ready, rng.random() < 0.3)
            ctx.set(dut.m2s_birsp.valid, 0)
            # Of a recall whose time is nearly over nothing is said.
            answering = [
                r
                for r in active
                if r.owed() and (not timeout or r.to_send or cycle < r.last + timeout - 2)
            ]
            if answering and rng.random() < (0.3 if cycle % 1_000 < 700 or not timeout else 0.01):
                r = rng.choice(answering)
                answer = r.answers.draw()
                before = r.answers.unasked
                r.answers.take(**answer)
                if r.answers.unasked == before:
                    for name, value in (("bi_tag", answer["tag"]), ("bi_id", 9)):
                        ctx.set(dut.m2s_birsp.p[name], value)
                    for name in ("opcode", "low_address"):
                        ctx.set(dut.m2s_birsp.p[name], answer[name])
                    ctx.set(dut.m2s_birsp.valid, 1)
            elif rng.random() < 0.004:  # another device's
                ctx.set(dut.m2s_birsp.valid, 1)
                ctx.set(dut.m2s_birsp.p.bi_id, 8)
            assert ctx.get(dut.unasked) == (
                ctx.get(dut.m2s_birsp.valid) and ctx.get(dut.m2s_birsp.p.bi_id) == 8
            )
            bisnp = dut.s2m_bisnp
            if offered:
                assert ctx.get(bisnp.valid) and fields(ctx, bisnp.p) == offered, "it was withdrawn"
            offered = fields(ctx, bisnp.p) if ctx.get(bisnp.valid) else None
            if offered and ctx.get(bisnp.ready):
                block = offered["opcode"] == S2MBISnp.INV_BLK
                first = offered["address"] & ~3 if block else offered["address"]
                (r,) = (r for r in active if r.base <= first < r.base + sector)
                line = offered["bi_tag"] % sector
                assert r.to_send[0] == (offered["opcode"], offered["address"], line)
                r.to_send.pop(0)
                r.sent.append(offered)
                r.last = cycle
                seen["blocks"] += block
                lost = r.answers.lost if r.answers else set()
                owed = r.answers.owed if r.answers else {}
                r.answers = Answers(rng, r.sent, r.sector, sector)
                r.answers.lost = lost
                r.answers.owed |= owed
                offered = None
            if ctx.get(dut.o_lost.valid) and ctx.get(dut.o_lost.ready):
                lost = fields(ctx, dut.o_lost.p)
                (r,) = (r for r in active if r.sector == lost["sector"])
                line = r.base + lost["line"]
                assert line not in r.told
                r.told.add(line)
                seen["lost"] += 1
                if lost["refused"]:
                    assert line in r.answers.lost
                else:
                    assert timeout and line in r.owed() | r.silent
                    if line in r.owed():  # the others of its recall are given up with it
                        assert cycle > r.last + timeout
                        r.silent |= r.owed()
                        for tag in r.answers.owed:
                            r.answers.owed[tag] = set()
                        seen["silent"] += 1
            for r in active:
                if timeout and not r.to_send and r.owed():
                    # Another recall's lines may be told of first.
                    assert cycle <= r.last + timeout + 20 + 8 * sector, "nothing is given up"
            if ctx.get(dut.o_finish.valid) and ctx.get(dut.o_finish.ready):
                end = fields(ctx, dut.o_finish.p)
                (r,) = (r for r in active if r.sector == end["sector"])
                assert not r.to_send and not r.owed() and end["way"] == r.way
                assert r.told == r.answers.lost | r.silent
                active.remove(r)
                seen["ends"] += 1
            await ctx.tick()
        assert not active

    simulate(opened(dut)[0], bench)
    assert seen["most"] == dut.sizes.recalls and seen["ends"] > 30 and seen["blocks"] > 20
    assert seen["lost"] > 10 and (seen["silent"] > 2) == bool(timeout), seen
