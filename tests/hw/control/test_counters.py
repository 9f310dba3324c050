# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Totals and queue counters: they lose nothing; how fast they count and are read."""

import pytest
from counter_runs import rare, run
from timing import changes, check_pace, varied

from kelp_hw.control.counters import QueueCounters, TotalCounters
from kelp_spec.config import named
from kelp_verif.formal.prove import mutant

UNIT = named("unit")
#: A number of rows that is no power of two.
ODD = {"queues": 3}
ROWS = [("top.counts", "memory"), ("top.useful", "memory")]
BUMP = {"i.valid": 1, "i.p.bump": 1}


def test_queue_counters_latency_and_interval():
    check_pace(
        QueueCounters(config=UNIT),
        "LATENCY",
        "read_data.0",
        varied("read_squeue", (1, 0, 1)),
        before=[BUMP | {"i.p.squeue": 1}],
    )


def test_queue_counters_count_latency():
    check_pace(QueueCounters(config=UNIT), "COUNT_LATENCY", "read_data.0", [BUMP])


def test_totals_follow_a_pulse_as_the_pointer_stands():
    seen = sorted(
        changes(TotalCounters(), "read_data", [{"pulses": 1}], settle=2 + phase, within=80)[0]
        for phase in range(TotalCounters.TURN)
    )
    first = TotalCounters.LATENCY
    assert seen == list(range(first, first + TotalCounters.TURN))


def test_totals_are_read_behind_the_pointer():
    seen = [
        changes(TotalCounters(), output, [{}], before=[{"pulses": 2}], within=TotalCounters.TURN)[0]
        for output in (lambda dut: dut.pointer == 1, "read_data")
    ]
    assert seen[1] - seen[0] == TotalCounters.READ_LATENCY


def test_totals_count_each_pulse_at_their_interval():
    cycles = 8  # fewer than until the pointer passes
    counted = cycles // TotalCounters.INTERVAL
    assert changes(
        TotalCounters(),
        lambda dut: dut.read_data == counted,
        [{"pulses": 1}] * cycles,
        within=2 * TotalCounters.TURN,
    )


def test_totals_lose_no_pulse():
    seen = run(TotalCounters(), "totals", public=[("top", "memory")], rounds=12)
    assert (
        rare(seen, "read under traffic", "wrapped") == {}
        and seen["rest after a while"]
        and seen["reset of gathered pulses"]
    )


def test_queue_counters_count_wipe_and_wrap():
    config = UNIT.with_(**ODD)
    seen = run(QueueCounters(config=config), "queues", public=ROWS, rounds=40, fields=ODD)
    assert (
        rare(seen, "read", "wiped after traffic", "wipe waits", "both at once", "wrapped", "quiet")
        == {}
        and seen["reset of events"]
    )


def test_queue_counters_may_be_few():
    assert QueueCounters(config=UNIT.with_(wide_counters=False)).names == (
        "hits",
        "misses",
        "evictions",
        "prefetch_useful",
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.wipe_ready.eq(self.read_grant", "self.wipe_ready.eq(~counts.reads"),
        ("follows.eq(v2 & ", "follows.eq("),
        ("follows_next.eq(v2 & (s0.squeue == s2.squeue))", "follows_next.eq(0)"),
        ("Mux(s2.zero, 0, ", "Mux(0, 0, "),
        ("~(self.read | self.wipe)", "~self.read"),
        ("~(self.read | self.wipe)", "~self.wipe"),
        ("with m.If(self.read_grant | ", "with m.If("),
        pytest.param(
            "Mux(sweep == c.squeues - 1, 0, sweep + 1)", "sweep + 1", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.sampled
def test_the_bench_catches_a_planted_bug(old, new):
    block = mutant(QueueCounters, old, new)(config=UNIT.with_(**ODD))
    with pytest.raises(AssertionError, match="failed with seed"):
        run(block, "queues", public=ROWS, rounds=40, fields=ODD)
