# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ChoiceAudit by itself: choices of which traffic meets few."""

import pytest

from kelp_golden.audit.victims import ChoiceAudit
from kelp_golden.eviction import QueueState
from kelp_spec.config import named
from kelp_spec.metadata import PageState

UNIT = named("unit")
LINES = UNIT.frame_lines[0]


@pytest.fixture
def audit():
    """Queue 0 asks for its first frame and has it before the search comes back to it: it is the
    pool's root then, and the search goes on behind it, one queue after another."""
    queues = QueueState(UNIT)
    for squeue, frames in ((0, 1), (1, 9), (2, 9), (3, 5)):
        queues.configure(squeue, 0, frames * LINES)
    for squeue in (1, 2, 3):
        queues.observe(squeue, 0, PageState.FETCHING, PageState.RESIDENT)
    queues.observe(0, 0, PageState.COLD, PageState.FETCHING, demand=True)
    audit = ChoiceAudit(UNIT, queues)
    queues.on_change = audit.changed
    assert queues.root(0) == (-4 * LINES, 3)
    queues.observe(0, 0, PageState.FETCHING, PageState.RESIDENT)
    assert queues.root(0) == (0, 0)
    return audit


def test_a_search_goes_on_in_order_behind_a_queue_that_had_no_page(audit):
    """The first queue that it sweeps, whose page is pinned, is in that order already."""
    assert audit.first(1) is None
    assert audit.following(1, 2) is None


def test_no_queue_with_a_page_is_left_out(audit):
    assert "squeue 2 is asked, the rule names [0]" in audit.first(2)
