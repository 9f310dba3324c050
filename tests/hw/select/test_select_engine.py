# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SelectEngine: whole choices, equal to the golden model's, with memories that answer in order."""

import pytest
from select_cases import SCALE, Group, put_queries
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.select.select_engine import SelectEngine

PAGES = 64


def run(group, newest, *, quota=3, most=4, target=1 << 24, offer=1.0, take=1.0, cycles=2500):
    """All transfers of one choice after another, with each of `newest` pages."""
    heads, lines = group.query.e.shape
    dut = SelectEngine(heads=heads, lines=lines, pages=PAGES, quota=quota, most=most)
    tokens = group.scale.shape[1]
    keys, summaries = group.key_lines(), group.summary_lines()

    def answer(path, item):
        page = int(item)
        if path == "o_summary":
            for line in summaries[page * lines : (page + 1) * lines]:
                yield "i_summary", line
        if path == "o_key":
            for n in range(tokens * lines):
                end = n // lines == tokens - 1
                yield "i_key", keys[page * tokens * lines + n] | {"id": page | end * PAGES}

    sends = {
        "i": [{"newest": page, "most": most, "target": target} for page in newest],
        "i_summary": [],
        "i_key": [],
    }
    takes = ("o_summary", "o_key", "o")
    ends = Ends(
        sends=sends,
        takes=takes,
        offer=offer,
        take=take,
        held={"scale": SCALE},
        answer=lambda path, item: answer(path, item) if path in takes[:2] else (),
        before=put_queries(group.query),
    )
    return pump(dut, ends, cycles=int(cycles * len(newest) / offer / take)), dut


def golden(group, newest, *, quota=3, most=4, target=1 << 24):
    """What comes out: (page, mass) of each, and what ends it."""
    out = []
    for page in newest:
        keys = [select.Blocks(*(part[p] for part in group.keys)) for p in range(page + 1)]
        pages = select.Summary(*(part[: page + 1].copy() for part in group.summary))
        found = select.select_pages(
            group.query, keys, pages, quota=quota, target=target, most=most, **SCALE
        )
        pairs = zip(found.pages, found.masses, strict=True)
        out += [(int(p), int(mass), 0) for p, mass in pairs] + [(0, 0, 1)]
    return out


def given(seen):
    return [(t.item.id, t.item.mass, int(t.item.none)) for t in seen["o"]]


@pytest.mark.parametrize(("heads", "lines"), [(1, 1), (3, 2)])
def test_choices_are_the_golden_ones(heads, lines):
    group = Group(heads + 20, heads=heads, lines=lines, pages=30, tokens=4)
    newest = [0, 1, 2, 3, 12, 29]
    seen, _ = run(group, newest, offer=0.7, take=0.6)
    assert given(seen) == golden(group, newest)


@pytest.mark.parametrize("target", [0, 1 << 15, 1 << 16])
def test_the_target_ends_a_choice(target):
    group = Group(9, heads=2, lines=1, pages=20, tokens=4)
    seen, _ = run(group, [19, 19], target=target, most=8, quota=6)
    assert given(seen) == golden(group, [19, 19], target=target, most=8, quota=6)


def test_latency_and_interval():
    group = Group(4, heads=1, lines=1, pages=1, tokens=1)
    seen, dut = run(group, [0, 0, 0], cycles=200)
    starts = [t.offered for t in seen["i"]]
    first = [t.offered for t in seen["o"] if not t.item.none]
    assert first[1] - first[0] == dut.INTERVAL
    assert first[1] - starts[1] == dut.LATENCY


def test_cycles_are_those_of_the_formula():
    """docs/select.md, "Passes and rates": within the fixed latencies of its blocks."""
    heads, lines, tokens, quota, pages = 2, 2, 8, 4, 40
    group = Group(11, heads=heads, lines=lines, pages=pages, tokens=tokens)
    seen, _ = run(group, [pages - 1], quota=quota, cycles=4000)
    scored = len(seen["o_key"])
    took = seen["o"][0].offered - seen["i"][0].offered
    stages = (pages - 2) * lines + scored * tokens * lines + (2 * scored + 50) * heads
    assert stages < took < stages + 2 * heads * quota + 130
