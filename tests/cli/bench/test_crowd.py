# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What many clients of `kelp serve` see while others misbehave: 200 as the contract says, in
`make soak` and `kelp bench --only serve`; fewer and shorter here. Rounds with and without attackers
take turns."""

import pytest

from kelp_cli.bench.crowd import ATTACKERS, measure

MOST = 3  #: times the others' p99 without attackers


def measured(**size):
    """The others' p99 with and without attackers; where that is beyond the bar, once more: the
    machine may have had something else to do."""
    found = measure(**size)
    return found if found["ratio"] <= MOST else measure(**size)


@pytest.mark.timeout(300)
def test_thirty_clients_beside_one_of_each_attacker():
    found = measured(clients=30, rounds=3, seconds=2.0, think=0.5)
    assert found["ratio"] <= MOST, found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("think", [0.2, 2.0], ids=["saturated", "half idle"])
def test_two_hundred_clients_beside_one_of_each_attacker(think):
    found = measured(think=think)
    assert found["ratio"] <= MOST, found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("attacker", ATTACKERS)
def test_two_hundred_clients_beside_one_attacker(attacker):
    found = measured(names=[attacker], seconds=2.0, think=1.0)
    assert found["ratio"] <= MOST, found
