# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Telemetry: from what M3 and the frame stage decided to counters and events."""

import pytest
from simulation import simulate
from timing import check_pace

from kelp_hw.control.telemetry import Telemetry
from kelp_hw.layouts import DropReason
from kelp_spec.config import named
from kelp_spec.metadata import Event, Op, Outcome, PrefetchSource
from kelp_spec.registers import COUNTERS, EVENT_ARGUMENT_BITS, QUEUE_COUNTERS
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.runner import made, run_cocotb

ACCESS = {
    "i_result.valid": 1,
    "i_result.p.first": 1,
    "i_result.p.op.kind": int(Op.READ),
    "i_result.p.outcome": int(Outcome.HIT),
}


@pytest.mark.parametrize(
    ("attribute", "output", "stimuli"),
    [
        ("LATENCY", "o_event.valid", [ACCESS | {"i_result.p.corrected": 1}]),
        ("LATENCY", "o_counted.pulses", [ACCESS, {}, ACCESS]),
        ("REPORT_LATENCY", "o_counted.useful.valid", [{"i_usage.valid": 1, "i_usage.p.useful": 1}]),
    ],
    ids=["event", "pulses", "useful"],
)
def test_latency_and_interval(attribute, output, stimuli):
    check_pace(Telemetry(config=named("unit")), attribute, output, stimuli)


@pytest.mark.parametrize("slots", [4, 64])
def test_a_session_that_closes_over_all_slots_loses_no_drop(slots):
    """Its candidates are cancelled one a cycle while MemSpecRds outside are dropped one a cycle."""
    dut = Telemetry(config=named("unit").with_(prefetch_slots=slots))
    source = PrefetchSource.SPEC_READ
    (at,) = (i for i, (name, _) in enumerate(COUNTERS) if name == "prefetch_dropped_spec_read")
    counted = []

    async def bench(ctx):
        for cycle in range(2 * slots + 9):
            for why in (DropReason.CANCELLED, DropReason.OUTSIDE):
                ctx.set(dut.i_prefetch.dropped[why], (cycle < slots) << source - 1)
            await ctx.tick()
            counted.append(ctx.get(dut.o_counted.pulses) >> at & 1)

    simulate(dut, bench)
    assert sum(counted) == 2 * slots and not counted[-1]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (named("llama70b"), (1 << 20) - 1),  # its last frame
        (named("llama70b").with_(frames=(1 << 22,) * 4), (1 << EVENT_ARGUMENT_BITS) - 1),
    ],
    ids=["llama70b", "wider than a record"],
)
def test_an_event_names_the_last_frame(config, told):
    dut = Telemetry(config=config)

    async def bench(ctx):
        ctx.set(dut.i_result.p.op.kind, Op.FILL)
        ctx.set(dut.i_result.p.op.failed, 1)
        ctx.set(dut.i_result.p.op.frame, config.total_frames - 1)
        ctx.set(dut.i_result.valid, 1)
        for _ in range(Telemetry.LATENCY):
            await ctx.tick()
        assert ctx.get(dut.o_event.valid) and ctx.get(dut.o_event.p.code) == Event.FETCH_FAILED
        assert ctx.get(dut.o_event.p.argument) == told

    simulate(dut, bench)


def run(block=Telemetry, base="unit", cycles=8_000, **change):
    return run_cocotb(
        made(block, config=named(base).with_(**change)),
        bench="kelp_verif.control.telemetry_bench",
        params={"base": base, "config": change, "cycles": cycles},
        timeout_s=120,
    ).records


def test_every_cause_is_counted_and_logged_once():
    records = run()
    assert {name: 0 for name, _ in COUNTERS if records["totals"].get(name, 0) < 10} == {}
    wanted = [name for name, _ in QUEUE_COUNTERS if name != "prefetch_useful"]
    wanted += [
        "useful",
        "late",
        "idle",
        "READ HIT",
        "READ PARKED",
        "READ ZERO",
        "READ POISON",
        "WRITE ALLOCATED",
        "WRITE MISSED",
        "RELEASE VOID",
        "CORRECTED",
        "UNCORRECTED",
        "FETCH_FAILED",
        "WRITE_BACK_FAILED",
        "STARVED",
        "POISON_RECEIVED",
        "PIN_REFUSED",
        "OPEN_REFUSED",
        "OUT_OF_MAP",
        "FOREIGN_LD",
        "CLOSED_SESSION",
        "UNKNOWN_OPCODE",
    ]
    assert {
        what: records["seen"].get(what, 0) for what in wanted if records["seen"].get(what, 0) < 5
    } == {}
    assert records["seen"]["reset of a cause"]


def test_four_counters_a_queue_where_no_more_are_kept():
    seen = run(cycles=1_500, wide_counters=False)["seen"]
    assert all(seen[name] for name in ("hits", "misses", "evictions")) and not seen.keys() & {
        name for name, _ in QUEUE_COUNTERS[4:]
    }


def test_an_eviction_that_the_hosts_lines_have_ended_is_no_event():
    """Of those that failed, with a host that caches, those alone that were to be written are."""
    seen = run(base="unit_coherent", cycles=3_000)["seen"]
    assert seen["WRITE_BACK_FAILED"] > 5 and seen["ended by the host"] > 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("since < EVICTED_SOON", "since <= EVICTED_SOON"),
        ("late.eq(served", "late.eq(missed"),  # met by a request that is no access
        ("at_ingress.eq(self.spec_dropped)", "at_ingress.eq(0)"),
    ],
)
@pytest.mark.sampled
def test_the_bench_catches_a_planted_bug(old, new):
    with pytest.raises(AssertionError, match="failed with seed"):
        run(mutant(Telemetry, old, new), cycles=2_000)


def test_bad_parameters_are_refused():
    with pytest.raises(TypeError, match="config must be a kelp_spec.Config, not 640"):
        Telemetry(config=640)
