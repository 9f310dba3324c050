# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What many clients of `kelp serve` see while others misbehave: 200 as the contract says, in
`make soak` and `kelp bench --only serve`; fewer and shorter here. Rounds with and without attackers
take turns."""

import pytest

from kelp_cli.bench.crowd import ATTACKERS, measure


def judge(**size):
    """The others' p99 with and without attackers, within the bar; where it is not, once more: the
    machine may have had something else to do."""
    found = measure(**size)
    if found["ratio"] > 3:
        found = measure(**size)
    assert found["ratio"] <= 3, found


@pytest.mark.timeout(300)
def test_thirty_clients_beside_one_of_each_attacker():
    judge(clients=30, rounds=3, seconds=2.0, think=0.5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("think", [0.2, 2.0], ids=["saturated", "half idle"])
def test_two_hundred_clients_beside_one_of_each_attacker(think):
    judge(think=think)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("attacker", ATTACKERS)
def test_two_hundred_clients_beside_one_attacker(attacker):
    judge(names=[attacker], seconds=2.0, think=1.0)
