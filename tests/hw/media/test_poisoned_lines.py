# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The lines that the endpoint finds poisoned, one by one, and records between them."""

import random
from itertools import count, pairwise

import pytest
from flips import NO_FAULT, fields, flip, opened
from simulation import simulate
from streams import Ends, pump
from timing import check_pace, offers, shown

from kelp_hw.lib.protected import CheckedWord
from kelp_hw.media.poisoned_lines import PoisonedLines
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import named
from kelp_spec.cxlio.events import PoisonSource

UNIT = named("unit_cxl")
#: Where a queue's number is no part of an address: a session's queues are no power of two.
ODD = UNIT.with_(sessions=3, queues=3)


def pages(config, count, seed, most=64):
    rng, found = random.Random(seed), []
    for _ in range(count):
        lines = rng.sample(range(config.page_lines), rng.randint(1, min(config.page_lines, most)))
        found.append(
            {
                "squeue": rng.randrange(config.sessions * config.queues),
                "page": rng.randrange(config.pages),
                "lines": sum(1 << line for line in lines),
                "source": rng.choice(list(PoisonSource)),
                "healed": rng.randrange(2),
            }
        )
    return found


def lines_of(config, page):
    """What is told of each line of a page, lowest first."""
    at, half = AddressMap(config), config.half_lines
    session, queue = divmod(page["squeue"], config.queues)
    for line in range(config.page_lines):
        if page["lines"] >> line & 1:
            place = KvAddress(session, queue, page["page"], line // half, line % half)
            yield at.encode(place), page["source"], page["healed"]


def told_of(events):
    return [(e["dpa"], e["source"], e["healed"]) for e in events]


def records(count):
    return [{"log": i % 4, "dpa": 64 * i, "word": i, "more": 7 * i} for i in range(count)]


@pytest.mark.parametrize("take", [1.0, 0.4])
@pytest.mark.parametrize("protect", [True, False])
@pytest.mark.parametrize("config", [UNIT, ODD])
def test_each_line_leaves_once_and_each_record(config, protect, take):
    config = config.with_(protect=protect)
    given, told = pages(config, 40, seed=3), records(60)
    ends = Ends(sends={"i": given, "i_record": told}, takes=("o",), offer=0.08, take=take)
    seen = [t.item for t in pump(PoisonedLines(config=config), ends, cycles=1500)["o"]]
    listed = [e for e in seen if e["quiet"]]
    assert not any(e["lost"] for e in seen) and all(e["poison"] for e in listed)
    wanted = [each for page in given for each in lines_of(config, page)]
    assert told_of(listed) == wanted
    passed = [e for e in seen if not e["quiet"]]
    assert [{name: e[name] for name in told[0]} for e in passed] == told
    assert not any(e["poison"] for e in passed)


def test_pages_of_many_lines():
    """Whose word in the queue has several code words."""
    config = UNIT.with_(half_lines=64)
    dut = PoisonedLines(config=config)
    assert config.page_lines > CheckedWord.MOST
    given = pages(config, 12, seed=6, most=9)
    ends = Ends(sends={"i": given}, takes=("o",), offer=0.2)
    seen = [t.item for t in pump(dut, ends, cycles=200)["o"]]
    assert told_of(seen) == [each for page in given for each in lines_of(config, page)]
    assert not any(e["lost"] for e in seen)


def test_lines_and_records_take_turns():
    """While both wait: neither waits for more than one of the other."""
    given = pages(UNIT, 12, seed=4)
    ends = Ends(sends={"i": given, "i_record": records(60)}, takes=("o",))
    seen = [t.item["quiet"] for t in pump(PoisonedLines(config=UNIT), ends, cycles=80)["o"]]
    both = seen[PoisonedLines.LATENCY : 2 * min(sum(p["lines"].bit_count() for p in given), 50)]
    assert len(both) > 40 and all(a != b for a, b in pairwise(both))


def test_what_finds_no_room_is_told_of_once_and_the_others_are_there():
    dut = PoisonedLines(config=UNIT)
    given = pages(UNIT, 60, seed=5)
    cycles = count()

    def watch(ctx):
        ctx.set(dut.o.ready, next(cycles) > 120)

    ends = Ends(sends={"i": given}, takes=("o",), take=0.0, watch=watch)
    seen = [t.item for t in pump(dut, ends, cycles=600)["o"]]
    lost = [i for i, e in enumerate(seen) if e["lost"]]
    # The line that stood there when the room was over goes first, then what tells of it.
    assert lost == [1]
    assert not seen[1]["healed"]
    got = told_of(e for e in seen if not e["lost"])
    first = [each for page in given[: dut.DEPTH + 3] for each in lines_of(UNIT, page)]
    assert got == first[: len(got)] and len(got) >= len(
        [each for page in given[: dut.DEPTH] for each in lines_of(UNIT, page)]
    )
    assert all(e["quiet"] and e["poison"] for e in seen)


@pytest.mark.parametrize("more", [0, 20])
def test_what_is_erased_is_forgotten(more):
    """And that pages were lost; one line stands at the output."""
    dut = PoisonedLines(config=UNIT)
    given, late, cycles = pages(UNIT, dut.DEPTH + more, seed=7), pages(UNIT, 3, seed=8), count()
    comes = dict(enumerate(given)) | dict(enumerate(late, 100))

    def watch(ctx):
        cycle = next(cycles)
        ctx.set(dut.forget, 60 <= cycle < 60 + dut.DEPTH + 2)
        ctx.set(dut.o.ready, cycle > 90)
        ctx.set(dut.i.valid, cycle in comes)
        ctx.set(dut.i.p, comes.get(cycle, {}))

    ends = Ends(sends={}, takes=("o",), take=0.0, watch=watch)
    seen = [t.item for t in pump(dut, ends, cycles=200)["o"]]
    wanted = [each for page in late for each in lines_of(UNIT, page)]
    assert told_of(seen) == [next(lines_of(UNIT, given[0])), *wanted]
    assert not any(e["lost"] for e in seen)


@pytest.mark.parametrize("bits", [1, 2])
def test_a_page_that_has_flipped_bits(bits):
    """One is corrected, with two the page is lost, which is told of, and the next is right."""
    config = UNIT.with_(protect=True)
    dut, rng = PoisonedLines(config=config), random.Random(6)
    given, seen, faults = pages(config, 6, seed=6), [], []
    top, memories = opened(dut)
    (memory,) = memories.values()

    async def offer(ctx, page):
        ctx.set(dut.i.p, page)
        ctx.set(dut.i.valid, 1)
        await tick(ctx)
        ctx.set(dut.i.valid, 0)

    async def tick(ctx):
        if ctx.get(dut.o.valid) & ctx.get(dut.o.ready):
            seen.append(fields(ctx, dut.o.p))
        if (fault := fields(ctx, dut.fault)) != NO_FAULT:
            faults.append(fault)
        await ctx.tick()

    async def bench(ctx):
        for page in given:
            await offer(ctx, page)
        for _ in range(4):
            await tick(ctx)
        # Rows 0 and 1 have gone to the block's own registers.
        flip(ctx, memory, 3, *rng.sample(range(20), bits))
        ctx.set(dut.o.ready, 1)
        for _ in range(80):
            await tick(ctx)

    simulate(top, bench)
    assert faults == [NO_FAULT | {"corrected" if bits == 1 else "poisoned": 1}]
    kept = [page for i, page in enumerate(given) if bits == 1 or i != 3]
    wanted = [each for page in kept for each in lines_of(config, page)]
    assert told_of(e for e in seen if not e["lost"]) == wanted
    assert sum(e["lost"] for e in seen) == (bits == 2)


def test_latency_and_interval():
    prepare = {"o.ready": 1}
    given = offers(field="page", **{"i.p.lines": 1})
    check_pace(PoisonedLines(config=UNIT), "LATENCY", shown("o", "dpa"), given, prepare=prepare)
