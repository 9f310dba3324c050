# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Evictor, in the engine: it chooses as the golden evictor does."""

from eviction_runs import run

from kelp_spec.config import named

SMALL = named("unit")


def test_every_claim_is_the_golden_evictors():
    records = run(SMALL, "lockstep", ops=500).records
    assert records["victims"] > 100 and records["write_backs"] > 20


def test_nothing_to_evict_is_an_event_and_a_rest():
    run(SMALL, "nothing_to_evict")
