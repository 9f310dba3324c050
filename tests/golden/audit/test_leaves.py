# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a leaf may say of a queue whose policy changed."""

import pytest

from kelp_golden.audit.leaves import NOTHING, Leaves
from kelp_spec.config import named


def leaves_of_a_kelp_queue(*, emptied):
    """Queue 6 had an excess of 3 under policy 0, then an offer of 9 under policy `kelp`."""
    leaves = Leaves(named("unit"))
    leaves.follow(6, 3)
    leaves.settle()
    leaves.write(6, {9})
    if emptied:
        leaves.empty(6)
    return leaves


@pytest.mark.parametrize("emptied", [False, True])
def test_policy_0_after_kelp_is_its_excess(emptied):
    """Until that is absorbed the leaf may say what it said; what emptied the queue under the other
    policy empties it no more."""
    leaves = leaves_of_a_kelp_queue(emptied=emptied)
    leaves.becomes_plain(6)
    leaves.follow(6, 3)
    assert (leaves.least[6], leaves.most[6]) == (NOTHING if emptied else 3, 9)
    for _ in range(3):
        leaves.age()
    assert (leaves.least[6], leaves.most[6]) == (3, 3)
    assert leaves.roots(0, set())[:2] == ([6], 3)


def test_what_empties_a_kelp_queue_does_so_two_sweeps_later():
    leaves = leaves_of_a_kelp_queue(emptied=True)
    assert (leaves.least[6], leaves.most[6]) == (NOTHING, 9)
    for _ in range(2):
        leaves.age()
    assert (leaves.least[6], leaves.most[6]) == (NOTHING, NOTHING)
