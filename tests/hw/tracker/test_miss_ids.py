# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""MissIds: how fast it counts."""

from timing import check_interval

from kelp_hw.tracker.miss_ids import MissIds
from kelp_spec.config import named

UNIT = named("unit")


def test_latency_and_interval():
    check_interval(lambda: MissIds(config=UNIT), "LATENCY", "level", [{"i.valid": 1}] * 3)
