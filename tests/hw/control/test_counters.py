# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Totals, queue counters, latency histogram and event log."""

import pytest

from kelp_hw.control.counters import QueueCounters, TotalCounters
from kelp_hw.control.events import EventLog
from kelp_hw.lib.histogram import LatencyHistogram
from kelp_spec.config import named
from kelp_spec.registers import HISTOGRAM_BINS
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.runner import Model, run_cocotb

UNIT = named("unit")


def run(component, test, public=(), **params):
    result = run_cocotb(
        component,
        bench="kelp_verif.control.counters_bench",
        test=test,
        params={"config": "unit", **params},
        timeout_s=120,
        model=Model(public=public),
    )
    return result.records[test]


def rare(seen, *wanted, least=3):
    return {what: seen.get(what, 0) for what in wanted if seen.get(what, 0) < least}


def test_totals_lose_no_pulse():
    seen = run(TotalCounters(), "totals", public=[("top", "memory")], rounds=12)
    assert (
        rare(seen, "read under traffic", "wrapped") == {}
        and seen["rest after a while"]
        and seen["reset of gathered pulses"]
    )


def test_queue_counters_count_wipe_and_wrap():
    seen = run(QueueCounters(config=UNIT), "queues", public=[("top.sram", "memory")], rounds=40)
    assert (
        rare(seen, "read", "wiped after traffic", "wipe waits", "burst", "wrapped") == {}
        and seen["reset with useful ones waiting"]
    )


def test_queue_counters_may_be_few():
    assert QueueCounters(config=UNIT.with_(wide_counters=False)).names == (
        "hits",
        "misses",
        "evictions",
        "prefetch_useful",
    )


def test_histogram_counts_every_latency_in_its_bin():
    seen = run(LatencyHistogram(cycle_bits=32), "histogram", public=[("top", "memory")], rounds=30)
    assert (
        rare(
            seen,
            *(f"bin {half + b}" for half in (0, 32) for b in range(HISTOGRAM_BINS)),
            "read",
            "saturated",
        )
        == {}
    )


def test_event_log_keeps_the_first_sixteen():
    seen = run(EventLog(config=UNIT, sources=3), "events", cycles=9_000, sources=3)
    assert (
        rare(
            seen,
            "read",
            "one of several",
            "all at once",
            "full",
            "lost below sixteen",
            "lost to a full log",
            "irq",
            "clear of a record",
            "clear of one that comes",
        )
        == {}
        and seen["reset of an event"]
    )


def test_the_bench_catches_a_planted_bug():
    with pytest.raises(AssertionError, match="failed with seed"):
        run(
            mutant(QueueCounters, "wipe_ready.eq(~v0 & ~v1 & ~v2", "wipe_ready.eq(~v0")(
                config=UNIT
            ),
            "queues",
            public=[("top.sram", "memory")],
            rounds=20,
        )


@pytest.mark.parametrize("bits", [0, 33])
def test_histogram_refuses_a_width(bits):
    with pytest.raises(ValueError, match=f"cycle_bits = {bits} is refused; legal: 1 … 32"):
        LatencyHistogram(cycle_bits=bits)


def test_event_log_refuses_to_have_no_source():
    with pytest.raises(ValueError, match="sources = 0 is refused; legal: 1 and up"):
        EventLog(config=UNIT, sources=0)
    with pytest.raises(TypeError, match="config must be a kelp_spec.Config, not 'unit'"):
        EventLog(config="unit", sources=1)
