# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Who is evicted while a prompt is written in one step, beyond the frames; and what a page is worth
whose queue takes policy `kelp` amid a session."""

import pytest

from kelp_golden.endpoint import Endpoint, QueuePolicy
from kelp_golden.kelp_policy import value
from kelp_golden.lockstep import LockStep
from kelp_golden.ops import Op as TrackerOp
from kelp_golden.ops import QueueConfig, Session
from kelp_spec.config import named
from kelp_spec.metadata import Op

QUEUES, PAGES, LINES = 4, 64, 8


@pytest.mark.parametrize("policy", [1, 2])
@pytest.mark.parametrize("frames", [96, 4])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)], ids=str)
def test_a_page_that_is_being_written_stays(policy, frames, order):
    """One queue after another: each begins when every page is in use, and keeps its page, line by
    line, though it has no other. So what no frame is left for goes once, and nothing comes back."""
    config = named("unit_select").with_(
        sessions=1, queues=QUEUES, pages=PAGES, frames=(frames, 4, 4, 4)
    )
    endpoint = Endpoint(config)
    endpoint.tracker.low_water = endpoint.tracker.reserve = 0
    for squeue in range(QUEUES):
        endpoint.configure(squeue, QueueConfig(), QueuePolicy(policy=policy))
    engine = LockStep(endpoint, evict_target=1)
    descriptor = Session(used_queues=QUEUES, used_pages=PAGES, kv_heads=QUEUES)
    descriptor.used_lines = config.half_lines
    engine.open(0, descriptor)
    for squeue in order:
        for page in range(PAGES):
            for line in range(LINES):
                op = TrackerOp(Op.WRITE, 0, squeue, page, line, 1, origin=(bytes(64), -1))
                engine.request(op)
            assert page in endpoint.queues.listed[squeue]
    counters = endpoint.counters
    assert (counters["evictions"], counters["fetches"]) == (QUEUES * PAGES - frames + 1, 0)


def test_distances_are_from_the_newest_page_of_another_policy_too():
    """Four pages are written under policy 0; under `kelp` the first alone is read, so that the
    second, at another distance, has nothing of it."""
    endpoint = Endpoint(named("unit"))
    endpoint.configure(0, QueueConfig(), QueuePolicy(policy=0))
    opens = TrackerOp(Op.OPEN, session=0)
    descriptor = Session(used_queues=1, used_lines=4, used_pages=8, kv_heads=1)
    endpoint.apply(opens, descriptor=descriptor)
    for page in range(4):
        endpoint.apply(TrackerOp(Op.WRITE, page=page, write=1, origin=(bytes(64), -1)))
    endpoint.configure(0, QueueConfig(), QueuePolicy(policy=1))
    for page in range(4):
        endpoint.scores[page] = 0  # no frequency of the other policy's
    reads = 20
    for _ in range(reads):
        endpoint.apply(TrackerOp(Op.STEP, delta=1))
        endpoint.apply(TrackerOp(Op.READ, page=0))
    scan = endpoint.kelp.scores.scan
    assert scan(0, 0, 0, 1, reads, reads).value == value(0, 0, reads - 1, False)
    assert scan(0, 0, 0, 0, reads, reads).value == value(0, reads, reads - 1, False)
