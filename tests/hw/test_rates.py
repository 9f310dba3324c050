# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The endpoint's rates and its latency, all hits, counted in cycles (spec §10): in `make slow` on a
memory of 64 cycles. `make bench` has every format, larger pages and the miss path."""

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


@pytest.mark.slow  # a model of its own
@pytest.mark.timeout(1800)
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


@pytest.mark.timeout(1800)  # it may build the model
def test_hits_that_few_slots_can_bear():
    """Lines read as they are stored, from a memory at two cycles: one in each cycle, in any order,
    and the latency beyond the memory's. Sixteen slots bear no more: a write's is taken for 27
    cycles."""
    rows = {row.name: row for row in endpoint_rows("unit_select", FORMATS[:1], latency=2)}
    names = (
        "endpoint.read_hit.lines_per_cycle",
        "endpoint.random_line_hit.raw16.lines_per_cycle",
        "endpoint.random_page.requests_per_cycle",
        "endpoint.hit_latency_cycles",
        "endpoint.dram_lines_per_host_line.raw16",
    )
    assert [rows[name] for name in names if not rows[name].met] == []
    assert rows["endpoint.write_hit.lines_per_cycle"].value >= 0.98 * 16 / 27
