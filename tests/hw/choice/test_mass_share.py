# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MassShare: the golden mass sums of lists of pages."""

import numpy as np
import pytest
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.mass_share import MassShare


def made(seed, *, heads, pages):
    """(e, z, named, more) of a list."""
    rng = np.random.default_rng(seed)
    spread = (200, 2000, 12000)[seed % 3]
    tokens = 1 + 15 * (seed % 2)  # of one token, masses are further apart
    e, z = select.page_masses(rng.integers(-spread, spread, (heads, pages, tokens)))
    return e, z, rng.random(pages) < 0.8, rng.integers(0, 1 << rng.choice([8, 16, 24]), heads)


def shared(lists, *, heads, depth=32, offer=1.0, take=1.0):
    """All transfers."""
    dut, sends = MassShare(heads=heads, depth=depth, id_bits=6), []
    for e, z, named, more in lists:
        pages = len(named)
        sends += [
            {
                "mass": {"e": e[:, p].tolist(), "z": z[:, p].tolist(), "id": p},
                "named": int(named[p]),
                "last": p == pages - 1,
                "more": [int(x) for x in more] if p == pages - 1 else [7] * heads,
            }
            for p in range(pages)
        ]
    cycles = sum(dut.latency(len(named)) + 10 + 4 * len(named) for _, _, named, _ in lists)
    ends = Ends(sends={"i": sends}, takes=("o",), offer=offer, take=take)
    return pump(dut, ends, cycles=int(cycles / offer / take)), dut


def expected(lists):
    return [
        (p, int(mass), p == len(named) - 1)
        for e, z, named, more in lists
        for p, mass in enumerate(select.mass_sums(e, z, np.ones(len(named), bool), named, more))
    ]


def given(seen):
    return [(t.item.id, t.item.mass, bool(t.item.last)) for t in seen["o"]]


@pytest.mark.parametrize(("heads", "depth"), [(1, 32), (3, 32), (8, 32), (4, 34)])
def test_sums_are_the_golden_ones(heads, depth):
    """Also with places that are no power of two, as in every named configuration."""
    lists = [
        made(10 * heads + n, heads=heads, pages=pages) for n, pages in enumerate((5, depth, 1))
    ]
    seen, _ = shared(lists, heads=heads, depth=depth, offer=0.7, take=0.6)
    assert given(seen) == expected(lists)


def test_a_page_that_has_all_has_the_most():
    e, z, named = np.zeros((2, 1), int), np.full((2, 1), 1 << 15), np.zeros(1, bool)
    lists = [(e, z, named, np.array([1 << 20] * 2))]
    assert given(shared(lists, heads=2)[0]) == expected(lists) == [(0, 2 * 65535, True)]


def test_masses_that_divide_exactly():
    e, named = np.zeros((1, 4), int), np.ones(4, bool)
    z = np.array([[1 << 15, 1 << 15, 1 << 16, 1 << 17]])
    lists = [(e, z, named, np.zeros(1, int))]
    assert given(shared(lists, heads=1)[0]) == expected(lists)
    assert [mass for _, mass, _ in expected(lists)] == [8192, 8192, 16384, 32768]


@pytest.mark.parametrize("pages", [1, 7, 32])
def test_latency_and_interval(pages):
    lists = [made(3, heads=2, pages=pages)] * 3
    seen, dut = shared(lists, heads=2)
    times = [t.taken for t in seen["i"]], [t.offered for t in seen["o"]]
    assert times[0][:pages] == list(range(times[0][0], times[0][0] + pages * dut.INTERVAL))
    first = times[0][pages - 1] + dut.latency(pages)
    assert times[1][:pages] == list(range(first, first + pages * dut.INTERVAL))
    # A second list comes in behind it, a third when the first has gone.
    assert times[0][pages] == times[0][pages - 1] + 1
    assert times[0][2 * pages] == seen["o"][pages - 1].taken + 1


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_each_list_takes_as_long(heads):
    """Lists of a page, each sent when the one before has left."""
    dut = MassShare(heads=heads, depth=4, id_bits=6)
    mass = {"e": [0] * heads, "z": [1 << 15] * heads, "id": 0}
    item = {"mass": mass, "named": 1, "last": 1, "more": [0] * heads}
    lists, sent = 6, 1

    def answer(path, _):
        nonlocal sent
        sent += 1
        return [("i", item)] if sent <= lists else ()

    ends = Ends(sends={"i": [item]}, takes=("o",), answer=answer)
    seen = pump(dut, ends, cycles=lists * (dut.latency(1) + 5))
    assert len(seen["o"]) == lists
    took = [o.offered - i.taken for i, o in zip(seen["i"], seen["o"], strict=True)]
    assert took == [dut.latency(1)] * lists


def test_depth_is_checked():
    with pytest.raises(ValueError, match="depth = 1 is refused; legal: 2 … 512"):
        MassShare(heads=1, depth=1, id_bits=1)
