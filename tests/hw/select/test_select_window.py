# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SelectWindow: lines of the region, for the session's owner alone."""

import random

import pytest
from flips import NO_FAULT, Opened, fields, flip
from simulation import simulate
from streams import Ends, pump

from kelp_hw.select.select_window import SelectWindow
from kelp_spec.config import named
from kelp_spec.metadata import Event
from kelp_spec.select import SelectMap

CONFIG = named("unit_select").with_(protect=False)  # which a simulator takes ten times as fast
MAP = SelectMap(CONFIG)
OWNER = 2
WHOLE = (1 << 64) - 1


def access(line, data=None, ld_id=OWNER, enable=WHOLE, poison=0):
    write = {"write": 1, "data": data, "byte_enable": enable, "poison": poison}
    return {"offset": line, "ld_id": ld_id, "select": 1} | ({} if data is None else write)


def run(accesses, *, offer=1.0, take=1.0, before=None, watch=None):
    async def first(ctx, dut):
        ctx.set(dut.sessions[1], {"open": 1, "ld_id": OWNER})
        for _ in range(CONFIG.sessions * (2 + (1 << MAP.group_bits + MAP.half_bits))):
            await ctx.tick()  # a reset wipes queries
        if before:
            await before(ctx, dut)

    ends = Ends(
        sends={"i": accesses}, takes=("o",), offer=offer, take=take, before=first, watch=watch
    )
    dut = SelectWindow(config=CONFIG)
    return pump(dut, ends, cycles=int(len(accesses) * 4 / offer / take) + 20), dut


def test_an_answer_is_shown_to_the_owner_when_it_is_whole():
    events = []

    async def answer(ctx, dut):
        ctx.set(dut.block, 1 << MAP.group_bits | 1)
        for line in range(MAP.answer_lines - 1, -1, -1):
            ctx.set(dut.answer_line, line)
            ctx.set(dut.answer, 0x1234 + line)
            ctx.set(dut.answer_block, 1 << MAP.group_bits | 1)
            ctx.set(dut.answer_en, 1)
            await ctx.tick()
        ctx.set(dut.answer_en, 0)

    def watch(ctx):
        if ctx.get(seen_dut[0].o_event.valid):
            event = seen_dut[0].o_event.p
            events.append((ctx.get(event.code), ctx.get(event.squeue)))

    seen_dut = []

    async def keep(ctx, dut):
        seen_dut.append(dut)
        await answer(ctx, dut)

    bell, other = MAP.bell(1, 1), MAP.bell(1, 0)
    lines = [bell, bell + 1, other, MAP.query(1, 1), bell, MAP.bell(0, 1)]
    owners = [OWNER, OWNER, OWNER, OWNER, OWNER + 1, OWNER]
    accesses = [access(line, ld_id=ld_id) for line, ld_id in zip(lines, owners, strict=True)]
    seen, _ = run(accesses, offer=0.7, take=0.6, before=keep, watch=watch)
    assert [t.item.data for t in seen["o"]] == [0x1234, 0x1235, 0, 0, 0, 0]
    assert events == [(Event.FOREIGN_LD, CONFIG.queues), (Event.CLOSED_SESSION, 0)]


def test_an_answer_is_shown_with_its_last_line_and_until_the_session_ends():
    """The last line of an answer is line 0: the others show nothing. Who has the session next is
    shown nothing either."""
    block = 1 << MAP.group_bits | 1
    told = []

    async def answer(ctx, dut):
        duts.append(dut)
        ctx.set(dut.answer_block, block)
        ctx.set(dut.answer, 0x77)
        ctx.set(dut.answer_line, 1)
        ctx.set(dut.answer_en, 1)
        await ctx.tick()
        ctx.set(dut.answer_en, 0)

    def watch(ctx):
        dut, now = duts[0], len(told)
        ctx.set(dut.answer_line, 0)
        ctx.set(dut.answer_en, now == 14)
        ctx.set(dut.forget, (now == 34) << 1)
        told.append(now)

    duts = []
    reads = [access(MAP.bell(1, 1) + 1)] * 16
    seen, _ = run(reads, before=answer, watch=watch)
    shown = [(t.offered, t.item.data) for t in seen["o"]]
    assert {data for at, data in shown if at <= 14} == {0}
    assert {data for at, data in shown if 18 <= at <= 34} == {0x77}
    later = [data for at, data in shown if at >= 38]
    assert later and set(later) == {0}


