# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Reads under way: answers in any order find their request; NXM grants nothing; how long a set and
a way count as under way. Traffic is the front's (test_front.py)."""

import random

from flips import fields, opened
from simulation import simulate
from timing import check_pace, shown

from kelp_hw.coherence.grants import Grants
from kelp_spec.coherence import SIZES
from kelp_spec.config import named
from kelp_spec.messages import S2MDRS, S2MNDR

SIZES_ = SIZES["unit"]


def new_grants():
    return Grants(config=named("unit"), sizes=SIZES_)


def test_latency_and_interval():
    begins = [{"i.valid": 1, "i.p.grants.tag": 40 + n, "i.p.grants.data": 1} for n in range(3)]
    answers = [{"i_drs.valid": 1, "i_drs.p.tag": n} for n in range(3)]
    ready = {"o_drs.ready": 1, "o_ndr.ready": 1}
    check_pace(
        new_grants(), "LATENCY", shown("o_drs", "tag"), answers, before=begins, prepare=ready
    )


def test_answers_in_any_order_find_their_request():
    rng, dut = random.Random(5), new_grants()
    waiting, owed, told, counted = {}, {}, 0, set()

    async def bench(ctx):
        nonlocal told
        tag = 0
        for _ in range(4000):
            begin = ctx.get(dut.room) and rng.random() < 0.6
            ctx.set(dut.i.valid, begin)
            if begin:
                tag += 1
                grants = {
                    "tag": tag,
                    "ld_id": tag & 15,
                    "data": rng.randrange(2),
                    "has_ndr": rng.randrange(2),
                    "ndr": rng.choice([S2MNDR.CMP_S, S2MNDR.CMP_E]),
                }
                grants["has_ndr"] |= not grants["data"]
                for name, value in grants.items():
                    ctx.set(dut.i.p.grants[name], value)
                ctx.set(dut.i.p.counts, 1)
                ctx.set(dut.i.p.place, tag % 8)
            offer = bool(waiting) and rng.random() < 0.6
            ctx.set(dut.i_drs.valid, 0)
            if offer or ctx.get(dut.i_drs.valid):
                number = rng.choice(sorted(waiting))
                ctx.set(dut.i_drs.valid, 1)
                ctx.set(dut.i_drs.p.tag, number)
                ctx.set(dut.i_drs.p.ld_id, waiting[number]["ld_id"])
                ctx.set(dut.i_drs.p.data, waiting[number]["tag"] << 100)
                ctx.set(dut.i_drs.p.dev_load, waiting[number]["tag"] & 3)
                ctx.set(dut.i_drs.p.opcode, waiting[number]["tag"] % 5 == 0)
            for port in (dut.o_drs, dut.o_ndr):
                ctx.set(port.ready, rng.random() < 0.6)
            index = rng.randrange(SIZES_.sets)
            ctx.set(dut.i_look, index)
            live = {each["tag"] % 8 for each in (*waiting.values(), *owed.values())}
            live |= {tag % 8} if begin else set()
            ways = [place % SIZES_.ways for place in live if place // SIZES_.ways == index]
            assert ctx.get(dut.o_under_way) == sum(1 << way for way in ways)
            assert ctx.get(dut.idle) == (not waiting and not owed)
            if begin:
                number = ctx.get(dut.o_number)
                assert number not in waiting
            if ctx.get(dut.o_drs.valid) and ctx.get(dut.o_drs.ready):
                got = fields(ctx, dut.o_drs.p)
                each = owed[got["tag"]]
                assert each.pop("data") and got["data"] == got["tag"] << 100
                assert got["ld_id"] == got["tag"] & 15
            if ctx.get(dut.o_ndr.valid) and ctx.get(dut.o_ndr.ready):
                got = fields(ctx, dut.o_ndr.p)
                each = owed[got["tag"]]
                nxm = got["tag"] % 5 == 0
                assert each.pop("has_ndr")
                assert got["opcode"] == (S2MNDR.CMP if nxm else each["ndr"])
                assert got["ld_id"] == got["tag"] & 15 and got["dev_load"] == got["tag"] & 3
            if ctx.get(dut.i_drs.valid) and ctx.get(dut.i_drs.ready):
                each = waiting.pop(ctx.get(dut.i_drs.p.tag))
                owed[each["tag"]] = dict(each)
            await ctx.tick()
            if begin:
                waiting[number] = grants
            for done in [t for t, e in owed.items() if not e.get("data") and not e.get("has_ndr")]:
                del owed[done]
                told += 1
                counted.add(done)

    simulate(opened(dut)[0], bench)
    assert told > 1000 and S2MDRS.MEM_DATA_NXM == 1


def test_there_is_room_while_as_many_as_are_on_their_way_find_a_number():
    dut, begun = new_grants(), 0

    async def bench(ctx):
        nonlocal begun
        while ctx.get(dut.room):
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            begun += 1

    simulate(dut, bench)
    assert begun == SIZES_.pending - dut.RESERVE + 1


def test_an_answer_to_no_read_is_dropped_and_frees_nothing():
    """An inner device with a fatal error may answer again and again."""
    dut = new_grants()

    async def bench(ctx):
        ctx.set(dut.o_drs.ready, 1)
        ctx.set(dut.i_drs.p.tag, 3)
        ctx.set(dut.i_drs.valid, 1)
        for _ in range(40):
            await ctx.tick()
            assert not ctx.get(dut.o_drs.valid) and not ctx.get(dut.o_ndr.valid)
        ctx.set(dut.i_drs.valid, 0)
        numbers = []
        while ctx.get(dut.room):
            numbers.append(ctx.get(dut.o_number))
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            await ctx.tick()
        assert len(numbers) == SIZES_.pending - Grants.RESERVE + 1 == len(set(numbers))

    simulate(opened(dut)[0], bench)


def test_an_answer_for_another_ld_id_is_dropped_and_frees_nothing():
    """After a fatal error an answer may come twice, and its number be another read's by then."""
    dut, seen = new_grants(), []

    async def bench(ctx):
        ctx.set(dut.o_drs.ready, 1)
        ctx.set(dut.i.valid, 1)
        ctx.set(dut.i.p.grants, {"tag": 40, "ld_id": 5, "data": 1})
        number = ctx.get(dut.o_number)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        for ld_id in (0, 7, 5):
            ctx.set(dut.i_drs.p, {"tag": number, "ld_id": ld_id, "data": ld_id})
            ctx.set(dut.i_drs.valid, 1)
            await ctx.tick()
            ctx.set(dut.i_drs.valid, 0)
            seen.append((ctx.get(dut.o_drs.valid), ctx.get(dut.o_drs.p.data)))
            await ctx.tick()
            seen.append(ctx.get(dut.idle))

    simulate(opened(dut)[0], bench)
    assert seen == [(0, 0), 0, (0, 7), 0, (1, 5), 1]
