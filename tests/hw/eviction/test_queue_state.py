# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Queue state: residency map, excess trees, newest page and requester, against the golden model."""

import dataclasses
import random

import pytest

from kelp_golden.eviction import QueueState as GoldenQueueState
from kelp_hw.eviction.queue_state import QueueState
from kelp_spec.config import named
from kelp_spec.metadata import PageState
from kelp_verif.harness.runner import made, run_cocotb

WIDE = named("unit").with_(pages=256)  # several words of the map per queue


def run(config, test, **params):
    params["config"] = dataclasses.asdict(config)
    return run_cocotb(
        made(QueueState, config=config),
        bench="kelp_verif.eviction.queue_state_bench",
        test=test,
        params=params,
        timeout_s=200,
    )


@pytest.mark.parametrize("config", [named("unit"), WIDE], ids=["unit", "wide"])
def test_queue_state_is_its_golden_model(config):
    records = run(config, "random_results", rounds=100).records
    assert (
        records["checks"] == 100
        and records["results"] > 300
        and records["roots"] > 10
        and records["within"] > 5
        and records["offers"] > 5
        and records["words_read"] > 300
    )


def test_an_event_costs_one_walk_over_640_queues():
    config = named("ulx3s")
    cycles = run(config, "cost_of_an_event").records["cycles"]
    assert cycles == QueueState(config=config).INTERVAL


def test_golden_root_is_the_largest_excess():
    rng = random.Random(5)
    config = named("unit")
    queues = GoldenQueueState(config)
    for _ in range(3000):
        squeue = rng.randrange(config.squeues)
        if rng.random() < 0.1:
            if not queues.listed[squeue]:
                queues.configure(squeue, rng.randrange(4), rng.choice([0, 8, 20]))
        else:
            queues.observe(
                squeue,
                rng.randrange(config.pages),
                0,
                rng.choice([PageState.RESIDENT, PageState.COLD]),
            )
        for pool in range(4):
            excess = {
                q: queues.resident_lines(q) - queues.budget[q]
                for q in range(config.squeues)
                if queues.pool[q] == pool and queues.listed[q]
            }
            root = max(excess, key=lambda q: (excess[q], -q), default=None)
            assert queues.root(pool) == ((None, 0) if root is None else (excess[root], root))


def test_golden_budgets_without_a_limit_are_equal():
    """The registers hold larger budgets than the device has lines (`SessionControl` takes the most
    that it can tell): whose budget has the larger number does not decide then."""
    config = named("unit")
    queues, most = GoldenQueueState(config), 1 << config.dram_line_bits
    for squeue, budget in ((0, most - 1), (1, most), (2, (1 << 31) - 1)):
        queues.configure(squeue, 0, budget)
        for page in range(squeue + 1):
            queues.observe(squeue, page, PageState.ABSENT, PageState.RESIDENT)
    assert queues.root(0) == (3 * config.frame_lines[0] - most + 1, 2)
