# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Who waits, counted by hand on a recording of two layers."""

import numpy as np
import pytest
from trace_files import contents, save

from kelp_sim.replay.waiting import ANSWER, TIER_LATENCY, slot_bytes, waiting
from kelp_sim.trace.accesses import access_sequence
from kelp_sim.trace.trace import read


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    """2 layers × 2 heads; pages of 2 × 4 lines of a token each."""
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    return access_sequence(read(save(path, contents(with_kv=False))))


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
    # slots of 1400 and 700 bytes: 150 cycles at 14 bytes a cycle
    found = waiting(sequence, misses, slots=np.array([1400, 700, 1, 1]))
    assert found.cycles == resident - of_layer + TIER_LATENCY + 150
    assert found.resident_cycles == resident


def test_a_slot_is_the_stored_page_and_a_sector():
    assert [slot_bytes(lines) for lines in (1, 8, 9, 64)] == [1024, 1024, 1536, 4608]