def test_queries_and_doorbells():
    read = {}

    def watch(ctx):
        dut = duts[0]
        ctx.set(dut.block, 1 << MAP.group_bits)
        ctx.set(dut.i_look.p, 3)
        ctx.set(dut.i_look.valid, 1)
        read.update(
            query=ctx.get(dut.query),
            sequence=ctx.get(dut.bell.sequence),
            broken=ctx.get(dut.bell.broken),
        )
        rings = ctx.get(dut.pending)
        ctx.set(dut.take, bool(rings))
        if rings:
            read["pending"] = rings

    duts = []

    async def keep(ctx, dut):
        duts.append(dut)

    query = MAP.query(1, 0, 1, 1)
    accesses = [
        access(query, 77),
        access(query, 80, ld_id=OWNER + 1),
        access(MAP.bell(1, 0), 0xABCD),
    ]
    run(accesses, before=keep, watch=watch)
    assert read == {"query": 77, "sequence": 0xABCD, "broken": 0, "pending": 1 << 2}
    # In part, or poisoned, it is no number, until it is written again.
    for bad in ({"enable": WHOLE - 1}, {"poison": 1}):
        duts.clear()
        run([access(query, 77), access(query, 78, **bad)], before=keep, watch=watch)
        assert read["query"] == (1 << 512) - 1
        duts.clear()
        run([access(query, 78, **bad), access(query, 79)], before=keep, watch=watch)
        assert read["query"] == 79
    duts.clear()
    run([access(MAP.bell(1, 0), 5, enable=WHOLE - 1)], before=keep, watch=watch)
    assert read["broken"] == 1


def test_a_doorbell_that_comes_as_one_is_taken_is_taken_once():
    """At each cycle around it: what is taken is the first, and the second waits, or the second."""
    block, line = 1 << MAP.group_bits, MAP.bell(1, 0)

    def taken(at):
        duts, found = [], []

        async def keep(ctx, dut):
            duts.append(dut)

        def watch(ctx):
            dut = duts[0]
            ctx.set(dut.block, block)
            found.append((ctx.get(dut.bell.sequence), ctx.get(dut.pending) != 0))
            ctx.set(dut.take, len(found) == at)

        run([access(line, 5), access(line, 6)], before=keep, watch=watch)
        return found[at], found[-1]

    seen = [taken(at) for at in range(3, 10)]
    assert all(waits == (bell == 5) for (bell, _), (_, waits) in seen if bell)
    assert {bell for (bell, _), _ in seen} >= {5, 6}


def test_a_session_that_ends_leaves_no_query():
    duts, read = [], {}

    async def keep(ctx, dut):
        duts.append(dut)

    def watch(ctx):
        dut = duts[0]
        ctx.set(dut.block, 1 << MAP.group_bits | 1)
        ctx.set(dut.i_look.p, 2)
        ctx.set(dut.i_look.valid, 1)
        found = ctx.get(dut.query)
        ctx.set(dut.forget, 2 if read.get("was") and not read.get("told") else 0)
        read["told"] = bool(read.get("was"))
        read["was"] = read.get("was") or found == 77
        read["is"] = found

    accesses = [access(MAP.query(1, 1, 1, 0), 77), *[access(MAP.bell(1, 0))] * 8]
    seen, _ = run(accesses, before=keep, watch=watch)
    assert read == {"told": True, "was": True, "is": 0}
    assert len(seen["o"]) == len(accesses)


BLOCKS, LINES = CONFIG.sessions << MAP.group_bits, 1 << MAP.half_bits
GROUPS = 1 << MAP.group_bits


