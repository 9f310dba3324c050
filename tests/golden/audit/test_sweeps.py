# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SweepAudit by itself, told of a sweep op by op: cases of which traffic meets few."""

import pytest

from kelp_golden.audit.sweeps import SweepAudit
from kelp_golden.eviction import QueueState
from kelp_golden.ops import Session
from kelp_spec.config import named
from kelp_spec.metadata import PageState
from kelp_spec.scores import recency_constants

UNIT = named("unit")
OLD, NOW = 1, 5  #: steps


@pytest.mark.parametrize("in_work", [True, False])
def test_a_page_in_work_may_be_the_best_of_its_list(in_work):
    """Its eviction fails before the list is used again: no rule says that it was passed over. Other
    pages of the list are good as long as their step lasts."""
    queues = QueueState(UNIT)
    sessions = [Session(open=1, step=NOW) for _ in range(UNIT.sessions)]
    audit = SweepAudit(UNIT, queues, sessions, lambda squeue: recency_constants(1000))
    for page in range(4):
        queues.observe(0, page, PageState.ABSENT, PageState.RESIDENT, demand=True, write=True)
    audit.fresh.clear()
    if in_work:
        audit.working.add((0, 1))
    # Of the four the first two are ordinary, the third was touched in this step, the last is new.
    for page, last_step, score in ((0, OLD, 0), (1, OLD if in_work else NOW, 9), (2, NOW, 0)):
        assert audit.scan(0, page, 1, PageState.RESIDENT, last_step, 0, score) is None
    assert audit.scan(0, 3, 1, PageState.RESIDENT, NOW, 0, 0) is None
    sessions[0].step += 1
    assert audit.claim(0, 0, OLD, done=True) is None
    queues.observe(0, 0, PageState.RESIDENT, PageState.WRITING_BACK)
    if in_work:
        assert audit.release(0, 1) is None
        assert audit.claim(0, 1, OLD, done=True) is None
    else:
        assert "from a list that was no longer good" in audit.claim(0, 2, NOW, done=True)
