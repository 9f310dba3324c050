# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""PlainSearch: what policy 0 decides at each moment, in the same cycle."""

from simulation import simulate

from kelp_hw.eviction.plain_search import PlainSearch
from kelp_hw.eviction.signatures import Moment, Verdict
from kelp_spec.config import named

UNIT = named("unit")


def test_policy_0_answers_in_the_same_cycle():
    dut = PlainSearch(config=UNIT)
    facts, verdict = dut.search.facts, dut.search.verdict
    rows = (
        (Moment.JUDGE, {"usable": 1, "eligible": 1}, Verdict.TAKE),
        (Moment.JUDGE, {"eligible": 1}, Verdict.SWEEP),
        (Moment.JUDGE, {}, Verdict.NEXT),
        (Moment.SWEPT, {}, Verdict.TAKE),
        (Moment.EMPTY, {"fresh": 1}, Verdict.NEXT),
        (Moment.EMPTY, {}, Verdict.LOOK),
        (Moment.GIVEN, {}, Verdict.DONE),
    )
    assert (dut.LATENCY, dut.INTERVAL) == (0, 1)

    async def bench(ctx):
        for moment, known, expected in rows:
            ctx.set(dut.search.moment, moment)
            ctx.set(facts, known)
            assert ctx.get(verdict) == expected, (moment, known)

    simulate(dut, bench)
