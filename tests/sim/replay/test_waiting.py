# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Who waits, counted by hand on a recording of two layers."""

import numpy as np
import pytest
from trace_files import contents, save

from kelp_sim.replay.waiting import ANSWER, TIER_BYTES, TIER_LATENCY, slot_bytes, waiting
from kelp_sim.trace.accesses import access_sequence
from kelp_sim.trace.trace import read


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    """2 layers × 2 heads; pages of 2 × 8 lines, two of each token."""
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    return access_sequence(read(save(path, contents(with_kv=False, head_dim=64))))


def test_shares_are_of_layers_and_of_tokens(sequence):
    misses = np.zeros((sequence.steps, 4), int)
    misses[0] = 1, 1, 0, 3  # both layers of step 0
    misses[2] = 0, 2, 0, 0  # one of step 2
    found = waiting(sequence, misses)
    assert found.layers == pytest.approx(3 / (2 * sequence.steps))
    assert found.tokens == pytest.approx(2 / sequence.steps)


def test_cycles_are_lines_or_the_tiers_time(sequence):
    lines = np.bincount(sequence.line_requests()["access"], minlength=len(sequence))
    resident = int(lines.sum()) + 2 * sequence.steps * ANSWER
    none = waiting(sequence, np.zeros((sequence.steps, 4), int))
    assert (none.cycles, none.resident_cycles, none.token_time) == (resident, resident, 1)
    misses = np.zeros((sequence.steps, 4), int)
    misses[1] = 1, 1, 0, 0
    of_layer = lines[(sequence.step == 1) & (sequence.queue < 2)].sum()
    # slots of 1400 and 701 bytes: 151 cycles at 14 bytes a cycle, the last one begun
    found = waiting(sequence, misses, slots=np.array([1400, 701, 1, 1]))
    assert found.cycles == resident - of_layer + TIER_LATENCY + 151
    assert found.resident_cycles == resident
    # unless told otherwise, slots of raw16 pages
    of_raw16 = -(-2 * slot_bytes(16) // TIER_BYTES)
    assert waiting(sequence, misses).cycles == resident - of_layer + TIER_LATENCY + of_raw16


def test_a_tier_that_is_done_before_the_lines_costs_nothing(sequence):
    misses = np.eye(sequence.steps, 4, dtype=int)
    found = waiting(sequence, misses, slots=TIER_BYTES, tier_latency=1)
    assert found.layers > 0 and found.token_time == 1


def test_a_slot_is_the_stored_page_and_a_sector():
    assert [slot_bytes(lines) for lines in (1, 8, 9, 64)] == [1024, 1024, 1536, 4608]
