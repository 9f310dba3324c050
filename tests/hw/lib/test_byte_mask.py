# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ByteMask: how fast its two masks follow."""

from timing import check_pace, varied

from kelp_hw.lib.byte_mask import ByteMask

SETS = varied("set_bytes", (1, 2, 4), set_en=1)


def test_look_latency_and_interval():
    stimuli = [SETS[0], {"clear_en": 1}, SETS[1]]
    check_pace(ByteMask(slots=2), "LATENCY", "look_mask", stimuli)


def test_read_latency_and_interval():
    check_pace(ByteMask(slots=2), "READ_LATENCY", "read_mask", SETS)
