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


def test_any_masses():
    """Of any size, also of named pages so far below that nothing of theirs is left, which counts as
    1."""
    rng, pairs, most = np.random.default_rng(6), [], ESTIMATE_MASS_BITS + 1
    for n in range(40):
        z = [[int(rng.integers(1 << b)) for b in rng.integers(1, most, 2)] for _ in range(2)]
        e = [[int(x) for x in rng.integers(-200, 200, 2)]]
        e.append([x - int(rng.choice([0, 1, 7, 30, 31, 32, 63, 64, 300])) for x in e[0]])
        if n % 4 == 0:
            z[0] = [int(x) for x in rng.integers(1, 200, 2)]
        pairs.append([{"e": each, "z": size, "id": 0} for each, size in zip(e, z, strict=True)])
    wanted = []
    for all_, named in pairs:
        by = [min(a - b, 31) for a, b in zip(all_["e"], named["e"], strict=True)]
        inside = [z >> shift for z, shift in zip(named["z"], by, strict=True)]
        ratio = [
            (max(z - few, 0) << SHARE_BITS) // max(few, 1)
            for z, few in zip(all_["z"], inside, strict=True)
        ]
        wanted.append([min(each, (1 << RATIO_BITS) - 1) for each in ratio])
    assert [list(t.item) for t in ratios(pairs, heads=2)["o"]] == wanted


def test_latency_and_interval():
    seen = ratios([tuple(masses(*made(0, heads=1)))] * 3, heads=1)["o"]
    assert [t.offered for t in seen] == [Unscored.LATENCY + n * Unscored.INTERVAL for n in range(3)]
