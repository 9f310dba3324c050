# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What the golden endpoint counts, where ops come as a free-running device decides them."""

import pytest

from kelp_golden.ops import Op as TrackerOp
from kelp_golden.setup import SESSION, LayerFormats, Setup
from kelp_spec.config import named
from kelp_spec.formats import Format
from kelp_spec.metadata import MissKind, Op, Outcome, PrefetchSource

UNIT = named("unit")


@pytest.fixture
def endpoint():
    """With page 0 of queue 0 cold, and last touched in the current step."""
    setup = Setup(
        config=UNIT,
        layers=1,
        kv_heads=1,
        used_lines=UNIT.half_lines,
        used_pages=UNIT.pages,
        formats=(LayerFormats(last_layer=1023, k=Format.RAW16, v=Format.RAW16),),
        limits=UNIT.frames,
        budgets=(0,) * 4,
        low_water=0,
        high_water=1,
    )
    device = setup.endpoint()
    device.apply(TrackerOp(Op.OPEN, session=SESSION), descriptor=setup.descriptor)
    frame = device.apply(request(write=1)).frame
    device.apply(TrackerOp(Op.CLAIM, session=SESSION))
    device.apply(TrackerOp(Op.RELEASE, session=SESSION, frame=frame, written=1))
    return device


def request(write=0):
    origin = (bytes(64), -1) if write else None
    return TrackerOp(Op.WRITE if write else Op.READ, SESSION, 0, 0, 0, write, origin=origin)


def test_a_prefetch_met_on_its_way_is_late_once_whether_by_an_access_or_not(endpoint):
    """So each prefetch is useful, late or useless in the end."""
    source = PrefetchSource.HINT
    taken = endpoint.apply(TrackerOp(Op.PREFETCH, session=SESSION, source=source))
    assert taken.outcome == Outcome.MISSED
    for _ in range(2):
        met = endpoint.apply(request())
        assert met.outcome == Outcome.PARKED and not met.first
    where = dict(session=SESSION, frame=taken.frame, miss=taken.miss)
    kind = MissKind.PREFETCH
    endpoint.apply(TrackerOp(Op.FILL, miss_kind=kind, source=source, **where))
    for _ in range(2):
        endpoint.apply(TrackerOp(Op.REPLAY, session=SESSION, miss=taken.miss, frame=taken.frame))
    endpoint.apply(TrackerOp(Op.FLIP, miss_kind=kind, **where))
    endpoint.apply(TrackerOp(Op.CLAIM, session=SESSION))
    endpoint.apply(TrackerOp(Op.RELEASE, session=SESSION, frame=taken.frame))
    counted = {what: endpoint.counters[f"prefetch_{what}_hint"] for what in ("issued", "late")}
    assert counted == {"issued": 1, "late": 1}
    assert not endpoint.counters["prefetch_useful_hint"]
    assert not endpoint.counters["prefetch_useless_hint"]
    assert endpoint.counters["misses"] == 0 and endpoint.counters["fetches"] == 1
