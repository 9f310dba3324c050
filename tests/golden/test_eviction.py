# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Who is evicted while a prompt is written in one step, beyond the frames."""

import pytest

from kelp_golden.endpoint import Endpoint, QueuePolicy
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
