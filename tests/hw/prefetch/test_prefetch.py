# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The whole prefetcher: its order, its accounts, its rates."""

import pytest
from timing import changes, check_pace, offers, shown

from kelp_golden.prefetch import Candidate
from kelp_golden.prefetch import Prefetcher as GoldenPrefetcher
from kelp_hw.prefetch.prefetch import Prefetcher
from kelp_hw.prefetch.throttle import SOURCES
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome, PrefetchSource
from kelp_verif.harness.runner import made, run_cocotb
from kelp_verif.host.hints_bench import Session

BENCH = "kelp_verif.prefetch.prefetch_bench"


UNIT = named("unit")
OPEN = {
    "sessions.0.open": 1,
    "sessions.0.used_pages": UNIT.pages,
    "sessions.0.used_queues": UNIT.queues,
    "sessions.0.kv_heads": 1,
}
ACCESS = {
    "i_result.valid": 1,
    "i_result.p.first": 1,
    "i_result.p.op.kind": int(Op.READ),
    "i_result.p.outcome": int(Outcome.HIT),
}
OP = {"prepare": OPEN | {"enable": (1 << SOURCES - 1) - 1, "o_op.ready": 1}}


@pytest.mark.parametrize(("stream", "field"), [("i_hint", "page"), ("i_spec", "page.page")])
def test_latency_and_interval(stream, field):
    stimuli = offers(stream=stream, field=field)
    check_pace(Prefetcher(config=UNIT), "ASKED_LATENCY", shown("o_op", "page"), stimuli, **OP)


def test_op_follows_an_access_after_the_latency():
    block = Prefetcher(config=UNIT)
    assert changes(block, "o_op.valid", [ACCESS], **OP) == [block.LATENCY]


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


def test_lockstep_order_equals_golden():
    previous = 16
    result = run_cocotb(
        made(Prefetcher, config=named("unit"), previous=previous),
        bench=BENCH,
        test="lockstep",
        params={"config": "unit", "triggers": 2600, "previous": previous},
    )
    seen = result.records
    assert seen["ops"] > 1500 and min(seen["throttled"].values()) > 10, seen
    assert seen["previous_lost"] > 20 and seen["strangers"] > 20, seen


@pytest.mark.parametrize("config", ["unit", pytest.param("unit_select", marks=pytest.mark.night)])
def test_free_running_accounts_for_every_candidate(config):
    tells = ["asked_against_list", "previous_gives_way"]
    tells += ["tells_whose_it_drops"] if named(config).select_estimates else []
    result = run_cocotb(
        made(Prefetcher, config=named(config), previous=16),
        bench=BENCH,
        test=["free_running", "never_stalls_spec_reads", "previous_step_under_traffic", *tells],
        params={"config": config, "cycles": 10_000},
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


def test_bad_parameters_are_refused():
    with pytest.raises((TypeError, ValueError), match="config = 3"):
        Prefetcher(config=3)
