# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sweep, in the engine: the cycles that it takes."""

import pytest
from eviction_runs import run

from kelp_hw.eviction.sweep import Sweep
from kelp_spec.config import named

LARGE = named("640x8192").with_(frames=(2048, 256, 256, 256), queues=8)


@pytest.mark.parametrize("resident", [1, 100, 1500])
def test_a_sweep_costs_words_and_pages(resident):
    records = run(LARGE, "sweep_cycles", resident=resident).records
    assert records["words"] == 128
    assert records["cycles"] <= 128 + resident * Sweep.INTERVAL + Sweep.OVERHEAD
