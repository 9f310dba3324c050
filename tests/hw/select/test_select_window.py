# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SelectWindow: lines of the region, for the session's owner alone."""

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
