# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Reads under way: answers in any order find their request; NXM grants nothing; how long a set and
a way count as under way; entries with flipped bits. Traffic is the front's (test_front.py)."""

import random

import pytest
from flips import NO_FAULT, fields, flip, opened
from simulation import simulate
from timing import check_pace, shown

from kelp_hw.coherence.grants import Grants
from kelp_spec.coherence import SIZES, MetaField
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


def some_fields(rng, layout, **said):
    """A value of every field of a message, drawn, but for those that are `said`."""
    drawn = {name: rng.getrandbits(layout[name].width) for name in layout.members}
    return drawn | said


def test_answers_in_any_order_find_their_request():
    """Every field of both messages; a set and a way are under way from the beginning of a grant
    that counts on, until its completion is taken."""
    rng, dut = random.Random(5), new_grants()
    waiting, owed, told, uncounted = {}, {}, 0, 0

    def tell(got, each, part):
        """What has left at a port is that part of the answer to a read."""
        grants, answer = each["grants"], each["answer"]
        assert each.pop(part)
        whose = {"tag": grants["tag"], "ld_id": grants["ld_id"]}
        if part == "data":
            assert got == answer | whose
            return
        nxm = answer["opcode"] == S2MDRS.MEM_DATA_NXM
        assert got == dict.fromkeys(got, 0) | whose | {
            "opcode": S2MNDR.CMP if nxm else grants["ndr"],
            "meta_field": MetaField.NO_OP,
            "dev_load": answer["dev_load"],
        }

    async def bench(ctx):
        nonlocal told, uncounted
        tag, answer, number = 0, None, None
        for _ in range(4000):
            begin = ctx.get(dut.room) and rng.random() < 0.6
            ctx.set(dut.i.valid, begin)
            counts, place = rng.random() < 0.8, rng.randrange(8)
            grants = some_fields(rng, dut.layouts.grant, tag=tag, ndr=rng.choice(list(S2MNDR)[:3]))
            grants["has_ndr"] |= not grants["data"]
            ctx.set(dut.i.p, {"grants": grants, "place": place, "counts": counts})
            uncounted += begin and not counts
            if answer is None and waiting and rng.random() < 0.6:
                number = rng.choice(sorted(waiting))
                whose = {"tag": number, "ld_id": waiting[number]["grants"]["ld_id"]}
                opcode = S2MDRS.MEM_DATA_NXM if rng.random() < 0.2 else S2MDRS.MEM_DATA
                layout = dut.i_drs.p.shape()
                answer = some_fields(rng, layout, opcode=opcode, **whose)
                ctx.set(dut.i_drs.p, answer)
            ctx.set(dut.i_drs.valid, answer is not None)
            for port in (dut.o_drs, dut.o_ndr):
                ctx.set(port.ready, rng.random() < 0.6)
            index = rng.randrange(SIZES_.sets)
            ctx.set(dut.i_look, index)
            live = [each for each in (*waiting.values(), *owed.values()) if each["counts"]]
            places = {each["place"] for each in live} | ({place} if begin and counts else set())
            ways = [place % SIZES_.ways for place in places if place // SIZES_.ways == index]
            assert ctx.get(dut.o_under_way) == sum(1 << way for way in ways)
            assert ctx.get(dut.idle) == (not waiting and not owed)
            mine = ctx.get(dut.o_number)
            assert not begin or mine not in waiting.keys() | owed.keys()
            for part, port in (("data", dut.o_drs), ("has_ndr", dut.o_ndr)):
                if ctx.get(port.valid):
                    (each,) = owed.values()
                    assert part in each
                    if ctx.get(port.ready):
                        tell(fields(ctx, port.p), each, part)
            taken = answer is not None and ctx.get(dut.i_drs.ready)
            # It is taken as the one before leaves.
            assert not taken or not any({"data", "has_ndr"} & each.keys() for each in owed.values())
            await ctx.tick()
            for done in [n for n, e in owed.items() if not {"data", "has_ndr"} & e.keys()]:
                del owed[done]
                told += 1
            if begin:
                tag += 1
                waiting[mine] = {"grants": grants, "place": place, "counts": counts}
            if taken:
                each = waiting.pop(number)
                parts = {part: 1 for part in ("data", "has_ndr") if each["grants"][part]}
                owed[number] = each | parts | {"answer": answer}
                answer = None

    simulate(opened(dut)[0], bench)
    assert told > 1000 and uncounted > 100


@pytest.mark.parametrize("flips", [0, 1, 2])
def test_an_entry_with_flipped_bits(flips):
    """One is corrected, and told as the answer leaves; of two the answer is dropped, and its number
    is free again. Neither counts where nobody asked."""
    dut, told, sent = new_grants(), [], []
    top, memories = opened(dut)
    (rows,) = (memory for name, memory in memories.items() if name.startswith("rows"))

    async def bench(ctx):
        ctx.set(dut.i.valid, 1)
        ctx.set(dut.i.p.grants, {"tag": 40, "ld_id": 5, "data": 1})
        number = ctx.get(dut.o_number)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        flip(ctx, rows, number, *range(flips))
        for drs_ready, comes in ((0, 1), (0, 0), (1, 0), (1, 0), (1, 1), (1, 0), (1, 0), (1, 0)):
            ctx.set(dut.i_drs.valid, comes)
            ctx.set(dut.i_drs.p, {"tag": number, "ld_id": 5})
            ctx.set(dut.o_drs.ready, drs_ready)
            if ctx.get(dut.o_drs.valid) and drs_ready:
                sent.append(ctx.get(dut.o_drs.p.tag))
            told.append(fields(ctx, dut.fault))
            await ctx.tick()
        assert ctx.get(dut.idle)

    simulate(top, bench)
    assert sent == ([] if flips == 2 else [40])
    met = [n for n, each in enumerate(told) if each != NO_FAULT]
    assert met == ([], [3], [2])[flips]
    assert all(told[n] == NO_FAULT | {("corrected", "fatal")[flips - 1]: 1} for n in met)


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


@pytest.mark.parametrize("tag", [3, SIZES_.pending, 1 << 15])
def test_an_answer_to_no_read_is_dropped_and_frees_nothing(tag):
    """An inner device with a fatal error may answer again and again; also with what is no
    number, whose low bits are another read's."""
    dut = new_grants()

    async def bench(ctx):
        if tag >= SIZES_.pending:
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p.grants.data, 1)
            assert ctx.get(dut.o_number) == 0
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
        ctx.set(dut.o_drs.ready, 1)
        ctx.set(dut.i_drs.p.tag, tag)
        ctx.set(dut.i_drs.valid, 1)
        for _ in range(40):
            await ctx.tick()
            assert not ctx.get(dut.o_drs.valid) and not ctx.get(dut.o_ndr.valid)
        ctx.set(dut.i_drs.valid, 0)
        assert ctx.get(dut.idle) == (tag < SIZES_.pending)  # the other read is under way still
        numbers = []
        while ctx.get(dut.room):
            numbers.append(ctx.get(dut.o_number))
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            await ctx.tick()
        assert len(numbers) == SIZES_.pending - Grants.RESERVE + (tag < SIZES_.pending)
        assert len(set(numbers)) == len(numbers)

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
