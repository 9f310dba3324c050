# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Arbiter: how fast a request passes, and which background op goes when several could; the
tracker's bench judges whom it takes."""

import pytest
from amaranth.hdl import Mux
from amaranth.sim import Simulator
from timing import check_interval, offers

from kelp_hw.tracker.arbiter import Arbiter
from kelp_hw.tracker.signatures import BACKGROUND
from kelp_spec.config import named
from kelp_spec.metadata import Op

UNIT, UNIT_SELECT = named("unit"), named("unit_select")
HINT = BACKGROUND.index("hint")


def admitted(dut):
    """The request that the arbiter takes and sends on in one cycle."""
    return Mux(dut.i_request.ready & dut.o.valid, dut.o.op.request.page, 0)


def test_latency_and_interval():
    check_interval(
        lambda: Arbiter(config=UNIT),
        "LATENCY",
        admitted,
        offers(stream="i_request", field="page"),
        prepare={"credits": 63, "credits_ahead": 63},
    )


def taken(cycles, *, requests, evict, streams=("hint",)):
    """How often ops of `streams` and evictions go in so many cycles, and the longest that an
    eviction waits; they stand in each cycle, and hot requests where they are asked for. Of control
    ops, one stands, and M0 holds for as long as it does behind one that changes a session."""
    dut = Arbiter(config=UNIT)
    counts, longest = dict.fromkeys((*streams, "evict"), 0), 0

    async def bench(ctx):
        nonlocal longest
        for credits in (dut.credits, dut.credits_ahead):
            ctx.set(credits.as_value(), (1 << len(credits.as_value())) - 1)
        ctx.set(dut.i_request.valid, requests)
        ctx.set(dut.hot, requests)
        kinds = {"control": Op.STEP, "hint": Op.MASS, "evict": evict}
        for name in counts:
            stream, number = getattr(dut.ops, name), BACKGROUND.index(name)
            ctx.set(stream.valid, 1)
            ctx.set(stream.p.kind, kinds[name])
            if name != "control":
                ctx.set(dut.ops.behind[number].valid, 1)
                ctx.set(dut.ops.behind[number].kind, kinds[name])
        waited = held = 0
        for _ in range(cycles):
            ctx.set(dut.hold, held > 0)
            held = max(held - 1, 0)
            for name in streams:
                goes = ctx.get(getattr(dut.ops, name).ready)
                counts[name] += goes
                if name == "control" and goes:
                    held = 5
            waited += 1
            if ctx.get(dut.ops.evict.ready):
                counts["evict"] += 1
                longest, waited = max(longest, waited), 0
            await ctx.tick()
        longest = max(longest, waited)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return counts, longest


@pytest.mark.parametrize("requests", [0, 1])
@pytest.mark.parametrize("evict", [Op.SCAN, Op.SCRUB])
def test_hints_without_pause_let_evictions_by(requests, evict):
    """One hint at most goes before each eviction, and the requests that M0 lets by; an eviction
    that uses the frame stage takes cycles from requests, the others go beside hot ones."""
    counts, longest = taken(400, requests=requests, evict=evict)
    assert abs(counts["hint"] - counts["evict"]) <= 1
    assert longest <= Arbiter.PATIENCE + Arbiter.SURPLUS + 3
    if not requests or evict == Op.SCAN:
        assert longest <= 3 and sum(counts.values()) >= 398


@pytest.mark.parametrize("requests", [0, 1])
@pytest.mark.parametrize("streams", [("control",), ("control", "hint")])
def test_control_without_pause_lets_hints_and_evictions_by(requests, streams):
    """A tenant whose accesses advance its step has such an op due whenever M0 has let one in
    (`auto_step` 1): one of them at most goes before each eviction, and before each hint."""
    counts, longest = taken(2000, requests=requests, evict=Op.CLAIM, streams=streams)
    turn = 2 * (Arbiter.PATIENCE if requests else 0) + 2 + 5  # a control op, M0 holds, another op
    assert longest <= len(streams) * turn + Arbiter.SURPLUS
    assert abs(counts["control"] - len(streams) * counts["evict"]) <= 2 and counts["evict"] > 40
    if "hint" in streams:
        assert abs(counts["hint"] - counts["evict"]) <= 1


