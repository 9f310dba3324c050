# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY` and `INTERVAL` of the blocks beside the EMA engine, which its bench measures."""

import pytest
from timing import least_interval

from kelp_hw.scores.ema import EmaStep
from kelp_hw.scores.kelp_scores import Frequencies, Profile, Turns
from kelp_spec.config import named

UNIT = named("unit")

COUNT = {"valid": 1, "counts": 1}
CASES = {
    "EmaStep": (EmaStep, "LATENCY", "o", [{"x": 65535, "a": a} for a in (100, 200, 50)], {}),
    "Frequencies, common": (
        Frequencies,
        "LATENCY",
        "common",
        [{"word": word} for word in (100, 200, 50)],
        {},
    ),
    "Frequencies, touched": (
        Frequencies,
        "TOUCHED_LATENCY",
        "touched",
        [{"word": word} for word in (100, 200, 50)],
        {},
    ),
    "Frequencies, idle": (
        Frequencies,
        "IDLE_LATENCY",
        "common",
        [{"idle": idle} for idle in (1, 2, 3)],
        {"prepare": {"word": (1 << 21) - 1}},
    ),
    "Profile, count": (
        lambda: Profile(config=UNIT),
        "LATENCY",
        "count",
        [{"distance": distance} for distance in (0, 5, 0)],
        {"settle": 80, "prepare": {"distance": 5}, "before": [COUNT | {"distance": 0}]},
    ),
    "Profile, entry": (
        lambda: Profile(config=UNIT),
        "ENTRY_LATENCY",
        "entry",
        [COUNT | {"distance": k, "epoch": k} for k in (1, 2, 3)],
        {"settle": 80},
    ),
    "Turns": (
        lambda: Turns(config=UNIT),
        "LATENCY",
        "over",
        [{"page": page} for page in (1, 5, 1)],
        {"prepare": {"page": 5, "step": 9}, "before": [{"page": 3, "accessed": 1}]},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_latency_and_interval(case):
    make, attribute, output, stimuli, options = CASES[case]
    latency = getattr(make(), attribute)
    assert least_interval(make, output, stimuli, latency, **options) == make().INTERVAL
