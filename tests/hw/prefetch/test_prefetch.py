# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Prefetch: queue, throttle, sources, and the whole prefetcher."""

import pytest

from kelp_golden.prefetch import Candidate, Throttle
from kelp_golden.prefetch import Prefetcher as GoldenPrefetcher
from kelp_hw.prefetch.fifo import PrefetchFifo
from kelp_hw.prefetch.prefetch import Prefetcher
from kelp_hw.prefetch.sources import AccessSource, PreviousSource
from kelp_hw.prefetch.throttle import Throttle as RtlThrottle
from kelp_spec.config import named
from kelp_spec.metadata import PrefetchSource
from kelp_verif.harness.runner import made, run_cocotb
from kelp_verif.host.hints_bench import Session

BENCH = "kelp_verif.prefetch.prefetch_bench"
PARTS = "kelp_verif.prefetch.prefetch_parts_bench"


def test_golden_order_is_nearest_first():
    config = named("unit")
    sessions = [Session(used_queues=4, used_pages=8, kv_heads=2) for _ in range(2)]
    golden = GoldenPrefetcher(config, sessions)
    layer, window = PrefetchSource.LAYER_AHEAD, PrefetchSource.WINDOW
    assert golden.access(1, 5, 1, 3) == [
        Candidate(layer, 1, 7, 1),
        Candidate(window, 1, 5, 2),
        Candidate(window, 1, 5, 0),
        Candidate(window, 1, 5, 3),
        Candidate(window, 1, 5, 4),
    ]
    # the last layer, the last page
    assert golden.access(1, 6, 7, 1) == [Candidate(window, 1, 6, 6)]
    assert golden.step(1) == [
        Candidate(PrefetchSource.PREVIOUS, 1, 5, 1),
        Candidate(PrefetchSource.PREVIOUS, 1, 6, 7),
    ]
    assert golden.step(1) == []


def test_golden_throttle_halves_and_recovers():
    throttle = Throttle()
    for period, useful, credit in (
        (0, 63, 32),
        (1, 64, 33),
        (2, 0, 16),
        (3, 0, 8),
        (4, 0, 4),
        (5, 0, 2),
        (6, 0, 1),
        (7, 0, 1),
        (8, 200, 2),
    ):
        for _ in range(useful):
            throttle.use()
        for _ in range(256):
            throttle.issue()
        throttle.settle()
        assert throttle.credit == credit, period
    assert sum(throttle.offer() for _ in range(640)) == 20


def test_queue_agrees_with_a_sorted_list():
    seen = run_cocotb(
        PrefetchFifo(config=named("unit")),
        bench=PARTS,
        test="queue_against_list",
        params={"config": "unit", "cycles": 12_000},
    ).records["seen"]
    assert all(seen[name] > 50 for name in ("DUPLICATE", "FULL", "CANCELLED", "CANCEL", "LEFT")), (
        seen
    )


def test_throttle_agrees_with_golden():
    assert (
        run_cocotb(
            RtlThrottle(), bench=PARTS, test="throttle_against_model", params={"cycles": 20_000}
        ).records["throttled"]
        > 100
    )


def test_previous_step_is_offered_in_order():
    config = named("trace")
    records = run_cocotb(
        PreviousSource(config=config, entries=32),
        bench=PARTS,
        test="previous_against_lists",
        params={"config": "trace", "entries": 16, "cycles": 12_000},
    ).records
    assert records["offered"] > 200 and records["overwritten"] > 5 and records["overflows"] > 100, (
        records
    )


def test_lockstep_order_equals_golden():
    previous = 32
    result = run_cocotb(
        made(Prefetcher, config=named("unit"), previous=previous),
        bench=BENCH,
        test="lockstep",
        params={"config": "unit", "triggers": 2200, "previous": previous},
    )
    assert result.records["ops"] > 1500 and result.records["throttled"] > 50, result.records


def test_free_running_accounts_for_every_candidate():
    result = run_cocotb(
        made(Prefetcher, config=named("unit"), previous=32),
        bench=BENCH,
        test=["free_running", "never_stalls_spec_reads", "previous_step_under_traffic"],
        params={"config": "unit", "cycles": 10_000},
    )
    assert all(count for count in result.records["ended"].values()), result.records
    assert (
        result.records["access_lost"]
        and result.records["full"]
        and result.records["checked"] > 100
        and result.records["previous_lost"]
    )


def test_accepts_one_candidate_a_cycle_at_640_queues():
    result = run_cocotb(
        Prefetcher(config=named("ulx3s")),
        bench=BENCH,
        test="full_rate",
        params={"config": "ulx3s", "cycles": 10_000},
    )
    assert result.records["accepts_per_cycle"] == 1.0 and result.records["ops_per_cycle"] == 1.0, (
        result.records
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Prefetcher(config=3), "config = 3"),
        (lambda: PrefetchFifo(config=None), "config = None"),
        (lambda: AccessSource(config=named("unit"), accesses=1), r"accesses = 1 .* 2 … 64"),
        (lambda: PreviousSource(config=named("unit"), entries=6), r"entries = 6 .* 8 and up"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
