# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Cold-tier scheduler between random fetches and write-backs and a flash that fails, falls silent
and answers out of order."""

import random

import cocotb

from kelp_hw.miss.cold_scheduler import ColdScheduler
from kelp_spec.config import named
from kelp_spec.metadata import ColdOp

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record
from .cold_scheduler_tb import TB, turn
from .flash import LINE_BYTES, SECTOR_BYTES


async def start(dut, *, timeout=1 << 31, retries=0, **flash) -> TB:
    tb = TB(dut, named(bench_params()["config"]), **flash)
    await start_clock(dut)
    await tb.reset(timeout=timeout, retries=retries)
    return tb


async def mixed_traffic(tb, cycles, ready):
    started, write = tb.cycles, None
    while tb.cycles - started < cycles:
        rng = tb.rng
        busy = rng.random() < 0.15
        fetch = (
            tb.new_fetch(rng.random() < 0.5)
            if busy and tb.free_misses and len(tb.free_frames) > 8
            else None
        )
        raise_ = None
        if fetch is None and rng.random() < 0.2:
            raise_ = rng.choice(sorted(tb.unread or tb.fetching) or range(tb.config.misses))
        write = (
            tb.new_write()
            if tb.offer is None
            and len(tb.writing) < tb.config.write_backs
            and rng.random() < 0.05
            and len(tb.free_frames) > 8
            else None
        )
        await tb.cycle(fetch=fetch, raise_=raise_, write=write, ready=ready)


@cocotb.test(timeout_time=5, timeout_unit="ms")
async def every_request_is_answered_once(dut):
    """Failures, silence, late answers and aborts that are never answered, with back-pressure
    everywhere."""
    rng = random.Random(cocotb.RANDOM_SEED)
    rate = {"fail": 0.1, "silent": 0.05, "deaf": 0.2}
    tb = await start(
        dut,
        timeout=700,
        retries=2,
        latency=400,
        jitter=0.9,
        fails=lambda _: rng.random() < rate["fail"],
        silent=lambda _: rng.random() < rate["silent"],
        deaf=lambda _: rng.random() < rate["deaf"],
    )
    for pressure, ready in ((0.0, 1.0), (0.5, 0.5), (0.97, 0.2), (0.1, 1.0)):
        tb.port.pressure = pressure
        await mixed_traffic(tb, bench_params()["cycles"] // 4, ready)
    await tb.drain(40_000)
    failed = [request for request, bad in tb.answers if bad]
    assert all(request["tries"] == 3 for request in failed), "given up too early or too late"
    assert all(request["tries"] <= 3 for request, _ in tb.answers)
    assert tb.aborts == tb.timeouts > 0 and tb.retries > 0 and failed
    # Every command but the first of a request is a retry.
    assert tb.retries == sum(request["tries"] - 1 for request, _ in tb.answers)
    record(
        cycles=tb.cycles,
        answers=len(tb.answers),
        failed=len(failed),
        aborts=tb.aborts,
        retries=tb.retries,
    )


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def demand_goes_before_prefetch_before_write_back(dut):
    tb = await start(dut, latency=100)
    tb.port.pressure = 1.0
    while len(tb.writing) < tb.config.write_backs:
        await tb.cycle(write=tb.new_write())
    for _ in range(20):
        await tb.cycle()
    prefetches = [tb.new_fetch(False) for _ in range(tb.config.misses // 2)]
    for request in prefetches:
        await tb.cycle(fetch=request)
    raised = sorted(tb.unread)[-3:]
    for miss in raised:
        await tb.cycle(raise_=miss)
        await tb.cycle(raise_=miss)
    while tb.free_misses:
        await tb.cycle(fetch=tb.new_fetch(True))
    tb.port.pressure = 0.0
    await tb.drain(20_000)
    # The first two had left for the output long before the others came.
    kinds = [
        "write"
        if c.op == ColdOp.WRITE
        else "demand"
        if c.index in raised or c.index not in {p["miss"] for p in prefetches}
        else "prefetch"
        for c in tb.commands
    ]
    assert kinds[:2] == ["write", "write"]
    assert kinds[2:] == sorted(kinds[2:], key=["demand", "prefetch", "write"].index), " ".join(
        kinds
    )
    assert {c.index for c in tb.commands[2:5]} == set(raised)
    assert len(kinds) == tb.config.misses + tb.config.write_backs


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def as_many_fetches_in_flight_as_misses(dut):
    tb = await start(dut, latency=2000)
    while tb.free_misses:
        await tb.cycle(fetch=tb.new_fetch(True))
    for _ in range(tb.config.write_backs):
        await tb.cycle(write=tb.new_write())
    for _ in range(8 * tb.config.misses):
        await tb.cycle()
    assert len(tb.flash.live) == tb.config.misses + tb.config.write_backs
    await tb.drain(20_000)
    assert not any(bad for _, bad in tb.answers)


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def a_flash_that_never_answers(dut):
    """Not even an ABORT: every request fails after its tries, within a stated time."""
    tb = await start(dut, timeout=300, retries=1, silent=lambda _: True, deaf=lambda _: True)
    for _ in range(4):
        await tb.cycle(fetch=tb.new_fetch(True))
        await tb.cycle(write=tb.new_write())
        while tb.offer:
            await tb.cycle()
    # Each try: its own timeout and that of its ABORT, each noticed a turn of the table later at
    # most, with a look at every other request in between.
    await tb.drain(2 * 2 * (300 + turn(tb) + 8 * ColdScheduler.TURN))
    assert len(tb.answers) == 8 and all(
        bad and request["tries"] == 2 for request, bad in tb.answers
    )


@cocotb.test(timeout_time=1, timeout_unit="ms")
async def an_abort_counts_from_its_acceptance(dut):
    """The port stalls for longer than the timeout just as an ABORT is offered; the tier stops its
    DMA soon after it has the ABORT, but never says so."""
    tb = await start(
        dut, timeout=200, retries=0, abort_latency=150, silent=lambda _: True, deaf=lambda _: True
    )
    await tb.cycle(fetch=tb.new_fetch(True))
    while not tb.commands:
        await tb.cycle()
    tb.port.pressure = 1.0
    for _ in range(1000):
        await tb.cycle()
    tb.port.pressure = 0.0
    while len(tb.commands) < 2:
        await tb.cycle()
    accepted = tb.cycles
    while not tb.answers:
        await tb.cycle()
    assert 200 <= tb.cycles - accepted <= 200 + turn(tb)


@cocotb.test(timeout_time=2, timeout_unit="ms")
async def storm(dut):
    """One page after another at the tier's own bandwidth and latency; what part of the bandwidth is
    used after the first latency."""
    tb = await start(dut, latency=bench_params().get("latency", 25_000))
    page = max(tb.config.frame_lines) * LINE_BYTES + SECTOR_BYTES
    tb.flash.memory = None
    raw16 = [f for f in tb.free_frames if f < tb.config.frames[0]]
    cycles = tb.flash.latency + bench_params()["cycles"]
    tb.got_fetched = lambda got: (
        tb.free_misses.append(got["miss"]),
        raw16.append(tb.fetching.pop(got["miss"])["frame"]),
    )
    moved = 0
    for n in range(cycles):
        if n == tb.flash.latency + 1000:
            moved = tb.flash.bytes_moved
        fetch = None
        if tb.free_misses:
            tb.free_frames = [raw16.pop()]
            fetch = tb.request() | {"miss": tb.free_misses.pop(), "demand": 1}
            tb.fetching[fetch["miss"]] = fetch
        await tb.cycle(fetch=fetch)
    fraction = (
        (tb.flash.bytes_moved - moved)
        / (bench_params()["cycles"] - 1000)
        / tb.flash.bytes_per_cycle
    )
    record(fraction=fraction, page_bytes=page, cycles=tb.cycles)
