# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Closer, in the engine: sessions close while pages come and go."""

from eviction_runs import run

from kelp_spec.config import named

SMALL = named("unit")


def test_sessions_close_under_traffic():
    run(SMALL, "closes", closes=6)
