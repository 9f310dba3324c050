# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Evictor, in the engine: it chooses as the golden evictor does."""

import pytest
from eviction_runs import SMALL, run

from kelp_hw.eviction.eviction import Eviction
from kelp_hw.eviction.evictor import Evictor
from kelp_spec.config import named
from kelp_spec.policy import Policy

ROOMY = named("unit").with_(queues=2, pages=16, frames=(16, 8, 8, 8))  # several pages of each queue
KELP, MIXED = [Policy.KELP], [Policy.KELP, Policy.EMA, Policy.KELP, Policy.KELP]
TABLES = named("unit_select").with_(queues=2, frames=(16, 8, 8, 8))


@pytest.mark.parametrize(
    ("pools", "budgets"),
    [
        pytest.param([0, 0, 1], [0, 2, 5], id="large", marks=pytest.mark.night),
        pytest.param([2, 3], [4, 8], id="small"),
    ],
)
def test_every_claim_is_the_golden_evictors(pools, budgets):
    """Where many queues are beyond their budgets, and where few are, so that the one that asks
    gives. Sessions close and open again, with a list of theirs left."""
    records = run(SMALL, "lockstep", ops=400, pools=pools, budgets=budgets, closes=True).records
    assert records["victims"] > 80 and records["write_backs"] > 20


@pytest.mark.parametrize(
    ("config", "pools", "policies"),
    [
        pytest.param(ROOMY, [0], KELP, id="roomy-kelp"),
        pytest.param(SMALL, [0, 1, 2, 3], MIXED, id="small-mixed"),
        pytest.param(ROOMY, [0], MIXED, id="roomy-mixed", marks=pytest.mark.night),
        pytest.param(SMALL, [0, 1, 2, 3], KELP, id="small-kelp", marks=pytest.mark.night),
    ],
)
def test_every_claim_under_policy_kelp_is_the_golden_evictors(config, pools, policies):
    records = run(config, "lockstep", ops=500, policies=policies, pools=pools).records
    assert records["victims"] > 80 and records["refreshed"] > 30
    assert records["sweeps"] > records["victims"] + records["refreshed"] // 4
    assert not records["events"]


@pytest.mark.parametrize(
    ("config", "seed"),
    [
        pytest.param(ROOMY, None, id="roomy", marks=pytest.mark.night),
        pytest.param(SMALL, None, id="small", marks=pytest.mark.night),
        pytest.param(SMALL, 91987038, id="at"),
    ],
)
def test_every_claim_is_the_golden_evictors_while_policies_change(config, seed):
    """A list that one policy left is not used as the other's would be. `at`: a queue goes to policy
    `kelp` that is at its budget, no line beyond it, and is the pool's root until it is swept."""
    params = {"policies": list(Policy), "pools": [0], "budgets": [0, 2], "applies": True}
    records = run(config, "lockstep", ops=500, seed=seed, **params).records
    assert records["victims"] > 80 and records["refreshed"] > 10


@pytest.mark.parametrize(
    "policies",
    [
        pytest.param([2], id="all"),
        pytest.param([2, Policy.KELP, 2, Policy.EMA], id="mixed", marks=pytest.mark.night),
    ],
)
def test_every_claim_by_tables_is_the_golden_evictors(policies):
    """Policy 2, in a configuration with tables: what they say is taken, where they know of a
    queue."""
    records = run(TABLES, "lockstep", ops=500, policies=policies, pools=[0]).records
    assert records["victims"] > 70 and records["refreshed"] > 20
    assert not records["events"]


@pytest.mark.parametrize(
    "policies", [[Policy.EMA], [Policy.KELP], list(Policy)], ids=["ema", "kelp", "mixed"]
)
@pytest.mark.sampled
def test_a_victim_is_found_in_whichever_queue_it_is(policies):
    run(SMALL, "one_queue_after_another", policies=policies, pools=[0])


def test_a_choice_waits_until_all_is_absorbed(monkeypatch):
    """It would go on by itself before so much has come: not where it waits for many rounds."""
    monkeypatch.setattr(Evictor, "ROUNDS", 200)
    run(SMALL, "absorbs_without_end", engine=Eviction(config=SMALL))


def test_who_writes_configuration_without_pause_keeps_no_choice_waiting():
    """A tenant may have its queues taken over again (APPLY) as often as it likes."""
    records = run(SMALL, "chooses_while_written", pools=[0]).records
    print(f"a victim in {records['cycles']} cycles, at most {records['most']}")


@pytest.mark.parametrize("pools", [[0, 0, 1], [3, 3, 1]], ids=["pool_0", "pool_3"])
def test_nothing_to_evict_is_an_event_and_a_rest(pools):
    run(SMALL, "nothing_to_evict", pools=pools)
