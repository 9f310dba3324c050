# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Choice: the golden choice among pages with masses, one page a cycle."""

import numpy as np
import pytest
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.select.choice import Choice


def made(seed, pages):
    """(masses, present, always) of a list: few masses, so that many are equal."""
    rng = np.random.default_rng(seed)
    masses = rng.integers(0, (4, 1 << 17)[seed % 2], pages)
    present, always = rng.random(pages) < 0.8, np.zeros(pages, bool)
    always[0] = always[-1] = True
    return masses, present | always, always


def chosen(lists, *, target, most, depth=8, offer=1.0, take=1.0):
    """(id, mass, none, missing) of all that comes out, and all transfers."""
    dut, sends = Choice(depth=depth, mass_bits=18, id_bits=8), []
    for masses, present, always in lists:
        sends += [
            {
                "id": page,
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
    fields = ("id", "mass", "none", "missing")
    return [tuple(int(getattr(t.item, name)) for name in fields) for t in seen["o"]], seen


def expected(lists, *, target, most):
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
        out += [(int(page), int(mass), 0, 0) for page, mass in pairs]
        out.append((0, 0, 1, found.missing))
    return out


@pytest.mark.parametrize("most", [0, 1, 8])
@pytest.mark.parametrize("target", [0, 9, 300_000, (1 << 28) - 1])
def test_the_choice_is_the_golden_one(target, most):
    lists = [made(seed, pages) for seed, pages in enumerate((1, 2, 30, 30, 7, 40))]
    got, _ = chosen(lists, target=target, most=most, offer=0.7, take=0.6)
    assert got == expected(lists, target=target, most=most)


@pytest.mark.parametrize("target", [14, 15, 16, 44, 45, 46])
def test_a_sum_that_reaches_the_target_is_enough(target):
    always = np.array([1, 0, 0, 0, 1], bool)
    lists = [(np.array([10, 30, 50, 30, 5]), np.array([1, 1, 0, 1, 1], bool), always)]
    assert chosen(lists, target=target, most=8)[0] == expected(lists, target=target, most=8)


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