class Beside:
    """A block whose sessions, and whose choice, do anything in any cycle, and a model of it."""

    def __init__(self, seed):
        print("seed", seed)
        self.rng, self.dut = random.Random(seed), Opened(SelectWindow(config=CONFIG))
        self.cycles = []  # of each: what was at the inputs, and at the outputs
        self.sessions = [{"open": 1, "closing": 0, "ld_id": OWNER - s} for s in range(2)]
        self.accesses = [self._access() for _ in range(200)]

    def _access(self):
        rng = self.rng
        line = rng.choice([0, 0, 1, 1, rng.randrange(LINES)])
        at = rng.randrange(BLOCKS) << MAP.half_bits + 1 | rng.randrange(2) << MAP.half_bits | line
        enable = WHOLE if rng.random() < 0.8 else WHOLE ^ 1 << rng.randrange(64)
        made = access(at, rng.getrandbits(512), OWNER - rng.randrange(2), enable)
        made |= {"poison": int(rng.random() < 0.1), "write": rng.randrange(2)}
        return made | {"tag": rng.getrandbits(16)}

    async def begin(self, ctx, dut):
        """Queries hold anything before a reset has wiped them, and rows that are no line of an
        answer all the time."""
        for path, memory in dut.memories.items():
            if path.startswith("bells"):
                continue
            for row in range(memory.depth):
                if path.startswith("queries") or row % LINES >= MAP.answer_lines:
                    ctx.set(memory[row], self.rng.getrandbits(512))
        for s, held in enumerate(self.sessions):
            ctx.set(dut.sessions[s], held)
        for _ in range(CONFIG.sessions * (1 + GROUPS * LINES)):
            assert not ctx.get(dut.idle)
            await ctx.tick()
        assert ctx.get(dut.idle)

    def watch(self, ctx):
        rng, dut = self.rng, self.dut
        put = {
            "forget": rng.randrange(1, 4) if rng.random() < 0.01 else 0,
            "block": rng.randrange(BLOCKS),
            "query_used": rng.randrange(2),
            "again": int(rng.random() < 0.05),
            "answer_en": int(rng.random() < 0.4),
            "answer_block": rng.randrange(BLOCKS),
            "answer_line": rng.randrange(MAP.answer_lines),
            "answer": rng.getrandbits(512),
        }
        put["take"] = int(ctx.get(dut.pending) >> put["block"] & 1 and rng.random() < 0.5)
        look = rng.randrange(MAP.query_lines) if rng.random() < 0.7 else None
        for name, value in put.items():
            ctx.set(getattr(dut, name), value)
        ctx.set(dut.i_look.valid, look is not None)
        ctx.set(dut.i_look.p, look or 0)
        if rng.random() < 0.05:
            s = rng.randrange(2)
            self.sessions[s] = {
                "open": int(rng.random() < 0.9),
                "closing": int(rng.random() < 0.1),
                "ld_id": OWNER - rng.randrange(2),
            }
            ctx.set(dut.sessions[s], self.sessions[s])
        names = ("query", "broken", "pending", "rung", "idle")
        told = {name: ctx.get(getattr(dut, name)) for name in names}
        told["sequence"] = ctx.get(dut.bell.as_value()) & (1 << dut.bell_layout.size - 1) - 1
        event = dut.o_event.p
        told["event"] = ctx.get(dut.o_event.valid) and tuple(
            ctx.get(event[name]) for name in event.shape().members
        )
        told["offers"] = ctx.get(dut.i.valid)
        assert fields(ctx, dut.fault) == NO_FAULT
        held = [dict(each) for each in self.sessions]
        self.cycles.append((put | {"look": look, "sessions": held}, told))

    def run(self):
        sends = {"i": self.accesses}
        ends = Ends(sends=sends, takes=("o",), offer=0.5, take=0.5, before=self.begin)
        ends.watch = self.watch
        seen = pump(self.dut, ends, cycles=8000, quiet=20)
        assert len(seen["o"]) == len(self.accesses)
        return {
            told.offered - 1: (t.item, told.item) for t, told in zip(*seen.values(), strict=True)
        }


