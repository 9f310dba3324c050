# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Policy `kelp`: the golden model's properties (docs/policy.md)."""

import random

import pytest

from kelp_golden.kelp_policy import FIRST, SECOND, KelpPolicy, Scan, Scores, Shadow, fold_table
from kelp_hw.scores.kelp_scores import remains
from kelp_spec import policy
from kelp_spec.config import named

SMALL = named("trace").with_(queues=16, pages=64)


@pytest.mark.parametrize(
    "alpha, bits", [(policy.ALPHA_FAST, policy.FAST_BITS), (policy.ALPHA_SLOW, policy.SLOW_BITS)]
)
def test_fold_tables_agree_and_never_rise(alpha, bits):
    table = remains(alpha, bits)
    assert tuple(table) == fold_table(alpha, bits)
    assert (
        table[0] == 1 << bits
        and table[-1] == 0
        and all(a >= b for a, b in zip(table, table[1:], strict=False))
    )


def test_frequencies_stay_within_their_words():
    """An access in every step brings both to their tops, and long idleness to nothing."""
    scores = Scores(SMALL)
    word = scores.allocate(0, 3, 5, 1)
    for step in range(2, 2000):
        word = scores.touch(word, 0, 3, 5, step, 1)
    fast, slow = word & 511, word >> policy.FAST_BITS
    assert 505 <= fast <= 511 and 4060 <= slow <= 4095
    assert scores.scan(word, 0, 3, 5, 9999, 8000).common == 0


def test_profile_counts_accesses_by_distance_and_forgets():
    scores = Scores(SMALL)
    for page in range(6):
        scores.allocate(0, 3, page, 1)
    word = scores.touch(scores.allocate(0, 3, 6, 1), 0, 3, 2, 2, 1)  # distance 4
    assert [scores.scan(word, 0, 3, page, 2, 1).count for page in (1, 2, 3)] == [0, 1, 0]
    scores.allocate(0, 3, 7, 3)  # page 3 is four behind the newest now
    assert [scores.scan(word, 0, 3, page, 3, 1).count for page in (2, 3)] == [0, 1]
    for step in range(4, 4 + 64):
        scores.touch(word, 0, 3, 3, step, 1)
    held = scores.scan(word, 0, 3, 3, 67, 1).count
    assert held > 32 and scores.scan(word, 0, 3, 3, 67 + 64, 1).count == held // 2


def test_a_page_whose_turn_has_passed_is_worth_less():
    scores = Scores(SMALL)
    word = scores.allocate(0, 3, 5, 1)
    scores.touch(word, 0, 4, 0, 2, 1)
    before, after = scores.scan(word, 0, 3, 5, 2, 1), scores.scan(word, 0, 4, 5, 2, 1)
    assert before.over and not after.over and before.common < after.common
    assert KelpPolicy.worth(before, FIRST, 128) == before.value(FIRST) * 128 >> 8


def test_opinions_differ_by_the_profile_alone():
    scan = Scan(common=1000, count=5, over=False)
    assert scan.value(FIRST) - scan.value(SECOND) == 5 << policy.PROFILE_SHIFT


def test_regret_turns_the_duel():
    kelp = KelpPolicy(SMALL)
    assert kelp.followed == FIRST
    kelp.read(FIRST)
    assert kelp.followed == SECOND
    for _ in range(1000):
        kelp.read(FIRST)
    assert kelp.duel == policy.DUEL_MOST and kelp.credit == -policy.CREDIT_MOST
    for _ in range(2000):
        kelp.read(SECOND)
    assert kelp.followed == FIRST and kelp.duel == -policy.DUEL_MOST


def lru_misses(accesses, frames):
    """What LRU over whole pages would miss, page by page: the shadow may only see fewer."""
    order, missed = {}, 0
    for key in accesses:
        missed += key in order and list(order).index(key) < len(order) - frames
        order.pop(key, None)
        order[key] = None
    return missed


def test_shadow_never_counts_more_than_lru_misses():
    rng = random.Random(7)
    for frames in (10, 30):
        shadow, last, trail, counted = Shadow(), {}, [], 0
        for step in range(1, 150):
            for queue in range(8):
                for page in sorted({int(rng.expovariate(0.4)) for _ in range(4)}):
                    counted += shadow.access(step, last.get((queue, page)), queue, frames)
                    last[queue, page] = step
                    trail.append((queue, page))
        exact = lru_misses(trail, frames)
        assert 0.5 * exact < counted <= exact, (frames, counted, exact)
