# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageMarks: each marked page once, in ascending order."""

import random

import pytest
from streams import Ends, pump

from kelp_hw.choice.page_marks import PageMarks


def given(sets, *, pages=256, offer=1.0, take=1.0):
    """What comes out of each set of lists, and all transfers."""
    lists = len(sets[0])
    sends = {
        f"i.{k}": [
            {"page": page, "last": n == len(each[k]) - 1}
            for each in sets
            for n, page in enumerate(each[k])
        ]
        for k in range(lists)
    }
    dut = PageMarks(pages=pages, lists=lists)
    ends = Ends(sends=sends, takes=("o",), offer=offer, take=take)
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
