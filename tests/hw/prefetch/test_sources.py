# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sources of candidates: pages after an access and of the previous step, and how fast they come."""

import pytest
from simulation import simulate
from timing import changes, check_pace, offers, shown

from kelp_hw.prefetch.sources import AccessSource, PreviousSource
from kelp_spec.config import named
from kelp_verif.harness.runner import run_cocotb

PARTS = "kelp_verif.prefetch.prefetch_parts_bench"
UNIT = named("unit")
OPEN = {
    "sessions.0.open": 1,
    "sessions.0.used_pages": UNIT.pages,
    "sessions.0.used_queues": UNIT.queues,
    "sessions.0.kv_heads": 1,
}


def test_previous_latency_and_interval():
    check_pace(
        PreviousSource(config=UNIT),
        "LATENCY",
        shown(field="page"),
        [{"quiet": 1}, {}, {}],
        prepare={"live": 1, "o.ready": 1},
        before=[*offers(field="page"), {"step.valid": 1}],
    )


@pytest.mark.parametrize("stepping", [0, 1])
def test_a_session_that_steps_without_pause_keeps_no_others_pages_back(stepping):
    """Its walk ends with each step and begins anew; between two of them the other's has its
    turn."""
    dut, offered = PreviousSource(config=UNIT), []

    async def bench(ctx):
        ctx.set(dut.live, 0b11)
        ctx.set(dut.quiet, 1)
        for cycle in range(200):
            ctx.set(dut.o.ready, cycle % 3 == 0)
            other = cycle in (3, 20)  # an access, and a step
            ctx.set(dut.i.p.session, 1 - stepping if other else stepping)
            ctx.set(dut.i.valid, cycle % 4 != 0 and cycle != 20)
            ctx.set(dut.step.p, 1 - stepping if other else stepping)
            ctx.set(dut.step.valid, cycle % 4 == 0)
            if ctx.get(dut.o.valid) and ctx.get(dut.o.ready):
                offered.append(ctx.get(dut.o.p.session))
            await ctx.tick()

    simulate(dut, bench)
    assert offered.count(1 - stepping) == 1 and offered.count(stepping) > 1


def test_accesses_leave_as_far_apart_as_their_interval():
    block = AccessSource(config=UNIT)
    prepare = OPEN | {"layer_on": 1, "o.ready": 1}
    seen = changes(block, "o.valid", offers((1, 2, 3, 4, 5, 6), field="page"), prepare=prepare)
    assert seen[0::2] == [block.LATENCY + k * block.ACCESS_INTERVAL for k in range(3)]


def test_candidates_of_one_access_leave_one_a_cycle():
    block = AccessSource(config=UNIT)
    prepare = OPEN | {"window_on": 1, "window": 2, "o.ready": 1}
    seen = changes(
        block, shown(field="page"), [*offers((3,), field="page"), {}, {}, {}], prepare=prepare
    )
    assert seen == [block.LATENCY + k * block.INTERVAL for k in range(4)]


def test_previous_step_is_offered_in_order():
    """Of three sessions: of the memory's four parts one is nobody's."""
    fields = {"sessions": 3}
    records = run_cocotb(
        PreviousSource(config=named("trace").with_(**fields), entries=64),
        bench=PARTS,
        test="previous_against_lists",
        params={"config": "trace", "fields": fields, "entries": 16, "cycles": 12_000},
    ).records
    assert records["offered"] > 200 and records["overwritten"] > 5, records
    assert records["overflows"] > 100 and records["stopped"] > 20, records


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AccessSource(config=named("unit"), accesses=1), r"accesses = 1 .* 2 … 64"),
        (lambda: PreviousSource(config=named("unit"), entries=6), r"entries = 6 .* 8 and up"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
