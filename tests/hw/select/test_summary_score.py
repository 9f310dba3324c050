# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryScore: the golden bounds of summaries as memory has them, one line a cycle."""

import pytest
from select_cases import SCALE, Group, put_queries
from streams import Ends, pump

from kelp_hw.select.summary_score import SummaryScore


def bounded(group, *, heads, lines, offer=1.0, take=1.0):
    """The transfers of all pages' bounds."""
    dut, sends = SummaryScore(heads=heads, lines=lines, id_bits=8), group.summary_lines()
    ends = Ends(
        sends={"i": sends},
        takes=("o",),
        offer=offer,
        take=take,
        held={"scale": SCALE},
        before=put_queries(group.query),
    )
    return pump(dut, ends, cycles=int((len(sends) + 40) / offer / take * 1.5))


@pytest.mark.parametrize(("heads", "lines"), [(1, 1), (3, 2), (2, 4)])
def test_bounds_are_the_golden_ones(heads, lines):
    group = Group(heads, heads=heads, lines=lines, pages=40, tokens=4)
    seen = bounded(group, heads=heads, lines=lines, offer=0.7, take=0.6)["o"]
    assert [item.item.id for item in seen] == list(range(40))
    assert [list(item.item.score) for item in seen] == group.bounds().T.tolist()


def test_latency_and_interval():
    group = Group(5, heads=2, lines=2, pages=20, tokens=2)
    seen = bounded(group, heads=2, lines=2)
    lasts = [line.taken for line in seen["i"] if line.item["last"]]
    assert [bound.offered - last for bound, last in zip(seen["o"], lasts, strict=True)] == [
        SummaryScore.LATENCY
    ] * 20
    first, *_, end = (line.taken for line in seen["i"])
    assert end - first == (len(seen["i"]) - 1) * SummaryScore.INTERVAL
