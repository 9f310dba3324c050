# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SummaryRows: lines come back as they were written."""

from summary_port import CHIP, TWICE, SummaryBench, told

from kelp_hw.select.summary_rows import SummaryRows


def test_lines():
    seen = SummaryBench(SummaryRows(config=CHIP)).lines(offer=0.5, take=0.6)
    assert told(seen) == TWICE


def test_latency_and_interval():
    seen = SummaryBench(SummaryRows(config=CHIP)).lines()
    assert seen["o"][0].offered - seen["i"][0].offered == SummaryRows.LATENCY
    taken = [t.taken for t in seen["o"]]
    assert {b - a for a, b in zip(taken, taken[1:], strict=False)} == {SummaryRows.INTERVAL}
