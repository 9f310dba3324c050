# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Policy `kelp`: the golden model's properties (docs/policy.md)."""

import math

from kelp_golden.arithmetic import log2
from kelp_golden.kelp_policy import KelpPolicy, Scores, value
from kelp_spec import policy
from kelp_spec.config import named

SMALL = named("trace").with_(queues=16, pages=64)


def test_a_logarithm_is_within_a_tenth_of_the_true_one():
    for x in (1, 2, 3, 64, 65, 4667, (1 << 26) - 1, 1 << 26):
        assert 0 <= math.log2(x) * (1 << policy.LOG_BITS) - log2(x) < 0.1 * (1 << policy.LOG_BITS)


def test_a_frequency_stays_within_its_word():
    """To be written is not to be read; an access in every step brings it near its top, and long
    idleness to nothing."""
    scores = Scores(SMALL)
    word = scores.allocate(0, 3, 5, 1)
    assert word == 0
    for step in range(2, 2000):
        word = scores.touch(word, 0, 3, 5, step, 1)
    assert 4030 <= word < 1 << policy.FREQUENCY_BITS
    assert scores.touch(word, 0, 3, 5, 9999, 8000) == scores.touch(0, 0, 3, 5, 9999, 8000)


def test_profile_counts_accesses_by_distance_and_forgets():
    """A count shows in the values of pages at its distance alone."""
    scores = Scores(SMALL)
    for page in range(6):
        scores.allocate(0, 3, page, 1)
    word = scores.touch(scores.allocate(0, 3, 6, 1), 0, 3, 2, 2, 1)  # distance 4

    def worth(page, step, gap=1):
        return scores.scan(word, 0, 3, page, step, gap).value

    def alone(count, idle=0):
        return value(word, count, idle, False)

    assert [worth(page, 2) for page in (2, 3, 4)] == [alone(1), alone(0), alone(0)]
    scores.allocate(0, 3, 7, 3)  # page 3 is four behind the newest now
    assert [worth(page, 4) for page in (3, 4)] == [alone(1), alone(0)]
    for step in range(4, 4 + 64):
        scores.touch(word, 0, 3, 3, step, 1)
    held = next(count for count in range(128) if alone(count) == worth(3, 67, 0))
    assert held > 32
    assert scores.scan(word, 0, 3, 3, 67 + 64, 64).value == alone(held // 2, 63)


def test_a_page_whose_turn_has_passed_is_worth_less():
    scores = Scores(SMALL)
    word = scores.touch(scores.allocate(0, 3, 5, 1), 0, 3, 5, 2, 1)
    ahead = scores.scan(word, 0, 3, 5, 3, 1)
    scores.touch(word, 0, 4, 0, 3, 1)
    passed, same = (scores.scan(word, 0, 3, 5, 3, gap) for gap in (1, 0))
    assert passed.finished and not ahead.finished
    assert passed.value < same.value < ahead.value


def test_recency_is_left_where_a_frequency_has_faded():
    values = [value(300, 0, idle, False) for idle in (600, 700, 5000, 1 << 23)]
    assert values == sorted(values, reverse=True) and len(set(values)) == 4


def test_a_queue_left_behind_is_asked_for():
    kelp = KelpPolicy(SMALL)
    for squeue, step, left in ((1, 5, None), (1, 5, None), (2, 5, 1), (2, 6, 2), (1, 6, 2)):
        kelp.access(0, squeue, step)
        assert kelp.refresh == left
    kelp.opened(0)
    kelp.refresh = None
    kelp.access(0, 3, 1)
    assert kelp.refresh is None
