# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sessions and the check of an op against them: how fast each is."""

from timing import check_interval, varied

from kelp_hw.tracker.sessions import SessionCheck, Sessions
from kelp_spec.config import named

UNIT = named("unit")


def test_latency_and_interval():
    stimuli = varied("step", (1, 1, 1), delta=1)
    check_interval(lambda: Sessions(config=UNIT), "LATENCY", "sessions", stimuli)


def test_check_latency_and_interval():
    check_interval(lambda: SessionCheck(config=UNIT), "LATENCY", "event", varied("refused"))
