# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PageMass: the golden masses of pages, one token a cycle."""

import numpy as np
import pytest
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.page_mass import PageMass
from kelp_spec.select import MASS_BITS, SCORE_LEAST, SCORE_MOST


def summed(pages, *, heads, mass_bits=MASS_BITS, offer=1.0, take=1.0):
    """All transfers for pages of scores [heads, tokens]."""
    sends = [
        {
            "score": [int(s) for s in page[:, token]],
            "last": token == page.shape[1] - 1,
            "id": number % 256,
        }
        for number, page in enumerate(pages)
        for token in range(page.shape[1])
    ]
    dut = PageMass(heads=heads, id_bits=8, mass_bits=mass_bits)
    ends = Ends(sends={"i": sends}, takes=("o",), offer=offer, take=take)
    return pump(dut, ends, cycles=int((len(sends) + 20) / offer / take * 1.5))


def expected(pages, bits=MASS_BITS):
    out = []
    for page in pages:
        e, z = select.page_masses(page, bits)
        out.append((e.tolist(), z.tolist()))
    return out


def found(seen):
    return [(list(t.item.e), list(t.item.z)) for t in seen["o"]]


@pytest.mark.parametrize("heads", [1, 3])
def test_masses_are_the_golden_ones(heads):
    rng = np.random.default_rng(heads)
    pages = [
        rng.integers(-spread, spread, (heads, rng.integers(1, 20)))
        for spread in (300, 3000, 12000, 1 << 19)
        for _ in range(12)
    ]
    pages.append(np.array([[SCORE_LEAST, SCORE_MOST, SCORE_LEAST]] * heads))
    seen = summed(pages, heads=heads, offer=0.7, take=0.6)
    assert found(seen) == expected(pages)
    assert [t.item.id for t in seen["o"]] == list(range(len(pages)))


def test_a_token_that_is_alone_stands_for_its_page():
    rng = np.random.default_rng(4)
    pages = [rng.integers(-3000, 3000, (2, 1 + n % 4)) for n in range(20)]
    sends = [
        {
            "score": [int(s) for s in page[:, token]],
            "last": token == page.shape[1] - 1,
            "alone": n % 3 > 0 and token == page.shape[1] - 1,
        }
        for n, page in enumerate(pages)
        for token in range(page.shape[1])
    ]
    ends = Ends(sends={"i": sends}, takes=("o",), offer=0.7, take=0.7)
    seen = pump(PageMass(heads=2, id_bits=1), ends, cycles=300)
    assert found(seen) == expected(
        [page[:, -1:] if n % 3 else page for n, page in enumerate(pages)]
    )


@pytest.mark.parametrize("bits", [17, 32])
def test_a_sum_without_a_place_is_the_most(bits):
    pages = [np.full((1, 12), 255), np.full((1, 3), 200)]
    assert found(summed(pages, heads=1, mass_bits=bits)) == expected(pages, bits)


def test_latency_and_interval():
    pages = [np.zeros((2, 5), np.int64)] * 6
    seen = summed(pages, heads=2)
    lasts = [t.taken for t in seen["i"] if t.item["last"]]
    assert [t.offered - last for t, last in zip(seen["o"], lasts, strict=True)] == [
        PageMass.LATENCY
    ] * 6
    first, *_, end = (t.taken for t in seen["i"])
    assert end - first == 29 * PageMass.INTERVAL
