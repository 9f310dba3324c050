# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The histogram of latencies: each in its bin, how fast it counts and is read."""

import pytest
from counter_runs import rare, run
from timing import changes, check_pace, varied

from kelp_hw.lib.histogram import LatencyHistogram
from kelp_spec.registers import HISTOGRAM_BINS

EVENTS = [{"i.valid": 1}] * 3  # of latency 0: they count in row 0


def test_read_latency_and_interval():
    check_pace(
        LatencyHistogram(cycle_bits=8),
        "READ_LATENCY",
        "read_data",
        varied("read_row", (0, 1, 0)),
        prepare={"read_row": 1},
        before=EVENTS[:1],
    )


def test_an_event_counts_in_reads_after_its_latency():
    histogram = LatencyHistogram(cycle_bits=8)
    first = histogram.LATENCY + histogram.READ_LATENCY
    seen = changes(histogram, "read_data", EVENTS)
    assert seen == [first + k * histogram.INTERVAL for k in range(3)]


def test_every_latency_counts_in_its_bin():
    seen = run(LatencyHistogram(cycle_bits=32), "histogram", public=[("top", "memory")], rounds=30)
    bins = [f"bin {half + b}" for half in (0, 32) for b in range(HISTOGRAM_BINS)]
    assert rare(seen, *bins, "read", "saturated") == {}


@pytest.mark.parametrize("bits", [0, 33])
def test_a_width_is_refused(bits):
    with pytest.raises(ValueError, match=f"cycle_bits = {bits} is refused; legal: 1 … 32"):
        LatencyHistogram(cycle_bits=bits)
