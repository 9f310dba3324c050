# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageMarks: each marked page once, in ascending order."""

import random
from collections import Counter

import pytest
from flips import Opened, fields, flip
from streams import Ends, pump

from kelp_hw.choice.page_marks import PageMarks


def given(sets, *, pages=256, offer=1.0, take=1.0, flips=0, told=None):
    """What comes out of each set of lists, and all transfers. Rows hold anything before a reset has
    cleared them; of each `flips` bits flip behind it, and `told` counts what is said of that."""
    lists = len(sets[0])
    sends = {
        f"i.{k}": [
            {"page": page, "last": n == len(each[k]) - 1}
            for each in sets
            for n, page in enumerate(each[k])
        ]
        for k in range(lists)
    }
    dut = Opened(PageMarks(pages=pages, lists=lists, protect=flips > 0))
    rng = random.Random(lists)

    async def before(ctx, dut):
        for memory in dut.memories.values():
            for row in range(memory.depth):
                ctx.set(memory[row], rng.getrandbits(len(memory[row])))
        for _ in range(pages // 32):
            await ctx.tick()
        for memory in dut.memories.values():
            for row in range(memory.depth):
                flip(ctx, memory, row, *rng.sample(range(len(memory[row])), flips))

    def watch(ctx):
        faults = fields(ctx, dut.fault)
        if told is not None:
            told.update(name for name in faults if faults[name])
        assert flips or not any(faults.values())

    ends = Ends(sends=sends, takes=("o",), offer=offer, take=take, before=before, watch=watch)
    count = sum(len(marks) for each in sets for marks in each)
    cycles = int((count * 3 + len(sets) * (pages // 10 + 10) + 40) * 2 / offer / take)
    seen, out = pump(dut, ends, cycles=cycles), [[]]
    for transfer in seen["o"]:
        out[-1].append(transfer.item.page)
        if transfer.item.last:
            out.append([])
    assert out.pop() == []
    return out, seen


def union(sets):
    return [sorted({page for marks in each for page in marks}) for each in sets]


@pytest.mark.parametrize("pages", [64, 256])
def test_each_page_once_in_ascending_order(pages):
    rng = random.Random(pages)
    sets = [
        [[rng.randrange(pages) for _ in range(rng.choice([1, 5, 40, 90]))]] for _ in range(12)
    ] + [[[pages - 1]], [[0]], [list(range(pages))]]
    assert given(sets, pages=pages, offer=0.7, take=0.6)[0] == union(sets)


def test_lists_of_a_set_are_joined():
    """They end one after another, and the next set waits for its turn."""
    rng = random.Random(3)
    sets = [
        [[rng.randrange(128) for _ in range(rng.choice([1, 4, 20]))] for _ in range(3)]
        for _ in range(12)
    ]
    assert given(sets, pages=128, offer=0.7, take=0.6)[0] == union(sets)
    assert given(sets, pages=128)[0] == union(sets)


@pytest.mark.parametrize("sets", [[[[120], [40]]], [[[120, 40, 3], [3, 3, 70]], [[5], [6]]]])
def test_the_highest_row_of_a_set_is_marked_beside_a_lower_one(sets):
    """Two lists mark in one cycle, each a row above all before: the higher one is the set's last,
    whichever list it is of."""
    assert given(sets, pages=128)[0] == union(sets)
    sets = [each[::-1] for each in sets]
    assert given(sets, pages=128)[0] == union(sets)


@pytest.mark.parametrize(("flips", "kind"), [(1, "corrected"), (2, "fatal")])
def test_flipped_bits_are_told_where_a_row_is_used(flips, kind):
    """By each first mark in a row, and where a row without one is passed; never else, and a row
    that was marked is whole again."""
    marks, told = [40, 41, 3, 200, 60], Counter()
    try:
        out = given([[marks], [[7, 250]]], offer=0.4, take=0.6, flips=flips, told=told)[0]
    except AssertionError:
        assert flips == 2  # a mark may be anything
    else:
        assert flips == 2 or out == [sorted(marks), [7, 250]]
    # Rows 1, 0 and 6 are marked, 2 to 5 passed; of the second set row 7 alone is not wiped.
    assert flips == 2 or told == {kind: 3 + 4 + 1}
    assert told[kind] > 3 and len(told) == 1


def test_latency_and_interval():
    _, seen = given([[[9, 3, 40], [9]], [[5], [4]]], pages=64)
    marks = [t.taken for t in seen["i.0"]]
    assert marks[2] - marks[1] == PageMarks.INTERVAL
    first, second, third, *_ = (t.offered for t in seen["o"])
    assert first - marks[2] == PageMarks.LATENCY
    assert (second - first, third - second) == (1, 3)


@pytest.mark.parametrize("pages", [32, 96])
def test_pages_are_checked(pages):
    with pytest.raises(ValueError, match=f"pages = {pages} is refused"):
        PageMarks(pages=pages, lists=1)
