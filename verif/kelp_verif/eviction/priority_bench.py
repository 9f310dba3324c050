# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Priority pipeline against the golden arithmetic: random pages with idles, constants changed
between batches; worked rows; full rate."""

import random
from collections import deque

import cocotb
from cocotb.triggers import ReadOnly, RisingEdge

from kelp_golden import arithmetic
from kelp_golden.eviction import candidate_class
from kelp_hw.eviction.priority import PriorityUnit
from kelp_hw.eviction.signatures import EvictionLayouts
from kelp_hw.export.packing import Packing
from kelp_spec.config import named
from kelp_spec.scores import RECENCY_BIAS, recency_constants

from ..harness.clocking import start_clock
from ..harness.runner import bench_params, record


class TB:
    def __init__(self, dut):
        self.dut = dut
        self.config = named(bench_params()["config"])
        self.rng = random.Random(cocotb.RANDOM_SEED)
        layouts = EvictionLayouts(self.config)
        self.scanned, self.judged = Packing(layouts.scanned), Packing(layouts.judged)
        self.held = Packing(layouts.sweep_constants)
        self.due = deque()
        self.cycle = self.outputs = 0

    async def start(self):
        await start_clock(self.dut)
        self.dut.i__valid.value = 0
        self.constants(0, None, 48409, 9)
        await RisingEdge(self.dut.clk)
        await RisingEdge(self.dut.clk)
        self.dut.rst.value = 0

    def constants(self, step, newest, m, sh):
        """A policy at random; policy 0 until a seed is used."""
        self.sweep = step, newest, m, sh
        self.kelp = self.outputs > 2 and self.rng.randrange(2)
        self.tables = bool(self.config.select_tables and self.kelp and self.rng.randrange(3))
        tables = {"tables": int(self.tables)} if self.config.select_tables else {}
        self.dut.constants.value = self.held.pack(
            **tables,
            **{
                "kelp": int(self.kelp),
                "step": step,
                "tau_m": m,
                "tau_sh": sh + RECENCY_BIAS,
                "newest.valid": int(newest is not None),
                "newest.page": newest or 0,
            },
        )

    async def send(self, page=0, last_step=0, score=0, eligible=1):
        step, newest, m, sh = self.sweep
        p = arithmetic.priority(score, arithmetic.decay(arithmetic.age(step, last_step), m, sh))
        finished = self.rng.randrange(2)
        kind = candidate_class(
            page,
            last_step,
            step,
            -1 if newest is None else newest,
            self.kelp and finished,
            self.tables,
        )
        value = self.rng.choice([0, score, 65532, 65533, 65534, 65535, self.rng.randrange(1 << 16)])
        if self.kelp:
            p = 65535 - (max(min(value, 65533), score) if self.tables else score)
        expected = {"kind": kind, "priority": p, "page": page, "last_step": last_step}
        latency = PriorityUnit.KELP_LATENCY if self.kelp else PriorityUnit.LATENCY
        self.due.append((self.cycle + latency, eligible, expected))
        self.dut.i__payload.value = self.scanned.pack(
            page=page,
            last_step=last_step,
            score=score,
            eligible=eligible,
            finished=finished,
        )
        self.dut.i__valid.value = 1
        await self.tick()
        self.dut.i__valid.value = 0
        if self.config.select_tables:
            self.dut.value.value = value

    async def tick(self):
        await ReadOnly()
        valid = self.dut.o__valid.value == 1
        assert valid == bool(self.due and self.due[0][0] == self.cycle), f"cycle {self.cycle}"
        if valid:
            _, eligible, expected = self.due.popleft()
            judged = self.judged.unpack(self.dut.o__payload.value)
            assert judged["eligible"] == eligible
            got = {name: judged[f"candidate.{name}"] for name in expected}
            assert got == expected, f"{got}, expected {expected} under {self.sweep}"
            self.outputs += 1
            self.last = expected["priority"]
        await RisingEdge(self.dut.clk)
        self.cycle += 1

    async def drain(self):
        while self.due:
            await self.tick()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def worked_rows(dut):
    tb = TB(dut)
    await tb.start()
    for score, age, expected in ((13828, 50, 2520), (5243, 2000, 52132)):
        tb.constants(age, None, *recency_constants(1000))
        await tb.tick()
        await tb.send(score=score)
        await tb.drain()
        assert tb.last == expected


@cocotb.test(timeout_time=8, timeout_unit="ms")
async def random_sweeps(dut):
    tb = TB(dut)
    await tb.start()
    rng, c = tb.rng, tb.config
    while tb.outputs < bench_params()["pages"]:
        tau = rng.choice([1, 2, 64, 1000, 65536, rng.randint(1, 65536)])
        m, sh = (
            recency_constants(tau)
            if rng.random() < 0.8
            else (rng.randrange(1 << 16), rng.randint(-1, 30))
        )
        step = rng.choice([0, 5, (1 << 24) - 1, rng.getrandbits(24)])
        tb.constants(step, rng.choice([None, rng.randrange(c.pages)]), m, sh)
        await tb.tick()
        idle = rng.choice([0, 0.5])
        for _ in range(100):
            if rng.random() >= idle:
                age = rng.choice([0, 1, rng.randrange(1 << rng.randint(1, 24))])
                await tb.send(
                    rng.randrange(c.pages),
                    (step - age) % (1 << 24),
                    rng.choice([0, 65535, rng.getrandbits(16)]),
                    rng.randrange(2),
                )
            else:
                await tb.tick()
        await tb.drain()


@cocotb.test(timeout_time=4, timeout_unit="ms")
async def full_rate(dut):
    tb = TB(dut)
    await tb.start()
    rng = tb.rng
    tb.constants(70_000, 3, *recency_constants(1000))
    await tb.tick()
    start, pages = tb.cycle, 10_000
    for n in range(pages):
        await tb.send(n % tb.config.pages, rng.randrange(70_001), rng.getrandbits(16))
    await tb.drain()
    record(
        pages_per_cycle=pages / (tb.cycle - start - PriorityUnit.LATENCY), cycles=tb.cycle - start
    )
