# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The directory beside the golden model, op by op, with requests that are sent back; its pace; with
bits flipped in its rows; what a reset leaves of them."""

import random

import pytest
from flips import NO_FAULT, fields, opened, simulate_memory
from simulation import simulate
from timing import check_pace, shown

from kelp_golden.coherence import Directory as Golden
from kelp_hw.coherence.directory import Directory
from kelp_spec.coherence import SIZES, Coherence, DirectoryOp, DirectoryOutcome
from kelp_spec.config import named
from kelp_spec.messages import S2MNDR
from kelp_verif.coherence.coherent_bench import compare, expected

CONFIG, SIZES_ = named("unit"), SIZES["unit"]
SENT_BACK = (DirectoryOutcome.WAIT, DirectoryOutcome.RECALL)


#: With requests that come by the GATHER window.
GATHERS = named("unit_select")


def new_directory(sizes=SIZES_, config=CONFIG):
    return Directory(config=config, sizes=sizes)


def test_latency_and_interval():
    ops = [
        {"i.valid": 1, "i.p.kind": DirectoryOp.ASK, "i.p.sector": sector} for sector in (1, 2, 3)
    ]
    output = shown("o", "op.sector")
    check_pace(new_directory(), "LATENCY", output, ops, settle=SIZES_.sets + 4)


def neighbours(rng, sizes, config):
    """Pairs of sectors of one set, whose tags differ in one bit: in each bit once."""
    golden, pairs = Golden(sizes, config), []
    for bit in range(golden.tag_bits):
        sector = rng.getrandbits(sizes.sector_address_bits(config))
        index, tag = golden.place(sector)
        pairs.append((sector, golden.sector_of(index, tag ^ 1 << bit)))
    rng.shuffle(pairs)
    return pairs


def some_op(rng, recalls, sectors, gathers=False):
    kind = rng.choices(list(DirectoryOp), [60, 20, 10, 30])[0]
    if kind == DirectoryOp.FINISH:
        if not recalls:
            return None
        sector, way = recalls.pop(rng.randrange(len(recalls)))
        return {"kind": kind, "sector": sector, "way": way}
    op = {
        "kind": kind,
        "sector": rng.choice(sectors),
        "line": rng.randrange(SIZES_.sector),
    }
    if kind == DirectoryOp.ASK:
        return op
    op |= {"tracked": rng.random() < 0.9, "holds": rng.random() < 0.7}
    op |= {"shared": op["holds"] and rng.random() < 0.5}
    evicts = not op["holds"] and rng.random() < 0.5
    if kind == DirectoryOp.WRITE:
        return op | {"rounds": rng.random() < 0.5, "tracked": 1, "evicts": evicts}
    if gathers and rng.random() < 0.3:
        return op | {"gathers": 1, "holds": 0}
    return op | {"evicts": evicts}


async def put(ctx, port, values):
    for name in port.shape().members:
        ctx.set(port[name], int(values.get(name, 0)))


FOUR_WAYS = Coherence(sets=2, ways=4, sector=4, recalls=2, pending=16, eager=False)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (CONFIG, SIZES_),
        (CONFIG, SIZES["unit_coherent"]),
        (CONFIG, FOUR_WAYS),
        (GATHERS, SIZES["unit_coherent"]),
    ],
    ids=["eager", "not eager", "four ways", "with gathers"],
)
def test_every_op_comes_to_what_the_golden_model_says(config, sizes):
    """And comes out as it went in, two cycles later; a request of the epoch before is dropped, and
    nothing else is; the set is named a cycle ahead."""
    rng, golden = random.Random(sizes.eager), Golden(sizes, config)
    pairs = neighbours(rng, sizes, config)
    dut, called_home = new_directory(sizes, config), 0
    recalls, seen, epoch, compared = [], set(), 0, 0

    def judged(got, told):
        """An op that was decided, and what it came to."""
        nonlocal epoch, compared, called_home
        is_request = told["kind"] == DirectoryOp.REQUEST
        assert got["dropped"] == (is_request and told["epoch"] != epoch)
        if got["dropped"]:
            return
        assert got["hit"] == (golden.find(told["sector"])[2] is not None)
        want = expected(golden, told, got, sizes)
        if want is None:
            assert (got["outcome"], got["ungranted"]) == (DirectoryOutcome.DONE, 0)
            return
        compare(compared, got, want, golden, told, sizes)
        compared += 1
        seen.add((told["kind"], got["outcome"]))
        if want.recall:
            recalls.append((want.recall[1], want.recall[0]))
            called_home += bool(told.get("gathers"))
        if is_request and got["outcome"] in SENT_BACK:
            epoch ^= 1

    async def bench(ctx):
        while not ctx.get(dut.ready):
            await ctx.tick()
        says, under_way = 0, [None] * dut.LATENCY
        for cycle in range(6000):
            # A few pairs at a time, in turn, so that both of one are often here.
            first = cycle // 200
            near = [pairs[k % len(pairs)] for k in range(first, first + 4)]
            sectors = [sector for pair in near for sector in pair]
            op = some_op(rng, recalls, sectors, config.select) if rng.random() < 0.9 else None
            free = rng.random() < 0.7
            ctx.set(dut.i.valid, op is not None)
            sent = (op or {}) | {"epoch": epoch}
            await put(ctx, dut.i.p, sent)
            ctx.set(dut.free, free)
            # Of the op that is decided now: what was said of its set in the cycle before.
            granting, says = says, rng.choice([0, rng.getrandbits(sizes.ways)])
            ctx.set(dut.i_under_way, says)
            ahead = under_way[-1]
            if ahead:
                assert ctx.get(dut.o_look) == golden.place(ahead["sector"])[0]
            under_way.append({n: sent.get(n, 0) for n in dut.i.p.shape().members} if op else None)
            told = under_way.pop(0)
            assert ctx.get(dut.o.valid) == (told is not None)
            if told:
                got = fields(ctx, dut.o.p)
                assert fields(ctx, dut.o.p.op) == told
                assert (got["free"], got["granting"]) == (free, granting)
                judged(got, told)
            await ctx.tick()

    simulate(opened(dut)[0], bench)
    assert compared > 3000 and (called_home > 5) == bool(config.select)
    assert {(DirectoryOp.REQUEST, outcome) for outcome in DirectoryOutcome} <= seen
    assert {(DirectoryOp.ASK, each) for each in (0, 1, 3)} <= seen


def test_every_set_is_emptied_before_ready():
    """Whatever the rows hold, a set a cycle."""
    dut = new_directory()

    async def bench(ctx, memory):
        empty = ctx.get(memory[0])
        for row in range(SIZES_.sets):
            ctx.set(memory[row], ~0)
        for row in range(SIZES_.sets):
            assert not ctx.get(dut.ready)
            await ctx.tick()
            left = [ctx.get(memory[n]) != empty for n in range(SIZES_.sets)]
            assert left == [n > row for n in range(SIZES_.sets)]
        assert ctx.get(dut.ready)

    simulate_memory(dut, bench)


@pytest.mark.parametrize(("bits", "fault"), [(0, {}), (1, {"corrected": 1}), (2, {"fatal": 1})])
def test_a_flip_is_corrected_and_two_are_fatal(bits, fault):
    """It is told once of each op that reads the row; not of one to whose row another is written in
    that cycle, and not where there is no op."""
    dut, told = new_directory(), []

    async def bench(ctx, memory):
        while not ctx.get(dut.ready):
            await ctx.tick()
        for row in range(SIZES_.sets):
            ctx.set(memory[row], ctx.get(memory[row]) ^ (1 << bits) - 1 << 3)
        op = {"kind": DirectoryOp.REQUEST, "sector": 9, "tracked": 1, "holds": 1}
        for ops in ((op | {"kind": DirectoryOp.ASK},), (op, op)):
            for each in (*ops, {}, {}, {}, {}):
                await put(ctx, dut.i.p, each or op)
                ctx.set(dut.i.valid, bool(each))
                await ctx.tick()
                told.append(fields(ctx, dut.fault))

    simulate_memory(dut, bench)
    met = [n for n, each in enumerate(told) if each == NO_FAULT | fault]
    assert not bits or met == [1, 6]
    assert all(each == NO_FAULT for n, each in enumerate(told) if n not in met)


def test_after_a_fatal_error_no_request_waits_and_none_is_granted():
    """Also of a sector whose recall never ends; without the error it waits."""
    dut = new_directory(SIZES["unit_coherent"])

    async def bench(ctx):
        while not ctx.get(dut.ready):
            await ctx.tick()

        async def comes_to(**op):
            await put(ctx, dut.i.p, {"kind": DirectoryOp.REQUEST, "sector": 9} | op)
            ctx.set(dut.i.valid, 1)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            await ctx.tick()
            assert ctx.get(dut.o.valid) and not ctx.get(dut.o.p.dropped)
            result = fields(ctx, dut.o.p)
            await ctx.tick()
            return result["outcome"], result["ndr"]

        own = {"tracked": 1, "holds": 1}
        ctx.set(dut.free, 1)
        assert await comes_to(**own) == (DirectoryOutcome.DONE, S2MNDR.CMP_E)
        await comes_to(kind=DirectoryOp.ASK)
        assert (await comes_to(**own))[0] == DirectoryOutcome.WAIT
        ctx.set(dut.fatal, 1)
        for sector in (9, 10):
            got = await comes_to(**own, sector=sector, epoch=1)
            assert got == (DirectoryOutcome.DONE, S2MNDR.CMP)

    simulate(opened(dut)[0], bench)
