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
    """The engine, every port of it taken from in each cycle."""

    def __init__(self, ctx, dut):
        self.ctx, self.dut, self.events, self.cycle = ctx, dut, [], 0
        for port in (dut.s2m_bisnp, dut.o_finish, dut.o_lost):
            ctx.set(port.ready, 1)
        ctx.set(dut.bi_id, 9)

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


def test_a_late_answer_is_known_as_such_until_its_generation_comes_round():
    """docs/coherence.md, "CLOSE and silence": a recall's place has so many generations."""
    dut = new_engine(sector=32)
    rounds, heard = 1 << dut.sizes.generation_bits, []

    async def bench(ctx):
        b = Bench(ctx, dut)
        ctx.set(dut.timeout, 5)
        for n in range(rounds + 1):
            b.begin(lines=1)
            await b.tick()
            ctx.set(dut.i.valid, 0)
            await b.tick(4)
            if n in (0, rounds):
                heard.append(tags(b)[-1])
            if n in (1, rounds - 1, rounds):
                before = len(b.seen("unasked"))
                await b.answer(heard[0])
                heard.append(len(b.seen("unasked")) - before)
            await b.tick(24)
        assert len(b.seen("end")) == rounds + 1 and len(b.seen("lost")) == rounds

    simulate(opened(dut)[0], bench)
    first, *told, again, taken = heard
    assert rounds == 64 and told == [1, 1] and again == first and taken == 0


def test_a_time_out_that_is_set_counts_for_what_is_owed():
    """docs/coherence.md, "What is open": `bi_timeout` may change while BISnp are owed."""

    async def test(ctx, b):
        await b.tick(100)
        assert not b.seen("lost")
        ctx.set(b.dut.timeout, 20)
        await b.tick(20)

    b = run(test)
    assert b.seen("lost") == [("lost", 0, 0), ("lost", 2, 0)] and b.seen("end") == [END]


def test_a_bi_id_that_changes_leaves_what_is_owed_to_the_time_out():
    """docs/coherence.md, "What is open": an answer by the BI-ID of its BISnp is refused then."""

    async def test(ctx, b):
        first, _ = tags(b)
        ctx.set(b.dut.bi_id, 8)
        await b.answer(first, bi_id=9)
        await b.tick(8)
        assert len(b.seen("unasked")) == 1 and not b.seen("end")
        await b.tick(40)

    b = run(test, timeout=40)
    assert b.seen("lost") == [("lost", 0, 0), ("lost", 2, 0)] and b.seen("end") == [END]


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
@pytest.mark.sampled
def test_blocks_are_called_back_at_once_and_answered_in_any_form(sector, blocks):
    rng, dut, seen = random.Random(sector), new_engine(sector), set()

    async def bench(ctx):
        b = Bench(ctx, dut)
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
    """One that is under way: what it is to send, what the host owes, what was given up."""

    def __init__(self, sector, way, held, size):
        lines = [k for k in range(size) if held >> k & 1]
        self.sector, self.way, self.base = sector, way, sector * size
        self.to_send = snoops(self.base, lines, blocks=True)
        self.answers, self.sent, self.told, self.silent = None, [], set(), set()
        self.last = 0  #: when its latest BISnp was taken

    def send(self, bisnp, rng, size):
        self.sent.append(bisnp)
        before, self.answers = self.answers, Answers(rng, self.sent, self.sector, size)
        if before:
            self.answers.lost = before.lost
            self.answers.owed |= before.owed

    def owed(self):
        return set().union(*self.answers.owed.values()) if self.answers else set()


