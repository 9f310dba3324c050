# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageMarks: each marked page once, in ascending order."""

import random

import pytest
from streams import Ends, pump

from kelp_hw.select.page_marks import PageMarks


def given(lists, *, pages=256, offer=1.0, take=1.0):
    """What comes out of each list, and all transfers."""
    sends = [
        {"page": page, "last": n == len(marks) - 1}
        for marks in lists
        for n, page in enumerate(marks)
    ]
    ends = Ends(sends={"i": sends}, takes=("o",), offer=offer, take=take)
    cycles = int((len(sends) * 3 + len(lists) * (pages // 16 + 10) + 40) * 2 / offer / take)
    seen, out = pump(PageMarks(pages=pages), ends, cycles=cycles), [[]]
    for transfer in seen["o"]:
        out[-1].append(transfer.item.page)
        if transfer.item.last:
            out.append([])
    assert out.pop() == []
    return out, seen


@pytest.mark.parametrize("pages", [64, 256])
def test_each_page_once_in_ascending_order(pages):
    rng = random.Random(pages)
    lists = [
        [rng.randrange(pages) for _ in range(rng.choice([1, 5, 40, 90]))] for _ in range(12)
    ] + [[pages - 1], [0], list(range(pages))]
    out, _ = given(lists, pages=pages, offer=0.7, take=0.6)
    assert out == [sorted(set(marks)) for marks in lists]


def test_latency_and_interval():
    _, seen = given([[9, 3, 40], [5]], pages=64)
    marks = [t.taken for t in seen["i"]]
    assert marks[2] - marks[1] == PageMarks.INTERVAL
    first, second, third, _ = (t.offered for t in seen["o"])
    assert first - marks[2] == PageMarks.LATENCY
    assert (second - first, third - second) == (1, 4)


@pytest.mark.parametrize("pages", [32, 96])
def test_pages_are_checked(pages):
    with pytest.raises(ValueError, match=f"pages = {pages} is refused"):
        PageMarks(pages=pages)
