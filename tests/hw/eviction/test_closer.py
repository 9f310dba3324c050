# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Closer, in the engine: sessions close while pages come and go."""

from eviction_runs import SMALL, run


def test_sessions_close_under_traffic():
    run(SMALL, "closes", closes=6)