@pytest.mark.parametrize("seed", [1, 2])
def test_any_accesses_beside_any_choice(seed):
    """What is read, told, pending and taken in each cycle, as the lines were written."""
    room = Beside(seed)
    accepted = room.run()
    size = room.dut.bell_layout.size - 1
    queries, answers, bells = {}, {}, {}
    pending = known = ended = wiped = 0  # `wiped`: rows of the session that are still to be
    session = query = bell = None
    shown = 0
    for n, (put, told) in enumerate(room.cycles):
        stalls = ended or wiped
        assert told["pending"] == pending
        assert told["idle"] == (not stalls and not told["offers"])
        if query is not None:
            assert told["query"] in query
        if bell is not None:
            assert (told["sequence"], told["broken"]) == bell
        rung, event, write = 0, 0, None
        if n in accepted:
            item, answer = accepted[n]
            assert not stalls
            line = item["offset"]
            block, upper, line = line >> MAP.half_bits + 1, line >> MAP.half_bits & 1, line % LINES
            held = put["sessions"][block // GROUPS]
            is_open = held["open"] and not held["closing"]
            owned = is_open and held["ld_id"] == item["ld_id"]
            if not owned:
                code = Event.FOREIGN_LD if is_open else Event.CLOSED_SESSION
                event = (code, item["ld_id"], block // GROUPS * CONFIG.queues, 0, 0)
            shows = owned and upper and not item["write"] and line < MAP.answer_lines
            data = answers.get((block, line), 0) if shows and known >> block & 1 else 0
            shown += data != 0
            wrote = put["answer_en"] and (put["answer_block"], put["answer_line"]) == (block, line)
            assert answer.data == data or (wrote and data)
            for name in ("write", "tag", "ld_id"):
                assert answer[name] == item[name]
            whole = item["byte_enable"] == WHOLE and not item["poison"]
            if owned and item["write"]:
                if upper and line == 0:
                    rung = 1 << block
                    bells[block] = item["data"] & (1 << size) - 1, not whole
                elif not upper:
                    write = block, line
        assert (told["event"], told["rung"]) == (event, rung)
        query = _looked(put, queries, query, write, ended | (wiped and 1 << session))
        if write:
            queries[write] = item["data"] if whole else (1 << 512) - 1
        if put["take"]:
            bell = bells.get(put["block"])
        pending = (pending | rung) & ~(put["take"] << put["block"])
        pending |= put["again"] << put["answer_block"]
        if put["answer_en"]:
            answers[put["answer_block"], put["answer_line"]] = put["answer"]
            known |= (put["answer_line"] == 0) << put["answer_block"]
        # The lowest session that ended is wiped, a row in each cycle from the next one on.
        if wiped:
            wiped -= 1
            ended |= put["forget"]
        elif ended:
            session = (ended & -ended).bit_length() - 1
            wiped, ended = GROUPS * LINES, ended & ~(1 << session) | put["forget"]
        else:
            ended = put["forget"]
        for s in range(CONFIG.sessions):
            if put["forget"] >> s & 1:
                own = (1 << GROUPS) - 1 << s * GROUPS
                pending, known = pending & ~own, known & ~own
                for block in range(s * GROUPS, (s + 1) * GROUPS):
                    queries |= {(block, line): 0 for line in range(LINES)}
    assert shown > 4


def _looked(put, queries, query, write, ending):
    """What a query may be in the next cycle: where it is written, or wiped, in this one, as it is
    before or behind that, or anything."""
    if put["look"] is None:
        return query
    block = put["block"]
    if ending >> block // GROUPS & 1 or put["forget"] or write == (block, put["look"]):
        return None
    return [queries.get((block, put["look"]), 0)]


@pytest.mark.parametrize("bits", [0, 1, 2])
@pytest.mark.parametrize("name", ["queries", "bells", "answers"])
@pytest.mark.sampled
def test_flipped_bits_are_told_where_a_line_is_used(name, bits):
    """One changes nothing; of two a query is no number, a doorbell is broken, an answer is zeros.
    Each use is told, once, and no line that is read for nothing."""
    dut = Opened(SelectWindow(config=named("unit_select")))
    rng, told, block = random.Random(bits), [], 1 << MAP.group_bits
    query, bell, answer = (rng.getrandbits(512) for _ in range(3))

    async def bench(ctx):
        async def tick(times=1):
            for _ in range(times):
                fault = fields(ctx, dut.fault)
                told.append(next((kind for kind, on in fault.items() if on), None))
                await ctx.tick()

        async def passes(waits=0, **asked):
            ctx.set(dut.i.p, {"select": 1, "ld_id": OWNER, "byte_enable": WHOLE} | asked)
            ctx.set(dut.i.valid, 1)
            await tick()
            ctx.set(dut.o.ready, 0)
            await tick(waits)
            ctx.set(dut.o.ready, 1)
            found = ctx.get(dut.o.p.data)
            await tick(2)
            ctx.set(dut.i.valid, 0)
            await tick(3)
            return found

        def uses():
            return [kind for kind in told if kind]

        ctx.set(dut.sessions[1], {"open": 1, "ld_id": OWNER})
        ctx.set(dut.block, block)
        await tick(CONFIG.sessions * (2 + GROUPS * LINES))
        await passes(write=1, data=query, offset=MAP.query(1, 0, 0, 1))
        await passes(write=1, data=bell, offset=MAP.bell(1, 0))
        for line in reversed(range(MAP.answer_lines)):
            ctx.set(dut.answer_block, block)
            ctx.set(dut.answer_line, line)
            ctx.set(dut.answer, answer)
            ctx.set(dut.answer_en, 1)
            await tick()
        ctx.set(dut.answer_en, 0)
        (memory,) = (rows for path, rows in dut.memories.items() if path.startswith(name))
        for row in range(memory.depth):
            flip(ctx, memory, row, *rng.sample(range(40), bits))
        kind = (None, "corrected", "poisoned")[bits]
        lost = {each: bits == 2 and each == name for each in ("queries", "bells", "answers")}
        ctx.set(dut.i_look.p, 1)
        ctx.set(dut.i_look.valid, 1)
        await tick()
        ctx.set(dut.i_look.valid, 0)
        await tick(3)
        assert not uses()
        assert ctx.get(dut.query) == ((1 << 512) - 1 if lost["queries"] else query)
        for used in (1, 0, 0):
            ctx.set(dut.query_used, used)
            await tick()
        assert uses() == [kind] * bool(bits and name == "queries")
        told.clear()
        ctx.set(dut.take, 1)
        await tick()
        ctx.set(dut.take, 0)
        assert ctx.get(dut.broken) == lost["bells"]
        if not lost["bells"]:
            assert ctx.get(dut.bell.as_value()) == bell & (1 << dut.bell_layout.size - 1) - 1
        await tick(4)
        assert uses() == [kind] * bool(bits and name == "bells")
        told.clear()
        found = await passes(waits=3, offset=MAP.bell(1, 0) + 1)
        assert found == (0 if lost["answers"] else answer)
        assert uses() == [kind] * bool(bits and name == "answers")
        told.clear()
        assert await passes(waits=2, offset=MAP.bell(1, 0) + 1, ld_id=OWNER + 1) == 0
        assert await passes(offset=MAP.bell(1, 0), write=1, ld_id=OWNER + 1) == 0
        assert not uses()

    simulate(dut, bench)


def test_of_one_session_no_other_has_a_place():
    """An address has a bit for the session all the same: what is written beyond the only one
    changes no row of its own."""
    config, read, events = CONFIG.with_(sessions=1), {}, []
    dut = SelectWindow(config=config)
    assert dut.blocks == config.select_groups

    async def first(ctx, dut):
        ctx.set(dut.sessions[0], {"open": 1, "ld_id": OWNER})
        ctx.set(dut.answer_block, 1)
        ctx.set(dut.answer, 0x55)
        ctx.set(dut.answer_en, 1)
        for _ in range(2 + (1 << MAP.group_bits + MAP.half_bits)):
            await ctx.tick()
        ctx.set(dut.answer_en, 0)

    def watch(ctx):
        ctx.set(dut.i_look.valid, 1)
        ctx.set(dut.i_look.p, 3)
        read.update(query=ctx.get(dut.query), pending=ctx.get(dut.pending))
        if ctx.get(dut.o_event.valid):
            events.append((ctx.get(dut.o_event.p.code), ctx.get(dut.o_event.p.squeue)))

    query = MAP.query(0, 0, 1, 1)
    other = MAP.query(1, 0, 1, 1) - query
    lines = [(query, 77), (MAP.bell(0, 0), 5), (query + other, 78), (MAP.bell(1, 1), 6)]
    reads = [MAP.bell(0, 1), MAP.bell(1, 1)]
    accesses = [access(line, data) for line, data in lines] + [access(line) for line in reads]
    ends = Ends(sends={"i": accesses}, takes=("o",), before=first, watch=watch)
    seen = pump(dut, ends, cycles=len(accesses) * 4 + 20)
    assert read == {"query": 77, "pending": 1}
    assert [t.item.data for t in seen["o"]][-2:] == [0x55, 0]
    assert events == [(Event.CLOSED_SESSION, 0)] * 3


def test_latency_and_interval():
    seen, dut = run([access(MAP.bell(1, 0))] * 4)
    assert seen["o"][0].offered - seen["i"][0].offered == dut.LATENCY
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {dut.INTERVAL}
