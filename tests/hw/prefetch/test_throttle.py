# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Throttle: agrees with its golden model, that model by itself, and how fast it is."""

from timing import changes

from kelp_golden.prefetch import Throttle as GoldenThrottle
from kelp_hw.prefetch.throttle import CREDIT_MAX, ISSUED_PERIOD, Throttle
from kelp_verif.harness.runner import run_cocotb

PARTS = "kelp_verif.prefetch.prefetch_parts_bench"


def test_it_counts_after_its_latency():
    """Of two groups, the first has credit for all of its candidates; 256 prefetches of no use halve
    the credit, so in the second, `allow` falls with the offer behind that of the last credit."""
    issued = [{"issued.valid": 1, "issued.p": 1}] * ISSUED_PERIOD
    block = Throttle()
    halved = changes(block, "credit.1", [{"settle": 1}], before=issued)
    assert halved == [block.COUNT_LATENCY]
    offers = [{"offer.valid": 1, "offer.p": 1}] * (CREDIT_MAX // 2 - 1)
    block = Throttle()
    used_up = changes(
        block,
        "allow",
        [offers[0]] * 2,
        prepare={"offer.p": 1},
        before=[*issued, {"settle": 1}, *offers],
    )
    assert used_up == [block.COUNT_LATENCY]


def test_it_allows_in_the_cycle_of_the_offer():
    block = Throttle()
    spent = [{"issued.valid": 1, "issued.p": 1}] * ISSUED_PERIOD + [{"settle": 1}]
    spent += [{"offer.valid": 1, "offer.p": 1}] * (CREDIT_MAX // 2)
    offers = [{"offer.p": source} for source in (1, 0, 1)]
    seen = changes(block, "allow", offers, before=spent)
    assert seen == [block.LATENCY + k * block.INTERVAL for k in range(3)]


def test_golden_throttle_halves_and_recovers():
    throttle = GoldenThrottle()
    for period, useful, credit in (
        (0, 63, 32),
        (1, 64, 33),
        (2, 0, 16),
        (3, 0, 8),
        (4, 0, 4),
        (5, 0, 2),
        (6, 0, 1),
        (7, 0, 1),
        (8, 200, 2),
    ):
        for _ in range(useful):
            throttle.use()
        for _ in range(256):
            throttle.issue()
        throttle.settle()
        assert throttle.credit == credit, period
    assert sum(throttle.offer() for _ in range(640)) == 20


def test_it_agrees_with_golden():
    tests = ["throttle_against_model", "every_credit_of_each_source"]
    records = run_cocotb(Throttle(), bench=PARTS, test=tests, params={"cycles": 20_000}).records
    assert records["throttled"] > 100