class SideBySide:
    """As many recalls as there is room for, every port standing still at times."""

    def __init__(self, ctx, dut, rng, sector, timeout, seen):
        self.ctx, self.dut, self.rng, self.seen = ctx, dut, rng, seen
        self.sector, self.timeout, self.cycle = sector, timeout, 0
        self.active, self.begun, self.offered = [], None, None
        self.sending = None  #: whose BISnp was taken last

    def of(self, first):
        """The recall that this line's sector, in lines, belongs to."""
        (found,) = (r for r in self.active if r.base <= first < r.base + self.sector)
        return found

    def begin(self, may):
        ctx, dut, rng = self.ctx, self.dut, self.rng
        if self.begun:
            self.active.append(self.begun)
            self.begun = None
        count, room = len(self.active), dut.sizes.recalls
        self.seen["most"] = max(self.seen["most"], count)
        assert ctx.get(dut.free) == (count < room) and ctx.get(dut.idle) == (count == 0)
        begins = may and count < room and rng.random() < 0.2
        ctx.set(dut.i.valid, begins)
        if not begins:
            return
        at = rng.choice([n for n in range(64) if n not in {r.sector for r in self.active}])
        held = rng.choice([1, (1 << self.sector) - 1, rng.getrandbits(self.sector) or 1])
        way = rng.randrange(dut.sizes.ways)
        ctx.set(dut.i.p.sector, at)
        ctx.set(dut.i.p.lines, held)
        ctx.set(dut.i.p.place, rng.randrange(4) << dut.sizes.way_bits | way)
        self.begun = Recall(at, way, held, self.sector)

    def answer(self):
        """A sound answer, or one with another device's BI-ID. Of a recall whose time is nearly over
        nothing is said."""
        ctx, dut, rng, strange = self.ctx, self.dut, self.rng, False
        ctx.set(dut.m2s_birsp.valid, 0)
        may = [
            r
            for r in self.active
            if r.owed()
            and (not self.timeout or r.to_send or self.cycle < r.last + self.timeout - 2)
        ]
        prompt = not self.timeout or self.cycle % 1_000 < 700
        if may and rng.random() < (0.3 if prompt else 0.01):
            answers = rng.choice(may).answers
            said, before = answers.draw(), answers.unasked
            answers.take(**said)
            if answers.unasked == before:
                self.say(said | {"bi_id": 9})
        elif rng.random() < 0.004:
            strange = True
            self.say({"bi_id": 8})
        assert ctx.get(dut.unasked) == strange

    def say(self, said):
        p = self.dut.m2s_birsp.p
        for name, value in said.items():
            self.ctx.set(p["bi_tag" if name == "tag" else name], value)
        self.ctx.set(self.dut.m2s_birsp.valid, 1)

    def take_bisnp(self):
        ctx, port = self.ctx, self.dut.s2m_bisnp
        if self.offered:
            assert ctx.get(port.valid) and fields(ctx, port.p) == self.offered, "it was withdrawn"
        self.offered = offered = fields(ctx, port.p) if ctx.get(port.valid) else None
        if not offered or not ctx.get(port.ready):
            return
        self.offered = None
        block = offered["opcode"] == S2MBISnp.INV_BLK
        r = self.of(offered["address"] & ~3 if block else offered["address"])
        line = offered["bi_tag"] % self.sector
        # The lines of one recall, then those of the next.
        assert self.sending in (None, r) or not self.sending.to_send
        self.sending = r
        assert r.to_send.pop(0) == (offered["opcode"], offered["address"], line)
        r.last = self.cycle
        r.send(offered, self.rng, self.sector)
        self.seen["blocks"] += block

    def take_lost(self):
        ctx, port = self.ctx, self.dut.o_lost
        if not (ctx.get(port.valid) and ctx.get(port.ready)):
            return
        lost = fields(ctx, port.p)
        line = lost["sector"] * self.sector + lost["line"]
        r = self.of(line)
        assert line not in r.told
        r.told.add(line)
        self.seen["lost"] += 1
        if lost["refused"]:
            assert line in r.answers.lost
            return
        if line in r.owed():  # the others of its recall are given up with it
            assert self.timeout and self.cycle > r.last + self.timeout
            r.silent |= r.owed()
            r.answers.owed = {tag: set() for tag in r.answers.owed}
            self.seen["silent"] += 1
        assert line in r.silent

    def take_end(self):
        ctx, port = self.ctx, self.dut.o_finish
        for r in self.active:
            if self.timeout and not r.to_send and r.owed():
                # Another recall's lines may be told of first.
                assert self.cycle <= r.last + self.timeout + 20 + 8 * self.sector
        if ctx.get(port.valid) and ctx.get(port.ready):
            end = fields(ctx, port.p)
            r = self.of(end["sector"] * self.sector)
            assert not r.to_send and not r.owed() and end["way"] == r.way
            assert r.told == r.answers.lost | r.silent
            self.active.remove(r)
            self.seen["ends"] += 1

    async def step(self, may):
        ctx, dut, rng = self.ctx, self.dut, self.rng
        ctx.set(dut.now, self.cycle)
        self.begin(may)
        for port, chance in ((dut.s2m_bisnp, 0.6), (dut.o_lost, 0.3), (dut.o_finish, 0.3)):
            ctx.set(port.ready, rng.random() < chance)
        self.answer()
        self.take_bisnp()
        self.take_lost()
        self.take_end()
        await ctx.tick()
        self.cycle += 1


