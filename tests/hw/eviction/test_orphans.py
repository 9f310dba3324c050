# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Orphans, in the engine: no frame of a lost word stays lost."""

from eviction_runs import run

from kelp_hw.eviction.orphans import Orphans
from kelp_spec.config import named

SMALL = named("unit")


def test_lost_words_give_their_frames_back():
    assert run(SMALL, "recovers", cycles=10_000).records["recovered"] > 0


def test_more_words_are_lost_at_once_than_can_wait():
    records = run(SMALL, "loses_many", rounds=4).records
    # one is searched for, LOST wait
    assert records["most"] > Orphans.LOST + 1 and records["sweeps"] >= 2
    assert records["recovered"] > 20
