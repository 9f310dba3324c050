# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryRows: lines come back as they were written."""

import pytest
from summary_port import CHIP, SummaryBench, told, twice

from kelp_hw.select.summary_rows import SummaryRows


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_lines(rows):
    dut = SummaryRows(config=CHIP.with_(half_lines=64))
    assert told(SummaryBench(dut, rows=rows).lines(offer=0.5, take=0.6)) == twice(rows)


def test_latency_and_interval():
    seen = SummaryBench(SummaryRows(config=CHIP)).lines()
    assert seen["o"][0].offered - seen["i"][0].offered == SummaryRows.LATENCY
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {SummaryRows.INTERVAL}
