# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryScore: the golden estimates of pages from their codes, `lanes` codes a cycle."""

import numpy as np
import pytest
from select_cases import SCALE, Group, put_queries
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.summary_score import SummaryScore
from kelp_spec.select import CODED_LINES


def estimated(group, *, lanes, most=None, least=(), idle=None, scale=SCALE, **pace):
    """The transfers of all pages' estimates, of a block for tokens of `most` lines; in `idle`
    whether it was in each cycle."""
    offer, take = (pace.get(name, 1.0) for name in ("offer", "take"))
    heads, lines = group.query.e.shape
    page_lines = group.codes[0].size
    rows = -(-page_lines // CODED_LINES)
    dut = SummaryScore(heads=heads, lines=most or lines, rows=rows, lanes=lanes, id_bits=8)
    sends = group.summary_lines()
    ends = Ends(
        sends={"i": sends},
        takes=("o",),
        offer=offer,
        take=take,
        held={"scale": scale, "page_lines": page_lines, "least": list(least) or [0] * heads},
        before=put_queries(group.query, group.plan_rows),
        watch=lambda ctx: idle is not None and idle.append(ctx.get(dut.idle)),
    )
    cycles = len(sends) * CODED_LINES // lanes + 70 * lines + 40
    return pump(dut, ends, cycles=int(cycles / offer / take * 1.5), quiet=150)


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize(
    ("heads", "lines", "lanes", "tokens", "most"),
    [
        (1, 1, 16, 16, 1),
        (3, 2, 8, 16, 2),
        (2, 4, 4, 8, 4),
        (1, 1, 4, 6, 4),  # fewer lines than the block has places for, and part of a group
        (2, 2, 16, 3, 2),
        (1, 4, 2, 8, 8),  # tokens of more lines than lanes
        (1, 8, 1, 4, 8),
    ],
)
def test_estimates_are_the_golden_ones(heads, lines, lanes, tokens, most, wild):
    group = Group(heads + lines, heads=heads, lines=lines, pages=30, tokens=tokens, wild=wild)
    sums = select.token_sums(group.query, group.codes, group.plan)
    least = np.quantile(sums, 0.8, axis=(1, 2)).astype(int).tolist()
    least[-1] = int(np.sort(sums[-1].ravel())[-5])  # which is a token's
    scale = {"m": SCALE["m"] - 999 * lanes, "sh": SCALE["sh"] - lines // 2}
    sizes = {"lanes": lanes, "most": most, "least": least, "scale": scale}
    seen = estimated(group, **sizes, offer=0.7, take=0.6)["o"]
    assert [item.item.id for item in seen] == list(range(30))
    assert [list(item.item.best) for item in seen] == sums.max(axis=-1).T.tolist()
    estimates = select.estimates(group.query, group.codes, group.plan, **scale)
    assert [list(item.item.score) for item in seen] == estimates.T.tolist()
    near = (sums >= np.array(least)[:, None, None]).any(axis=0)
    assert near.any() and (wild or not near.all())
    ends = [(token + 1) * lines - 1 for token in range(tokens)]
    assert [[item.item.near >> end & 1 for end in ends] for item in seen] == near.tolist()


@pytest.mark.parametrize("lanes", [16, 4])
def test_latency_and_interval(lanes):
    group = Group(5, heads=2, lines=2, pages=20)
    idle = []
    seen = estimated(group, lanes=lanes, idle=idle)
    lasts = [line.taken for line in seen["i"] if line.item["last"]]
    assert [found.offered - last for found, last in zip(seen["o"], lasts, strict=True)] == [
        SummaryScore.LATENCY
    ] * 20
    first, *_, end = (line.taken for line in seen["i"])
    assert end - first == (len(seen["i"]) - 1) * CODED_LINES // lanes
    busy = range(seen["i"][0].offered, seen["o"][-1].taken + 1)
    assert idle == [cycle not in busy for cycle in range(len(idle))] and idle[-1]
