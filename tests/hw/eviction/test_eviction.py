# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The eviction engine: sweeps that run freely pass the audit."""

import pytest
from eviction_runs import run

from kelp_hw.eviction import evictor
from kelp_hw.eviction.eviction import Eviction
from kelp_hw.eviction.kelp_search import KelpSearch
from kelp_spec.config import named
from kelp_spec.policy import Policy
from kelp_verif.formal.prove import mutant

SMALL = named("unit")


def test_free_running_sweeps_pass_the_audit():
    records = run(SMALL, "free_running", cycles=25_000).records
    assert records["victims"] > 60 and records["cancelled"] > 0 and records["failed"] > 0


def test_free_running_choices_under_kelp_follow_the_offers():
    records = run(SMALL, "free_running", cycles=12_000, policies=[Policy.KELP]).records
    assert records["victims"] > 40 and records["sweeps"] > records["victims"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The second queue with an offer is not asked.
        ("(worthy != SWEEPS)", "(worthy == 0)"),
        # A queue that gave goes on to offer what it gave.
        (
            'm.d.sync += phase.eq(Phase.GIVEN)\n                        m.next = "OFFER"',
            "m.d.comb += verdict.eq(Verdict.DONE)",
        ),
        # Not the queue that asks gives, where all pages are in use, but the one swept last.
        ("has_page | (facts.asking == facts.squeue)", "has_page | (facts.asking != facts.squeue)"),
    ],
    ids=["one_asked", "stale_offer", "not_asked"],
)
def test_the_audit_sees_a_wrong_queue_of_the_rtl(monkeypatch, old, new):
    monkeypatch.setattr(evictor, "KelpSearch", mutant(KelpSearch, old, new))
    engine = Eviction(config=SMALL)
    with pytest.raises(AssertionError, match="by the offers"):
        run(SMALL, "free_running", cycles=25_000, policies=[Policy.KELP], engine=engine)


def test_within_their_budgets_the_queue_nearest_to_its_own_gives():
    """No queue is over its budget, and often the one that asks has no page."""
    config = SMALL.with_(queues=12, frames=(6, 6, 4, 4))
    asked = dict(budgets=[7, 8, 12], pages_of_each=2)
    records = run(config, "free_running", cycles=16_000, **asked).records
    assert records["victims"] > 50 and records["within"] > 20