def test_steps_without_pause_leave_requests_seven_cycles_of_thirteen():
    """Seven that a request may win, that of the step, and five in which M0 holds behind it."""
    dut, cycles, went = Arbiter(config=UNIT), 1300, 0

    async def bench(ctx):
        nonlocal went
        for credits in (dut.credits, dut.credits_ahead):
            ctx.set(credits.as_value(), (1 << len(credits.as_value())) - 1)
        for valid in (dut.i_request.valid, dut.ops.control.valid):
            ctx.set(valid, 1)
        ctx.set(dut.ops.control.p.kind, Op.STEP)
        held = 0
        for _ in range(cycles):
            ctx.set(dut.hold, held > 0)
            went += ctx.get(dut.i_request.ready)
            held = 5 if ctx.get(dut.ops.control.ready) else max(held - 1, 0)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    print(f"requests had {went} of {cycles} cycles")
    assert abs(went - 7 * cycles // 13) <= Arbiter.SURPLUS


def looked(session, gathered, *, quiet=0, cycles=176):
    """LOOKs of a session that go in so many cycles, behind `quiet` ones without requests, while hot
    requests of session 1, gathered or not, and LOOKs stand in each; requests that go."""
    dut, looks, requests = Arbiter(config=UNIT_SELECT), 0, 0

    async def bench(ctx):
        nonlocal looks, requests
        for credits in (dut.credits, dut.credits_ahead):
            ctx.set(credits.as_value(), (1 << len(credits.as_value())) - 1)
        ctx.set(dut.i_request.p.session, 1)
        ctx.set(dut.i_request.p.gathered, gathered)
        ctx.set(dut.hot, 1)
        ctx.set(dut.ops.hint.valid, 1)
        ctx.set(dut.ops.hint.p.kind, Op.LOOK)
        ctx.set(dut.ops.hint.p.session, session)
        ctx.set(dut.ops.behind[HINT].valid, 1)
        ctx.set(dut.ops.behind[HINT].kind, Op.LOOK)
        await ctx.tick().repeat(quiet + 1)
        ctx.set(dut.i_request.valid, 1)
        for _ in range(cycles):
            looks += ctx.get(dut.ops.hint.ready)
            requests += ctx.get(dut.i_request.ready)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert looks + requests == cycles
    return looks


@pytest.mark.parametrize("quiet", [0, 50])
def test_looks_take_turns_with_gathered_requests_of_their_own_session(quiet):
    """With others they have a cycle in eleven; what they had while no request stood does not count
    against them."""
    assert abs(looked(1, True, quiet=quiet) - 88) <= 4
    assert abs(looked(1, False, quiet=quiet) - 16) <= 1
    assert abs(looked(0, True, quiet=quiet) - 16) <= 1


def test_what_is_refused_needs_no_credit_of_a_miss():
    """After a fatal error a cold request passes a miss buffer that takes no more; a prefetch does
    not, nor does a request without the other credits."""
    dut, found = Arbiter(config=UNIT), []

    async def bench(ctx):
        async def passes(refuses, **lacking):
            for credits in (dut.credits, dut.credits_ahead):
                ctx.set(credits.as_value(), (1 << len(credits.as_value())) - 1)
                for name in lacking:
                    ctx.set(getattr(credits, name), 0)
            ctx.set(dut.refuses, refuses)
            await ctx.tick()
            found.append((ctx.get(dut.i_request.ready), ctx.get(dut.ops.prefetch.ready)))

        ctx.set(dut.ops.prefetch.valid, 1)
        ctx.set(dut.ops.prefetch.p.kind, Op.PREFETCH)
        for request in (1, 0):
            ctx.set(dut.i_request.valid, request)
            await passes(0, miss=0)
            await passes(0, miss_id=0)
            await passes(1, miss=0, miss_id=0)
            await passes(1, data=0)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert [request for request, _ in found] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert not any(prefetch for _, prefetch in (*found[:3], *found[4:7]))
