# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Unscored: the golden ratio, of masses of estimates."""

import numpy as np
import pytest
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.unscored import Unscored
from kelp_spec.select import ESTIMATE_MASS_BITS, RATIO_BITS, SCORE_LEAST, SHARE_BITS


def made(seed, *, heads):
    """Estimates [heads, pages] and which pages are named."""
    rng = np.random.default_rng(seed)
    spread = (100, 2000, 20000)[seed % 3]
    return rng.integers(-spread, spread, (heads, 60)), rng.random(60) < (0.9, 0.3, 0.02)[seed % 3]


def masses(estimate, named):
    """What the masses of all and of the named are, as the block is sent them."""
    few = np.where(named, estimate, SCORE_LEAST)
    for each in (estimate, few):
        e, z = select.page_masses(each, ESTIMATE_MASS_BITS)
        yield {"e": e.tolist(), "z": z.tolist(), "id": 0}


def ratios(sent, *, heads, offer=1.0, take=1.0):
    """The transfers for pairs of masses, of all and of the named."""
    ends = Ends(
        sends={"i_all": [each[0] for each in sent], "i_named": [each[1] for each in sent]},
        takes=("o",),
        offer=offer,
        take=take,
    )
    cycles = int(len(sent) * 70 / take + 40 / offer)
    return pump(Unscored(heads=heads), ends, cycles=cycles)


@pytest.mark.parametrize("heads", [1, 3])
def test_ratios_are_the_golden_ones(heads):
    groups = [made(seed, heads=heads) for seed in range(9)]
    sent = [tuple(masses(*group)) for group in groups]
    seen = ratios(sent, heads=heads, offer=0.3, take=0.5)["o"]
    assert [list(t.item) for t in seen] == [select.unscored(*each).tolist() for each in groups]


def test_named_pages_with_more_than_all_leave_nothing():
    """What truncation may make of sums in another order."""
    pair = [{"e": [5], "z": [z], "id": 0} for z in (1 << 20, (1 << 20) + 1)]
    assert [list(t.item) for t in ratios([pair], heads=1)["o"]] == [[0]]


def test_masses_as_large_as_they_have_a_place():
    most = (1 << ESTIMATE_MASS_BITS) - 1
    pairs = [(most, most - 5), (most, 3 << ESTIMATE_MASS_BITS - 2), (most, 1), (most, most // 3)]
    sent = [({"e": [5], "z": [a]}, {"e": [5], "z": [b]}) for a, b in pairs]
    seen = [t.item[0] for t in ratios(sent, heads=1)["o"]]
    assert seen == [min((a - b << SHARE_BITS) // b, (1 << RATIO_BITS) - 1) for a, b in pairs]


def test_latency_and_interval():
    seen = ratios([tuple(masses(*made(0, heads=1)))] * 3, heads=1)["o"]
    assert [t.offered for t in seen] == [Unscored.LATENCY + n * Unscored.INTERVAL for n in range(3)]
