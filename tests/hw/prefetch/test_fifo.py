# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PrefetchFifo: a sorted list, and how fast it is."""

import pytest
from timing import check_pace, offers, shown

from kelp_hw.prefetch.fifo import PrefetchFifo
from kelp_spec.config import named
from kelp_verif.harness.runner import run_cocotb

PARTS = "kelp_verif.prefetch.prefetch_parts_bench"


def test_latency_and_interval():
    block = PrefetchFifo(config=named("unit"))
    output, stimuli = shown(field="page"), offers(field="page")
    check_pace(block, "LATENCY", output, stimuli, prepare={"o.ready": 1})


@pytest.mark.parametrize("config", ["unit", "unit_select"])
@pytest.mark.sampled
def test_queue_agrees_with_a_sorted_list(config):
    seen = run_cocotb(
        PrefetchFifo(config=named(config)),
        bench=PARTS,
        test="queue_against_list",
        params={"config": config, "cycles": 12_000},
    ).records["seen"]
    assert all(seen[name] > 50 for name in ("DUPLICATE", "FULL", "CANCELLED", "CANCEL", "LEFT")), (
        seen
    )


def test_bad_parameters_are_refused():
    with pytest.raises((TypeError, ValueError), match="config = None"):
        PrefetchFifo(config=None)
