# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choice: the golden choice among pages with masses, one page a cycle."""

import numpy as np
import pytest
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.choice import Choice


def made(seed, pages):
    """(masses, present, always) of a list: few masses, so that many are equal."""
    rng = np.random.default_rng(seed)
    masses = rng.integers(0, (4, 1 << 17)[seed % 2], pages)
    present, always = rng.random(pages) < 0.8, np.zeros(pages, bool)
    always[0] = always[-1] = True
    return masses, present | always, always


def named(page):
    """The id of a page: some have the highest bit."""
    return 6 * page + 3


def chosen(lists, *, target, most, depth=8, offer=1.0, take=1.0, wants=False):
    """(id, mass, none, missing, wanted) of all that comes out, and all transfers."""
    dut, sends = Choice(depth=depth, mass_bits=18, id_bits=8, wants=wants), []
    for masses, present, always in lists:
        sends += [
            {
                "id": named(page),
                "mass": int(mass),
                "always": int(always[page]),
                "present": int(present[page]),
                "last": page == len(masses) - 1,
            }
            for page, mass in enumerate(masses)
        ]
    ends = Ends(
        sends={"i": sends},
        takes=("o",),
        offer=offer,
        take=take,
        held={"target": target, "most": most},
    )
    cycles = int(3 * (len(sends) + 30 * len(lists)) / offer / take)
    seen = pump(dut, ends, cycles=cycles)
    out = []
    for t in seen["o"]:
        none = int(t.item.none)
        wanted = int(t.item.wanted) if wants else 0
        mass = select.MOST_MASS if wanted and t.item.always else t.item.mass
        out.append((t.item.id, mass, none, t.item.missing if none else 0, wanted))
    return in_order(out), seen


def in_order(items):
    """What is wanted of each list behind what is chosen."""
    lists, ends = [], [n for n, item in enumerate(items) if item[2]]
    for begin, end in zip([0, *(n + 1 for n in ends)], [*ends, len(items)], strict=True):
        lists += sorted(items[begin:end], key=lambda item: item[4]) + items[end : end + 1]
    return lists


def expected(lists, *, target, most, wants=False):
    out = []
    for masses, present, always in lists:
        found = select.choose(
            np.arange(len(masses)),
            masses,
            present,
            np.flatnonzero(always),
            target=target,
            most=most,
        )
        pairs = zip(found.pages, found.masses, strict=True)
        out += [(named(int(page)), int(mass), 0, 0, 0) for page, mass in pairs]
        if wants:
            needed = zip(found.wanted, found.needed, strict=True)
            out += [(named(int(page)), int(mass), 0, 0, 1) for page, mass in needed]
        out.append((0, 0, 1, found.missing, 0))
    return out


@pytest.mark.parametrize("most", [8, 2, 0])
@pytest.mark.parametrize("target", [300_000, 9, (1 << 28) - 1, 0])
def test_what_is_wanted_is_the_golden_one(most, target):
    lists = [made(seed, pages) for seed, pages in enumerate((1, 2, 30, 30, 7, 40, 30, 30))]
    for n, (_, present, _) in enumerate(lists):
        present[0], present[-1] = n % 3 != 1, n % 4 != 3
    lists.append((lists[2][0], np.zeros(30, bool), lists[2][2]))
    at = {"target": target, "most": most, "wants": True}
    for take in (0.3, 0.6, 1.0):
        got, seen = chosen(lists, **at, offer=0.7, take=take)
        assert got == expected(lists, **at)
        assert target <= 9 or not most or sum(item[4] for item in got) > 10
        best, always = [], {named(page) for pages, _, _ in lists for page in (0, len(pages) - 1)}
        for item in (t.item for t in seen["o"]):
            if item.none:
                best = []
            elif not (item.always if item.wanted else item.id in always):
                assert not item.wanted or min(best, default=item.mass) >= item.mass, "comes first"
                best += [] if item.wanted else [item.mass]


@pytest.mark.parametrize("most", [0, 1, 8])
@pytest.mark.parametrize("target", [0, 9, 300_000, (1 << 28) - 1])
def test_the_choice_is_the_golden_one(target, most):
    lists = [made(seed, pages) for seed, pages in enumerate((1, 2, 30, 30, 7, 40))]
    got, _ = chosen(lists, target=target, most=most, offer=0.7, take=0.6)
    assert got == expected(lists, target=target, most=most)


@pytest.mark.parametrize("absent", [0, 3])
def test_cycles_of_what_is_wanted(absent):
    masses, always = np.arange(20, 0, -1), np.zeros(20, bool)
    present = np.arange(20) >= absent
    ends = {}
    for wants in (False, True):
        _, seen = chosen([(masses, present, always)], target=1000, most=8, wants=wants)
        ends[wants] = seen["o"][-1].offered - seen["i"][-1].taken
    assert ends[True] - ends[False] == 1 + absent


@pytest.mark.parametrize("target", [14, 15, 16, 44, 45, 46])
def test_a_sum_that_reaches_the_target_is_enough(target):
    always = np.array([1, 0, 0, 0, 1], bool)
    lists = [(np.array([10, 30, 50, 30, 5]), np.array([1, 1, 0, 1, 1], bool), always)]
    assert chosen(lists, target=target, most=8)[0] == expected(lists, target=target, most=8)


def test_fewer_than_the_best_are_counted_however_many():
    lists = [made(2, 30)]
    at = {"target": (1 << 28) - 1, "most": 8}
    got, _ = chosen(lists, **at, depth=9)
    assert got == expected(lists, **at)


def test_latency_and_interval():
    lists = [(np.arange(20), np.ones(20, bool), np.zeros(20, bool))] * 2
    got, seen = chosen(lists, target=1000, most=8)
    assert got == expected(lists, target=1000, most=8)
    times = [t.taken for t in seen["i"]]
    assert times[19] - times[0] == 19 * Choice.INTERVAL
    first = times[19] + Choice.LATENCY
    assert [t.offered for t in seen["o"][:9]] == list(range(first, first + 9))
    assert times[20] == first + 9


def test_depth_is_checked():
    with pytest.raises(ValueError, match="depth = 300 is refused; legal: 1 … 256"):
        Choice(depth=300, mass_bits=4, id_bits=1)
