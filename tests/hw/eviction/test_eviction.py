# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The eviction engine: sweeps that run freely pass the audit."""

import pytest
from eviction_runs import MEMORIES, SMALL, run

from kelp_hw.eviction import eviction, evictor
from kelp_hw.eviction.eviction import Eviction
from kelp_hw.eviction.evictor import Evictor
from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_spec.config import named
from kelp_spec.policy import Policy
from kelp_verif.formal.prove import mutant

ROOMY = named("unit").with_(queues=2, pages=16, frames=(16, 8, 8, 8))  # several pages of each queue


def test_free_running_sweeps_pass_the_audit():
    records = run(SMALL, "free_running", cycles=25_000).records
    assert records["victims"] > 60 and records["cancelled"] > 0 and records["failed"] > 0


def test_free_running_choices_under_kelp_follow_the_offers():
    records = run(SMALL, "free_running", cycles=12_000, policies=[Policy.KELP]).records
    assert records["victims"] > 10 and records["sweeps"] > records["victims"]


@pytest.mark.parametrize("memory", MEMORIES)
def test_flipped_bits_are_told_of(memory):
    run(SMALL, "flipped_bits", path=MEMORIES[memory][0])


#: Queues of both policies in one pool: policies in turn, budgets in frames, pages of each queue.
MIXED = {
    "over budget": ([Policy.KELP, Policy.EMA], [0, 2, 5], 8),
    "within budgets": ([Policy.EMA, Policy.KELP, Policy.KELP], [7, 8, 12], 8),
    "few pages": ([Policy.KELP, Policy.EMA, Policy.EMA], [0, 1, 8], 2),
}


def run_mixed(name, cycles, engine=None):
    policies, budgets, pages = MIXED[name]
    asked = dict(policies=policies, budgets=budgets, pages_of_each=pages, pools=[0])
    return run(SMALL, "free_running", cycles=cycles, engine=engine, **asked)


@pytest.mark.parametrize("name", MIXED)
def test_free_running_choices_in_a_pool_of_both_policies_pass_the_audit(name):
    records = run_mixed(name, 12_000).records
    assert records["victims"] > 20 and records["sweeps"] > records["victims"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "name", "old", "new", "said"),
    [
        # Where the root has no page, the search begins with the queue that asks.
        (
            KelpSearch,
            "few pages",
            "(facts.root != facts.squeue)",
            "(facts.root == facts.squeue)",
            "by the offers",
        ),
        # The root is not tried before the others, or its excess does not count.
        (Evictor, "few pages", "self._gives & (self._root", "0 & (self._root", "by the offers"),
        (
            Evictor,
            "over budget",
            "Mux(self._over, self._root",
            "Mux(0, self._root",
            "by the offers",
        ),
        # One after another, but not the next one.
        (
            Evictor,
            "few pages",
            "Mux(squeue == c.squeues - 1, 0, squeue + 1)",
            "Mux(squeue == 0, c.squeues - 1, squeue - 1)",
            "by the offers",
        ),
    ],
    ids=["not_the_root", "no_root_again", "budget_ignored", "backwards"],
)
def test_the_audit_sees_a_wrong_choice_among_both_policies(
    monkeypatch, block, name, old, new, said
):
    module = eviction if block is Evictor else evictor
    monkeypatch.setattr(module, block.__name__, mutant(block, old, new))
    engine = Eviction(config=SMALL)
    with pytest.raises(AssertionError, match=said):
        run_mixed(name, 60_000, engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "calm"),
    [
        # A queue that gave goes on to offer what it gave.
        (
            'm.d.sync += phase.eq(Phase.GIVEN)\n                        m.next = "OFFER"',
            "m.d.comb += verdict.eq(Verdict.DONE)",
            0.5,
        ),
        # Not the queue that asks gives, where all pages are in use, but the one swept last.
        (
            "has_page | (facts.asking == facts.squeue)",
            "has_page | (facts.asking != facts.squeue)",
            0.5,
        ),
        # The queue that asks gives even its newest page.
        ("(best.kind == 2)", "(best.kind == 3)", 0.5),
        # The first queue gives, whatever another one offers. Of several queues an offer is known
        # only where they were left while no frame was wanted.
        ("(worthy != SWEEPS)", "0", 0.9),
    ],
    ids=["stale_offer", "not_asked", "newest_asked", "one_asked"],
)
def test_the_audit_sees_a_wrong_queue_of_the_rtl(monkeypatch, old, new, calm):
    monkeypatch.setattr(evictor, "KelpSearch", mutant(KelpSearch, old, new))
    engine = Eviction(config=ROOMY)
    asked = dict(policies=[Policy.KELP], pools=[0], calm=calm)
    with pytest.raises(AssertionError, match="by the offers"):
        run(ROOMY, "free_running", cycles=25_000, engine=engine, **asked)


def test_within_their_budgets_the_queue_nearest_to_its_own_gives():
    """No queue is over its budget, and often the one that asks has no page."""
    config = named("unit").with_(queues=12, frames=(6, 6, 4, 4))
    asked = dict(budgets=[7, 8, 12], pages_of_each=2)
    records = run(config, "free_running", cycles=16_000, **asked).records
    assert records["victims"] > 50 and records["within"] > 20
