# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The eviction engine: sweeps that run freely pass the audit."""

from eviction_runs import run

from kelp_spec.config import named

SMALL = named("unit")


def test_free_running_sweeps_pass_the_audit():
    records = run(SMALL, "free_running", cycles=25_000).records
    assert records["victims"] > 60 and records["cancelled"] > 0 and records["failed"] > 0


def test_within_their_budgets_the_queue_nearest_to_its_own_gives():
    """No queue is over its budget, and often the one that asks has no page."""
    config = SMALL.with_(queues=12, frames=(6, 6, 4, 4))
    asked = dict(budgets=[7, 8, 12], pages_of_each=2)
    records = run(config, "free_running", cycles=8_000, **asked).records
    assert records["victims"] > 50 and records["within"] > 20
