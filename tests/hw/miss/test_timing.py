# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY`, `INTERVAL` and `TURN` of the miss path's blocks; that the miss buffer replays as fast
as it says, its bench measures."""

import pytest
from amaranth.hdl import Mux
from timing import changes, least_interval

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_hw.miss.grants import MissGrants
from kelp_hw.miss.miss_buffer import MissBuffer
from kelp_hw.miss.park_lists import ParkLists
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome

UNIT = named("unit")


def test_park_lists_offer_an_append_after_their_latency():
    interval = least_interval(
        lambda: ParkLists(lists=2, nodes=4, shape=4),
        lambda dut: Mux(dut.o.valid, dut.o.p, 0),
        [{"i.valid": 1, "i.p.park": 1, "i.p.data": data} for data in (1, 2, 3)],
        ParkLists.LATENCY,
        prepare={"o.ready": 1},
        before=[{"i.valid": 1, "i.p.create": 1}, {}, {"visit_start": 1}],
    )
    assert interval == ParkLists.INTERVAL


def rises(make, output, stimuli, prepare):
    """First two cycles in which `output` becomes valid, at each phase of what goes round within."""
    for settle in range(2, 2 + make().TURN):
        seen = changes(make(), output, stimuli, prepare=prepare, settle=settle, within=80)
        yield seen[0::2]


@pytest.mark.parametrize(
    ("cls", "output", "stimuli", "prepare"),
    [
        (
            MissGrants,
            "o_op.valid",
            [{"i.valid": 1, "i.p.miss": k, "i.p.pool": k} for k in range(4)],
            {
                "pool_free": 0x1111,
                "starve_limit": 1 << 20,
                "o_op.ready": 1,
                "i_outcome.valid": 1,
                "i_outcome.p": int(Outcome.DONE),
            },
        ),
        (
            ColdScheduler,
            "o_command.valid",
            [{"i_fetch.valid": 1, "i_fetch.p.demand": 1, "i_fetch.p.miss": k} for k in range(4)],
            {"o_command.ready": 1, "timeout": 1 << 31},
        ),
    ],
    ids=["MissGrants", "ColdScheduler"],
)
def test_latency_and_interval_at_each_phase(cls, output, stimuli, prepare):
    seen = list(rises(lambda: cls(config=UNIT), output, stimuli, prepare))
    first = sorted(first for first, _ in seen)
    assert first == list(range(cls.LATENCY, cls.LATENCY + cls.TURN))
    assert {second - first for first, second in seen} == {cls.INTERVAL}


def test_miss_buffer_fills_after_its_latency():
    missed = {
        "i_result.valid": 1,
        "i_result.p.op.kind": int(Op.PREFETCH),
        "i_result.p.outcome": int(Outcome.MISSED),
    }
    fill = changes(
        MissBuffer(config=UNIT),
        "o_op.valid",
        [{"i_fetched.valid": 1}],
        prepare={"o_op.ready": 1},
        before=[{"o_miss_free.ready": 1}, missed],
    )
    assert fill == [MissBuffer.LATENCY]
