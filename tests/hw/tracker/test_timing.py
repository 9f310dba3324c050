# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY` and `INTERVAL` of the tracker's blocks; benches measure those of `Tracker` and
`FrameTable`."""

import pytest
from amaranth.hdl import Mux
from timing import least_interval

from kelp_hw.tracker.arbiter import Arbiter
from kelp_hw.tracker.decide import Decide
from kelp_hw.tracker.foresight import Foresight
from kelp_hw.tracker.hot_pages import HotPages
from kelp_hw.tracker.miss_ids import MissIds
from kelp_hw.tracker.page_address import PageAddress
from kelp_hw.tracker.page_words import PageWords
from kelp_hw.tracker.pools import FreeFrames, Pools
from kelp_hw.tracker.sessions import SessionCheck, Sessions
from kelp_spec.config import named

UNIT = named("unit")


def counted(path, values=(1, 2, 3), **fields):
    return [{path: value} | fields for value in values]


def admitted(dut):
    """The request that the arbiter takes and sends on in one cycle."""
    return Mux(dut.i_request.ready & dut.o_valid, dut.o_entering.request.page, 0)


def look(page):
    return {"look.valid": 1, "look.p.page": page}


POOL = {"prepare": {"limit": 8}}
HOT = {"prepare": {"page.page": 1, "ahead.page": 1}, "before": [{"keep": 1, "new.frame": 5}]}
#: Class, attribute, output, stimuli, options of `changes`.
CASES = [
    (
        Arbiter,
        "LATENCY",
        admitted,
        counted("i_request.p.page", **{"i_request.valid": 1}),
        {"prepare": {"credits": 63, "credits_ahead": 63}},
    ),
    (Decide, "LATENCY", "frame_op.p", counted("op.page"), {}),
    (Foresight, "LATENCY", "same", counted("ahead.candidates.0.page", (1, 0, 1), moves=1), {}),
    (HotPages, "LATENCY", "entry", counted("same", (1, 0, 1)), HOT),
    (HotPages, "HIT_LATENCY", "hit", counted("same", (1, 0, 1)), HOT),
    (MissIds, "LATENCY", "level", counted("i.valid", (1, 1, 1)), {}),
    (PageAddress, "LATENCY", "base", counted("frame"), {}),
    (
        PageWords,
        "LATENCY",
        "word",
        [look(1), look(2), look(3)],
        {
            "settle": UNIT.page_words + 4,
            "before": [
                look(1),
                look(2),
                {},
                {"write": 1, "new.place": 1},
                {"write": 1, "new.place": 2},
            ],
        },
    ),
    (FreeFrames, "LATENCY", "frame", counted("pop", (1, 1, 1)), POOL),
    (Pools, "LATENCY", "frame", counted("pop", (1, 1, 1), want=1), {"prepare": {"limit": 8}}),
    (Sessions, "LATENCY", "sessions", counted("step", (1, 1, 1), delta=1), {}),
    (SessionCheck, "LATENCY", "event", counted("refused"), {}),
]
ARGUMENTS = {FreeFrames: {"first": 0, "frames": 8, "frame_bits": 3}}


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{cls.__name__}-{attribute}" for cls, attribute, *_ in CASES]
)
def test_latency_and_interval(case):
    cls, attribute, output, stimuli, options = case

    def make():
        return cls(**ARGUMENTS.get(cls, {"config": UNIT}))

    latency = getattr(make(), attribute)
    assert least_interval(make, output, stimuli, latency, **options) == make().INTERVAL
