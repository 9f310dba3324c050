# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Scores of policy `kelp`: how fast frequencies, profile and turns are; `test_priority.py` compares
their values."""

import pytest
from timing import check_interval, varied

from kelp_hw.scores.kelp_scores import Frequencies, Profile, Turns
from kelp_spec.config import named

UNIT = named("unit")
COUNT = {"valid": 1, "counts": 1}
WORDS = varied("word", (100, 200, 50))


@pytest.mark.parametrize(
    ("attribute", "output", "stimuli", "prepare"),
    [
        ("LATENCY", "common", WORDS, {}),
        ("TOUCHED_LATENCY", "touched", WORDS, {}),
        ("IDLE_LATENCY", "common", varied("idle"), {"word": (1 << 21) - 1}),
    ],
)
def test_frequencies_latency_and_interval(attribute, output, stimuli, prepare):
    check_interval(Frequencies, attribute, output, stimuli, prepare=prepare)


def test_profile_latency_and_interval():
    check_interval(
        lambda: Profile(config=UNIT),
        "LATENCY",
        "count",
        varied("distance", (0, 5, 0)),
        settle=80,
        prepare={"distance": 5},
        before=[COUNT | {"distance": 0}],
    )


def test_profile_entry_latency_and_interval():
    stimuli = [COUNT | {"distance": k, "epoch": k} for k in (1, 2, 3)]
    check_interval(lambda: Profile(config=UNIT), "ENTRY_LATENCY", "entry", stimuli, settle=80)


def test_turns_latency_and_interval():
    check_interval(
        lambda: Turns(config=UNIT),
        "LATENCY",
        "over",
        varied("page", (1, 5, 1)),
        prepare={"page": 5, "step": 9},
        before=[{"page": 3, "accessed": 1}],
    )