@pytest.mark.parametrize(("sector", "timeout", "seed"), [(4, 0, 1), (8, 60, 2), (32, 150, 3)])
@pytest.mark.sampled
def test_recalls_side_by_side(sector, timeout, seed):
    """Each BISnp once and in order, each line that is kept told of once, an end when all is over; a
    silent line is given up when its time is over, and no sooner."""
    dut, rng = new_engine(sector), random.Random(seed)
    seen = {"most": 0, "ends": 0, "lost": 0, "silent": 0, "blocks": 0}

    async def bench(ctx):
        ctx.set(dut.bi_id, 9)
        ctx.set(dut.blocks, 1)
        ctx.set(dut.timeout, timeout)
        b = SideBySide(ctx, dut, rng, sector, timeout, seen)
        for cycle in range(4_000):
            await b.step(cycle < 3_400)
        assert not b.active

    simulate(opened(dut)[0], bench)
    assert seen["most"] == dut.sizes.recalls and seen["ends"] > 30 and seen["blocks"] > 20
    assert seen["lost"] > 10 and (seen["silent"] > 2) == bool(timeout), seen


@pytest.mark.parametrize("keeps", [False, True], ids=["given back", "kept"])
def test_recalls_that_begin_without_pause_keep_none_from_its_end(keeps):
    """A host that answers in the next cycle, each line given back or kept: with a recall begun
    wherever there is a place but one, those that were begun first end first."""
    recalls, begun, ended = 8, [], []
    dut = SnoopEngine(config=named("unit"), sizes=replace(SIZES_, recalls=recalls))

    async def bench(ctx):
        bench, answers = Bench(ctx, dut), []
        while len(ended) < 10 * recalls:
            begins = len(begun) - len(ended) < recalls - 1
            if begins:
                begun.append(len(begun))
                ctx.set(dut.i.p.sector, begun[-1])
                ctx.set(dut.i.p.lines, 1)
            ctx.set(dut.i.valid, begins)
            if ctx.get(dut.s2m_bisnp.valid):
                answers.append(ctx.get(dut.s2m_bisnp.p.bi_tag))
            ctx.set(dut.m2s_birsp.valid, len(answers))
            if answers:
                ctx.set(dut.m2s_birsp.p.bi_tag, answers.pop(0))
                ctx.set(dut.m2s_birsp.p.bi_id, 9)
                ctx.set(dut.m2s_birsp.p.opcode, M2SBIRsp.S if keeps else M2SBIRsp.I)
            if ctx.get(dut.o_finish.valid):
                ended.append(ctx.get(dut.o_finish.p.sector))
            await bench.tick()

    simulate(dut, bench)
    late = [at - sector for at, sector in enumerate(ended)]
    assert max(late) < recalls and set(range(len(ended) - recalls)) < set(ended), ended
