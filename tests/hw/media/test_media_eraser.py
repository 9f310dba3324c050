# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every line of memory is zero, once; the tier is told once; errors are told; what the endpoint
says passes before and after."""

import random

import pytest
from amaranth.hdl import Const, Value
from flips import fields
from simulation import simulate
from timing import changes

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.media.media_eraser import MediaEraser
from kelp_spec.config import named
from kelp_spec.metadata import ColdOp, ColdStatus

UNIT = named("unit_cxl")
EVEN = UNIT.with_(frames=(4, 4, 4, 20))  #: as many lines as a counter of 7 bits has values
UNEVEN = UNIT.with_(frames=(32, 4, 4, 5))  #: of four lines a percent, the last of fewer
OWN = UNIT.misses + UNIT.write_backs  #: the id of an ERASE
LIMIT = 4000
SET = {"size", "burst"}  #: of an address of its own


def eraser(config=UNIT):
    return MediaEraser(config=config, axi=axi_signature(config))


class Bench:
    """Memory and tier. `bad`: the line that memory answers with an error; `status`: the tier's."""

    def __init__(self, seed, *, ready=0.6, bad=None, status=ColdStatus.OK, config=UNIT):
        self.dut, self.rng, self.seed = eraser(config), random.Random(seed), seed
        self.config = config
        self.ready, self.bad, self.status = ready, bad, status
        self.addresses, self.lines, self.answers = [], [], []
        self.commands, self.completions, self.passed = [], [], []
        self.percents = []

    async def cycle(self, ctx):
        dut, rng, axi = self.dut, self.rng, self.dut.outer_axi
        for port in (axi.aw, axi.w, dut.outer_command, dut.inner_completion):
            ctx.set(port.ready, rng.random() < self.ready)
        # A B of any line whose W and AW have come.
        come = min(len(self.addresses), len(self.lines))
        gives = len(self.answers) < come and rng.random() < self.ready
        ctx.set(axi.b.valid, gives)
        if gives:
            at = self.addresses[len(self.answers)]
            ctx.set(axi.b.p.resp, rng.choice((2, 3)) * (at == self.bad))
        waits = bool(self.completions) and rng.random() < self.ready
        if waits or ctx.get(dut.outer_completion.valid):
            ctx.set(dut.outer_completion.valid, 1)
            index, status = self.completions[0]
            ctx.set(dut.outer_completion.p.id.index, index)
            ctx.set(dut.outer_completion.p.status, status)
        await ctx.delay(1e-9)
        self.alone(ctx)
        if ctx.get(axi.aw.valid) and ctx.get(axi.aw.ready):
            asked = fields(ctx, axi.aw.p)
            address = asked.pop("addr")
            assert not address % 64 and {name for name, value in asked.items() if value} == SET
            assert asked["size"] == 6 and asked["burst"] == 1
            self.addresses.append(address // 64)
        if ctx.get(axi.w.valid) and ctx.get(axi.w.ready):
            full = ctx.get(axi.w.p.strb) == (1 << 64) - 1 and ctx.get(axi.w.p.last)
            self.lines.append(ctx.get(axi.w.p.data) if full else None)
        if gives:
            assert ctx.get(axi.b.ready)
            self.answers.append(at)
        if ctx.get(dut.outer_command.valid) and ctx.get(dut.outer_command.ready):
            p = dut.outer_command.p
            wanted = Const({"op": ColdOp.ERASE, "id": {"index": OWN}}, p.shape())
            assert ctx.get(p.as_value()) == Value.cast(wanted).value
            self.commands.append((ctx.get(p.op), ctx.get(p.id.index), ctx.get(p.lba)))
            # The last is nobody's.
            self.completions += [(3, ColdStatus.OK), (OWN, self.status), (OWN, ColdStatus.FAILED)]
        if ctx.get(dut.outer_completion.valid) and ctx.get(dut.outer_completion.ready):
            index, _ = self.completions.pop(0)
            through = ctx.get(dut.inner_completion.valid) and ctx.get(dut.inner_completion.ready)
            assert through == (index != OWN)
            await ctx.tick()
            ctx.set(dut.outer_completion.valid, 0)
            return
        await ctx.tick()

    def alone(self, ctx):
        """The endpoint hears nothing while it is on."""
        if ctx.get(self.dut.go):
            axi, command = self.dut.inner_axi, self.dut.inner_command
            for port in (axi.aw.ready, axi.w.ready, axi.b.valid, command.ready):
                assert not ctx.get(port), f"{port.name} is on"

    def shown(self):
        """Percent: of lines that are confirmed, by whole steps."""
        lines, confirmed = self.config.dram_lines, len(self.answers)
        return 99 if confirmed == lines else confirmed // -(-lines // 98)

    async def erase(self, ctx):
        """A whole one: whether it failed."""
        dut = self.dut
        for each in (self.addresses, self.lines, self.answers, self.commands, self.percents):
            each.clear()
        ctx.set(dut.go, 1)
        for _ in range(LIMIT):
            await self.cycle(ctx)
            self.percents.append(ctx.get(dut.progress))
            assert self.percents[-1] == self.shown()
            if ctx.get(dut.done):
                break
        else:
            raise AssertionError(f"seed {self.seed}: never done")
        failed = ctx.get(dut.failed)
        await self.cycle(ctx)
        assert ctx.get(dut.done) and ctx.get(dut.failed) == failed
        ctx.set(dut.go, 0)
        await self.cycle(ctx)
        assert not ctx.get(dut.progress) and not ctx.get(dut.done)
        return failed


@pytest.mark.parametrize(
    ("config", "bad", "status", "failed"),
    [
        (EVEN, None, ColdStatus.OK, 0),
        (UNIT, 0, ColdStatus.OK, 1),
        (UNIT, UNIT.dram_lines - 1, ColdStatus.OK, 1),
        (UNEVEN, None, ColdStatus.FAILED, 1),
    ],
)
def test_every_line_is_zero_and_the_tier_forgets(config, bad, status, failed):
    bench = Bench(1, bad=bad, status=status, config=config)
    assert EVEN.dram_lines == 128 and UNEVEN.dram_lines == 307

    async def run(ctx):
        # Which nobody offers.
        for port in (bench.dut.inner_command, bench.dut.inner_axi.aw, bench.dut.inner_axi.w):
            ctx.set(port.payload.as_value(), -1)
        for again in range(2):
            assert await bench.erase(ctx) == (failed and not again)
            assert bench.addresses == bench.answers == list(range(config.dram_lines))
            assert bench.lines == [0] * config.dram_lines
            assert bench.commands == [(ColdOp.ERASE, OWN, 0)]
            assert bench.percents[-1] == 99 and len(set(bench.percents)) > 50
            bench.bad, bench.status = None, ColdStatus.OK
            # What is left of the tier's answers comes before the next.
            while bench.completions:
                await bench.cycle(ctx)

    simulate(bench.dut, run)


def test_what_the_tier_says_before_it_is_asked_is_ignored():
    dut = eraser()

    async def erased(ctx, told):
        for go in (0, 1):
            ctx.set(dut.go, go)
            ctx.set(told.valid, 1)
            ctx.set(told.p.id.index, OWN)
            ctx.set(told.p.status, ColdStatus.FAILED)
            for _ in range(3):
                assert ctx.get(told.ready) and not ctx.get(dut.inner_completion.valid)
                await ctx.tick()
        ctx.set(told.valid, 0)
        assert ctx.get(dut.outer_command.valid) and not ctx.get(dut.failed)
        ready = (dut.outer_command.ready, dut.outer_axi.aw.ready, dut.outer_axi.w.ready)
        for port in ready:
            ctx.set(port, 1)
        await ctx.tick()
        ctx.set(dut.outer_axi.b.valid, 1)
        for _ in range(UNIT.dram_lines):
            await ctx.tick()
        ctx.set(dut.outer_axi.b.valid, 0)
        assert ctx.get(dut.progress) == 99 and not ctx.get(dut.done)
        ctx.set(told.valid, 1)
        ctx.set(told.p.status, ColdStatus.OK)
        await ctx.tick()
        assert ctx.get(dut.done) and not ctx.get(dut.failed)
        for port in ready:
            ctx.set(port, 0)

    async def run(ctx):
        for _ in range(2):
            await erased(ctx, dut.outer_completion)

    simulate(dut, run)


@pytest.mark.parametrize("first", ["both", "w", "aw"])
def test_memory_may_take_address_and_data_in_any_order(first):
    """Both in one cycle, as the boards' memories do, or all that there is of one before the other:
    neither waits for the other to be taken."""
    dut, lines = eraser(), UNIT.dram_lines
    taken = {"aw": 0, "w": 0}

    async def run(ctx):
        axi, confirmed = dut.outer_axi, 0
        ctx.set(dut.go, 1)
        for _ in range(3 * lines):
            answers = confirmed < min(taken.values())
            ctx.set(axi.b.valid, answers)
            confirmed += answers
            await ctx.delay(1e-9)
            offers = {name: ctx.get(getattr(axi, name).valid) for name in taken}
            for name in taken:
                later = first not in (name, "both") and taken[first] < lines
                ready = all(offers.values()) if first == "both" else offers[name] and not later
                ctx.set(getattr(axi, name).ready, ready)
                taken[name] += ready
            await ctx.tick()
        assert taken == {"aw": lines, "w": lines} and confirmed == lines

    simulate(dut, run)


def test_it_waits_for_the_tier_and_for_memory():
    for held in ("tier", "memory"):
        bench = Bench(2, ready=1)

        async def run(ctx, held=held, bench=bench):
            ctx.set(bench.dut.go, 1)
            for _ in range(UNIT.dram_lines + 200):
                await bench.cycle(ctx)
                if held == "tier":
                    bench.completions = [c for c in bench.completions if c[0] != OWN]
                else:
                    bench.ready = float(len(bench.answers) < UNIT.dram_lines // 2)
                assert not ctx.get(bench.dut.done)
            last = UNIT.dram_lines if held == "tier" else UNIT.dram_lines // 2
            assert len(bench.answers) == last
            assert (ctx.get(bench.dut.progress) == 99) == (held == "tier")

        simulate(bench.dut, run)


@pytest.mark.parametrize("frames", [UNIT.frames, (10, 4, 4, 4)], ids=["160", "128"])
def test_a_line_a_cycle(frames):
    """Of as many lines as a power of two, too."""
    config = UNIT.with_(frames=frames)
    bench = Bench(3, ready=1, config=config)

    async def run(ctx):
        ctx.set(bench.dut.go, 1)
        for _ in range(config.dram_lines + 4):
            await bench.cycle(ctx)
        assert len(bench.answers) == config.dram_lines

    simulate(bench.dut, run)


def test_what_the_endpoint_says_passes_in_the_cycle():
    """Each bit of it, and what memory and the tier say; of the tier's ids all but ERASE's."""
    dut, rng = eraser(), random.Random(4)
    ways = [(getattr(dut.inner_axi, n), getattr(dut.outer_axi, n)) for n in ("aw", "w", "ar")]
    ways += [(getattr(dut.outer_axi, n), getattr(dut.inner_axi, n)) for n in ("r", "b")]
    ways += [(dut.inner_command, dut.outer_command), (dut.outer_completion, dut.inner_completion)]
    assert (MediaEraser.LATENCY, MediaEraser.INTERVAL) == (0, 1)

    async def run(ctx):
        for _ in range(200):
            for given, seen in ways:
                ctx.set(given.payload.as_value(), rng.getrandbits(len(given.payload.as_value())))
                ctx.set(given.valid, rng.getrandbits(1))
                ctx.set(seen.ready, rng.getrandbits(1))
            if rng.random() < 0.3:
                ctx.set(dut.outer_completion.p.id.index, OWN)
            await ctx.delay(1e-9)
            for given, seen in ways:
                assert ctx.get(seen.payload.as_value()) == ctx.get(given.payload.as_value())
                mine = given is dut.outer_completion and ctx.get(given.p.id.index) == OWN
                assert ctx.get(seen.valid) == (ctx.get(given.valid) and not mine)
                assert ctx.get(given.ready) == (ctx.get(seen.ready) or mine)
            await ctx.tick()

    simulate(dut, run)


def test_latency_is_none():
    for given, seen in (("inner_axi.aw.valid", "outer_axi.aw.valid"), ("go", "outer_axi.aw.valid")):
        assert changes(eraser(), seen, [{given: 1}]) == [MediaEraser.LATENCY]
