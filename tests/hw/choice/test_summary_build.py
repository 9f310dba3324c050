# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryBuild: the golden codes of pages, by sound plans and by wild ones."""

import numpy as np
import pytest
from select_cases import Group, put_plan
from streams import Ends, pump

from kelp_golden import select
from kelp_hw.choice.summary_build import SummaryBuild
from kelp_spec.formats import ELEMENTS, LINE_BYTES, Format
from kelp_spec.select import CODE_BITS, CODED_LINES, PLAN_FIELDS, record_bytes


def built(group, *, lines, offer=1.0, take=1.0, elements=32):
    """The transfers of all pages."""
    pages, tokens, _ = group.scale.shape
    count, stored = tokens * lines, group.key_lines()
    sends = [
        one | {"last": n % count == count - 1, "id": n // count} for n, one in enumerate(stored)
    ]

    async def plan(ctx, dut):
        await put_plan(ctx, dut, group.plan_rows)

    rows = -(-count // CODED_LINES)
    dut = SummaryBuild(lines=lines, rows=rows, id_bits=8, elements=elements)
    ends = Ends(sends={"i": sends}, takes=("o",), offer=offer, take=take, before=plan)
    cycles = int((len(sends) * dut.INTERVAL + 20) / offer / take * 1.5)
    return pump(dut, ends, cycles=cycles, quiet=150)


@pytest.mark.parametrize("wild", [True, False])
@pytest.mark.parametrize(
    ("fmt", "lines", "tokens", "elements"),
    [
        (Format.INT8, 2, 6, 16),  # the quickest first
        (Format.INT8, 1, 6, 32),
        (Format.INT8, 1, 16, 8),
        (Format.INT8, 1, 16, 4),
        (Format.INT8, 1, 16, 32),
        (Format.INT8, 2, 16, 32),
        (Format.INT4, 4, 8, 32),
        (Format.INT8, 4, 9, 32),  # two whole lines of a summary, and zeros behind the rest
    ],
)
def test_summaries_are_the_golden_ones(fmt, lines, tokens, elements, wild):
    """By a wild plan also of lines of any exponents."""
    group = Group(lines, heads=1, lines=lines, pages=8, tokens=tokens, fmt=fmt, wild=wild, far=wild)
    seen = built(group, lines=lines, offer=0.7, take=0.6, elements=elements)["o"]
    got = [
        {"code": list(t.item.code), "line": t.item.line, "last": bool(t.item.last), "id": t.item.id}
        for t in seen
    ]
    assert got == group.summary_lines()


@pytest.mark.parametrize("elements", [4, 8, 16, 32])
@pytest.mark.sampled
def test_what_comes_behind_a_whole_code_is_left_out(elements):
    """The first elements have 32 bits, also with the most that one may have, and each behind them
    wants one."""
    group = Group(3, heads=1, lines=1, pages=4, wild=True)
    for first in ([4] * 8, [2] * 16, [7] * 4 + [4]):
        assert sum(first) == CODE_BITS
        counts = first + [1] * (ELEMENTS - len(first))
        group.plan_rows = np.array([_plan_row(counts)])
        group.plan = select.plan_of(group.plan_rows)
        group.codes = select.summary(group.keys, group.plan)
        assert len({*group.codes.flat}) > 16
        seen = built(group, lines=1, elements=elements)["o"]
        assert [list(t.item.code) for t in seen] == [each["code"] for each in group.summary_lines()]


def _plan_row(counts):
    values = {"exponent": 6, "planned": 1}
    for k, count in enumerate(counts):
        values |= {f"mean_{k}": 0, f"step_{k}": 1, f"count_{k}": count}
    return np.frombuffer(record_bytes(PLAN_FIELDS, values, LINE_BYTES), np.uint8)


@pytest.mark.parametrize(
    ("elements", "latency", "interval"), [(32, 7, 1), (16, 9, 2), (8, 10, 4), (4, 14, 8)]
)
def test_latency_and_interval(elements, latency, interval):
    group = Group(5, heads=1, lines=2, pages=3)
    dut = SummaryBuild(lines=2, rows=2, id_bits=8, elements=elements)
    assert (dut.LATENCY, dut.INTERVAL) == (latency, interval)
    seen = built(group, lines=2, elements=elements)
    taken = [t.taken for t in seen["i"]]
    assert [t.offered for t in seen["o"]] == [
        cycle + latency for cycle in taken[CODED_LINES - 1 :: CODED_LINES]
    ]
    assert taken[-1] - taken[0] == (len(taken) - 1) * interval
