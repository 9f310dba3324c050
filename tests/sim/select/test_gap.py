# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A host that waits for what the ideal reader chooses: it reads that and nothing else, its policies
are the documents', and rows say what they promise."""

import numpy as np
import pytest

from kelp_golden import kelp_policy
from kelp_sim.select import gap, memory, rivals
from kelp_sim.select.decode import Device, decode
from kelp_sim.select.readers import Ideal
from kelp_sim.select.timing import Shape
from kelp_spec import policy, policy2

FIRST, MOST = 240, 4
ASKS = {"quota": 4, "most": MOST, "compute": 100_000}


def test_it_reads_what_the_ideal_reader_reads(small):
    model, ids = small
    best = rivals.read(model, ids, FIRST, "ideal", Ideal(most=MOST))
    whole, few, kelp, lru = decode(
        model,
        ids,
        FIRST,
        [
            gap.Waiting(**ASKS),
            gap.Waiting(residency=0.4, **ASKS),
            gap.Waiting(residency=0.4, policy="kelp", **ASKS),
            gap.Waiting(residency=0.4, policy="lru", **ASKS),
        ],
    )
    for run in (whole, few, kelp, lru):
        # Scores of one query and of many at once differ in their last bits.
        assert (run.chosen != best.chosen).mean() < 1e-3
        assert (run.missing[..., 2] == run.chosen.sum(axis=-1)).all()
        assert (run.waits == run.missing[..., 3].any(axis=-1)).all()
    assert not whole.reads.any() and few.waits.any()
    # A page that is on its way is waited for, and read once.
    assert few.missing[..., 3].sum() <= few.reads.sum() + len(few.reads)
    assert kelp.early.any()
    # By LRU it misses what the lab's LRU misses, once what a run begins with is gone.
    missed = rivals.misses(best, FIRST, 0.4, Shape(kv_heads=2, group=4, lines=1))
    assert lru.missing[16:, ..., 3].sum() == pytest.approx(missed[16:].sum(), rel=0.05)


def test_kelps_value_is_the_golden_models():
    rng = np.random.default_rng(7)
    queues, pages, newest = 3, 40, 30
    pool = memory.new_pool(queues, pages, 60)
    pool.state[:], pool.newest[:] = memory.RESIDENT, newest
    for step in range(1, 700, 9):
        for queue in range(queues):
            turn = memory.Turn(
                pages, 60, 2, 100, memory.KELP, policy2.FETCH, newest, queue, step, 0
            )
            read = np.zeros(pages, bool)
            read[rng.choice(newest + 1, 5, replace=False)] = True
            memory.turn_over(pool, turn, queue, read)
            for page in rng.choice(newest + 1, 8).tolist():
                for other in range(queues):
                    last = int(pool.touched[other * pages + page])
                    over = other < queue
                    idle = step - last - 1 + over if last < step else 0
                    passed = (step >> policy.EPOCH_SHIFT) - int(pool.epochs[other, newest - page])
                    count = int(pool.counts[other, newest - page]) >> (passed & 3)
                    often = int(pool.often[other * pages + page])
                    assert memory.kelp_value(pool, turn, other, page) == kelp_policy.value(
                        often, count, idle, over
                    )


def test_rows_and_their_sums(small):
    model, ids = small
    documents = [("text", ids, FIRST), ("again", ids, FIRST)]
    heard = []
    found = gap.rows(
        model,
        documents,
        [0.4],
        device=Device(**ASKS),
        warm=8,
        progress=lambda what, share: heard.append((what, share)),
    )
    assert all(tuple(row) == gap.KEYS for row in found)
    assert heard[-1] == ("again", 1.0) and {what for what, _ in heard} == {"text", "again"}
    half = len(found) // 2
    assert [{**row, "document": ""} for row in found[:half]] == [
        {**row, "document": ""} for row in found[half:]
    ]
    by = {(row["policy"], row["told"]): row for row in found}
    assert by["lru", "pages read"]["gap"] == 0 and by["belady", "pages read"]["gap"] == 1
    assert by["lru", "pages read"]["flash_over_lru"] == 1
    told = by["table", gap.TOLD[True]]
    assert told["flash_reads"] >= told["misses"] > 0
    sums = {(row["policy"], row["told"]): row for row in gap.summary(found)}
    both = sums["table", gap.TOLD[True]]
    assert both["documents"] == 2 and both["misses"] == 2 * told["misses"]
    assert both["gap"] == told["gap"] == both["least_gap"]
    assert both["flash_over_lru"] == told["flash_over_lru"] == both["most_flash_over_lru"]


def test_no_gap_where_lru_misses_nothing(small):
    model, ids = small
    found = gap.rows(model, [("text", ids, FIRST)], [1.0], device=Device(**ASKS))
    assert all(row["gap"] is None and row["flash_over_lru"] is None for row in found)
    assert all(row["gap"] is None and row["least_gap"] is None for row in gap.summary(found))
