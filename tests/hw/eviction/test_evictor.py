# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Eviction: the engine in a world of golden models, and the golden evictor itself."""

import dataclasses

import pytest

from kelp_hw.eviction.eviction import Eviction
from kelp_hw.eviction.orphans import Orphans
from kelp_hw.eviction.sweep import Sweep
from kelp_spec.config import named
from kelp_verif.harness.runner import made, run_cocotb

SMALL = named("unit")
LARGE = named("640x8192").with_(frames=(2048, 256, 256, 256), queues=8)


def run(config, test, **params):
    params["config"] = dataclasses.asdict(config)
    return run_cocotb(
        made(Eviction, config=config),
        bench="kelp_verif.eviction.evictor_bench",
        test=test,
        params=params,
        timeout_s=200,
    )


def test_every_claim_is_the_golden_evictors():
    records = run(SMALL, "lockstep", ops=500).records
    assert records["victims"] > 100 and records["write_backs"] > 20


def test_free_running_sweeps_pass_the_audit():
    records = run(SMALL, "free_running", cycles=15_000).records
    assert records["victims"] > 60 and records["cancelled"] > 0 and records["failed"] > 0


def test_sessions_close_under_traffic():
    run(SMALL, "closes", closes=6)


def test_lost_words_give_their_frames_back():
    assert run(SMALL, "recovers", cycles=10_000).records["recovered"] > 0


def test_more_words_are_lost_at_once_than_can_wait():
    records = run(SMALL, "loses_many", rounds=4).records
    # one is searched for, LOST wait
    assert records["most"] > Orphans.LOST + 1 and records["sweeps"] >= 2
    assert records["recovered"] > 20


def test_nothing_to_evict_is_an_event_and_a_rest():
    run(SMALL, "nothing_to_evict")


@pytest.mark.parametrize("resident", [1, 100, 1500])
def test_a_sweep_costs_words_and_pages(resident):
    records = run(LARGE, "sweep_cycles", resident=resident).records
    assert records["words"] == 128
    assert records["cycles"] <= 128 + resident * Sweep.INTERVAL + Sweep.OVERHEAD
