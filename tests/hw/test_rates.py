# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint's rates and its latency, all hits, counted in cycles on a memory of 64 cycles
(spec §10). `make bench` has every format, larger pages and the miss path."""

import pytest

from kelp_spec.formats import Format
from kelp_verif.measure.endpoint import MEMORY_LATENCY, endpoint_rows

# int4 has the longest way through the codec; int8 and int4 read a scale line beside each data line.
FORMATS = (Format.RAW16, Format.INT8, Format.INT4)


def met(row):
    """A rate is meant of traffic that goes on: a run of `lines` may take as long besides as its
    last line is allowed to, from its request to its answer."""
    if row.unit == "cycles":
        return row.met
    lines, rate = row.value * row.cycles, float(row.goal.removeprefix("≥ "))
    return row.cycles <= lines / rate + MEMORY_LATENCY + 20


@pytest.mark.timeout(1800)  # it may build the model
def test_all_hits():
    """At least 0.98 lines a cycle read, written and mixed, at most 20 cycles beyond the memory."""
    rows = [
        row
        for row in endpoint_rows("trace", FORMATS)
        if row.unit in ("lines/cycle", "requests/cycle", "cycles")
    ]
    print("\n".join(f"{row.name} {row.value:.4f} {row.goal}" for row in rows))
    assert len(rows) == 4 * len(FORMATS) + 2 and all(row.goal for row in rows)
    assert [row for row in rows if not met(row)] == []
