# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Decide: how fast an op is decided; the tracker's bench compares what is decided."""

from timing import check_interval, varied

from kelp_hw.tracker.decide import Decide
from kelp_spec.config import named

UNIT = named("unit")


def test_latency_and_interval():
    check_interval(lambda: Decide(config=UNIT), "LATENCY", "frame_op.p", varied("op.page"))
