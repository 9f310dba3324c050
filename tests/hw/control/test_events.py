# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""EventLog: it keeps sixteen until they are taken, and loses none unseen; how fast it counts and
interrupts."""

import pytest
from counter_runs import rare, run
from simulation import simulate
from timing import check_pace

from kelp_hw.control.events import EventLog
from kelp_spec.config import named
from kelp_spec.metadata import Event
from kelp_verif.formal.prove import mutant

UNIT = named("unit")
EVENT = {"i.0.valid": 1}
OF_CODE = {"i.0.p.code": int(Event.STARVED), "irq_enable": (1 << 32) - 1}


def test_latency_and_interval():
    check_pace(EventLog(config=UNIT, sources=1), "LATENCY", "count", [EVENT] * 3, prepare=OF_CODE)


def test_irq_latency():
    check_pace(EventLog(config=UNIT, sources=1), "IRQ_LATENCY", "irq", [EVENT], prepare=OF_CODE)


def test_it_keeps_sixteen_until_they_are_taken():
    seen = run(EventLog(config=UNIT, sources=3), "events", cycles=9_000, sources=3)
    assert (
        rare(
            seen,
            "read",
            "one of several",
            "all at once",
            "full",
            "lost below sixteen",
            "lost to a full log",
            "irq",
            "clear of a record",
            "clear of one that comes",
            "take of some",
            "take of more than there are",
            "take beside a record",
            "take of all beside a record",
            "take of a full log beside a record",
            "take of an overflow",
            "overflow in the cycle of its take",
            "irq falls with the last record",
            "irq stays with a record",
        )
        == {}
        and seen["reset of an event"]
    )


@pytest.mark.parametrize("at", range(4))
def test_a_source_with_an_event_in_every_cycle_keeps_no_other_out(at):
    """A tenant whose every request is refused hides no event of memory, nor of a memory that
    failed: two of each other source go before it at most, to the log and to CXL.io."""
    dut = EventLog(config=UNIT.with_(cxlio="joined"), sources=4)
    told = []

    async def bench(ctx):
        for k in range(4):
            ctx.set(dut.i[k].p.code, Event.FATAL if k == at else Event.FOREIGN_LD)
            ctx.set(dut.i[k].valid, k != at)
        ctx.set(dut.taken.count, 1)
        for cycle in range(40):
            ctx.set(dut.i[at].valid, cycle == 10)
            ctx.set(dut.take, cycle > 2)
            if ctx.get(dut.o_told.valid):
                told.append((cycle, ctx.get(dut.o_told.p.code)))
            await ctx.tick()

    simulate(dut, bench)
    (seen,) = (cycle for cycle, code in told if code == Event.FATAL.value)
    assert 11 <= seen <= 11 + 2 * 3 and len(told) == 39


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # all leave, whatever was read
        ("Mux(self.taken.count < self.count, self.taken.count, self.count)", "self.count"),
        # what comes in the cycle of a take goes
        ("records = goes & room", "records = goes & room & ~self.take"),
        # records are written where the ring began
        pytest.param("addr.eq(base + self.count)", "addr.eq(self.count)", marks=pytest.mark.slow),
        # more leave than are there
        pytest.param(
            "Mux(self.taken.count < self.count, self.taken.count, self.count)",
            "self.taken.count",
            marks=pytest.mark.slow,
        ),
        # no interrupt says that a record is left
        pytest.param("(left == 0) & ~records", "(left == 0)", marks=pytest.mark.slow),
        # an overflow that was not read falls
        pytest.param("self.take & self.taken.overflow", "self.take", marks=pytest.mark.slow),
    ],
)
@pytest.mark.sampled
def test_the_bench_catches_a_planted_bug(old, new):
    with pytest.raises(AssertionError, match="failed with seed"):
        run(mutant(EventLog, old, new)(config=UNIT, sources=3), "events", cycles=9_000, sources=3)


def test_a_log_without_sources_is_refused():
    with pytest.raises(ValueError, match="sources = 0 is refused; legal: 1 and up"):
        EventLog(config=UNIT, sources=0)
    with pytest.raises(TypeError, match="config must be a kelp_spec.Config, not 'unit'"):
        EventLog(config="unit", sources=1)
