# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryBuild: the golden summaries of pages whose lines come in any order, some never."""

import random

import numpy as np
import pytest
from select_cases import Group, summary_words
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.select.summary_build import SummaryBuild
from kelp_spec.formats import Format


def built(group, *, lines, written, offer=1.0, take=1.0, shuffle=True):
    """The transfers of all pages."""
    rng, sends = random.Random(lines), []
    pages, tokens, _ = group.scale.shape
    stored = group.key_lines()
    for page in range(pages):
        mine = stored[page * tokens * lines : (page + 1) * tokens * lines]
        mine = [one for one, there in zip(mine, written[page].ravel(), strict=True) if there]
        if shuffle:
            rng.shuffle(mine)
        sends += [one | {"last": one is mine[-1], "id": page} for one in mine]
    dut = SummaryBuild(lines=lines, id_bits=8)
    ends = Ends(
        sends={"i": sends},
        takes=("o",),
        offer=offer,
        take=take,
        held={"token_lines": lines - 1},
    )
    return pump(dut, ends, cycles=int((len(sends) + pages * (lines + 6)) / offer / take * 1.5))


def expected(group, written):
    words = summary_words(select.summary(group.keys, written))
    return [
        (page, line, data) for page, lines in enumerate(words) for line, data in enumerate(lines)
    ]


@pytest.mark.parametrize("fmt", [Format.INT8, Format.INT4])
@pytest.mark.parametrize("lines", [1, 2, 4])
def test_summaries_are_the_golden_ones(fmt, lines):
    group = Group(lines, heads=1, lines=lines, pages=12, fmt=fmt)
    written = np.random.default_rng(lines).random(group.scale.shape) < 0.7
    written[1], written[1, 2, 0] = False, True  # places without a line
    written[0, 0, 0] = True  # the NaN
    seen = built(group, lines=lines, written=written, offer=0.7, take=0.6)["o"]
    assert [(t.item.id, t.item.line, t.item.data) for t in seen] == expected(group, written)
    assert [bool(t.item.last) for t in seen] == [
        line == lines - 1 for _ in range(12) for line in range(lines)
    ]


def test_a_page_of_nans_has_no_bounds():
    group = Group(3, heads=1, lines=1, pages=1)
    written = np.zeros(group.scale.shape, bool)
    written[0, 0, 0] = True
    seen = built(group, lines=1, written=written)["o"]
    assert [t.item.data for t in seen] == [(-127 & 511) << 448]


def test_latency_and_interval():
    group = Group(5, heads=1, lines=2, pages=3)
    written = np.ones(group.scale.shape, bool)
    seen = built(group, lines=2, written=written, shuffle=False)
    lasts = [t.taken for t in seen["i"] if t.item["last"]]
    assert [t.offered for t in seen["o"]] == [
        last + SummaryBuild.LATENCY + line for last in lasts for line in range(2)
    ]
    assert lasts[0] - seen["i"][0].taken == 31 * SummaryBuild.INTERVAL
