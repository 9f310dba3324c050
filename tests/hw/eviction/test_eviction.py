# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The eviction engine: sweeps that run freely pass the audit."""

from eviction_runs import run

from kelp_spec.config import named

SMALL = named("unit")


def test_free_running_sweeps_pass_the_audit():
    records = run(SMALL, "free_running", cycles=15_000).records
    assert records["victims"] > 60 and records["cancelled"] > 0 and records["failed"] > 0
