# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Foresight: how fast it tells that a page is met again."""

from timing import check_interval, varied

from kelp_hw.tracker.foresight import Foresight
from kelp_spec.config import named

UNIT = named("unit")


def test_latency_and_interval():
    stimuli = varied("ahead.candidates.0.page", (1, 0, 1), moves=1)
    check_interval(lambda: Foresight(config=UNIT), "LATENCY", "same", stimuli)
