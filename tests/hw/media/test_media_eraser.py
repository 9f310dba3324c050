# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Every line of memory is zero, once; the tier is told once; errors are told; what the endpoint
says passes before and after."""

import random

import pytest
from simulation import simulate
from timing import changes

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.media.media_eraser import MediaEraser
from kelp_spec.config import named
from kelp_spec.metadata import ColdOp, ColdStatus

UNIT = named("unit_cxl")
EVEN = UNIT.with_(frames=(4, 4, 4, 20))  #: as many lines as a counter of 7 bits has values
OWN = UNIT.misses + UNIT.write_backs  #: the id of an ERASE
LIMIT = 4000


def eraser(config=UNIT):
    return MediaEraser(config=config, axi=axi_signature(config))


class Bench:
    """Memory and tier. `bad`: the line that memory answers with an error; `status`: the tier's."""

    def __init__(self, seed, *, ready=0.6, bad=None, status=ColdStatus.OK, config=UNIT):
        self.dut, self.rng, self.seed = eraser(config), random.Random(seed), seed
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
            ctx.set(axi.b.p.resp, 2 * (at == self.bad))
        waits = bool(self.completions) and rng.random() < self.ready
        if waits or ctx.get(dut.outer_completion.valid):
            ctx.set(dut.outer_completion.valid, 1)
            index, status = self.completions[0]
            ctx.set(dut.outer_completion.p.id.index, index)
            ctx.set(dut.outer_completion.p.status, status)
        await ctx.delay(1e-9)
        if ctx.get(axi.aw.valid) and ctx.get(axi.aw.ready):
            sizes = [ctx.get(axi.aw.p[name]) for name in ("len", "size", "burst")]
            assert sizes == [0, 6, 1] and not ctx.get(axi.aw.p.addr) % 64
            self.addresses.append(ctx.get(axi.aw.p.addr) // 64)
        if ctx.get(axi.w.valid) and ctx.get(axi.w.ready):
            full = ctx.get(axi.w.p.strb) == (1 << 64) - 1 and ctx.get(axi.w.p.last)
            self.lines.append(ctx.get(axi.w.p.data) if full else None)
        if gives:
            assert ctx.get(axi.b.ready)
            self.answers.append(at)
        if ctx.get(dut.outer_command.valid) and ctx.get(dut.outer_command.ready):
            p = dut.outer_command.p
            self.commands.append((ctx.get(p.op), ctx.get(p.id.index), ctx.get(p.lba)))
            self.completions += [(3, ColdStatus.OK), (OWN, self.status)]
        if ctx.get(dut.outer_completion.valid) and ctx.get(dut.outer_completion.ready):
            index, _ = self.completions.pop(0)
            through = ctx.get(dut.inner_completion.valid) and ctx.get(dut.inner_completion.ready)
            assert through == (index != OWN)
            await ctx.tick()
            ctx.set(dut.outer_completion.valid, 0)
            return
        await ctx.tick()

    async def erase(self, ctx):
        """A whole one: whether it failed."""
        dut = self.dut
        for each in (self.addresses, self.lines, self.answers, self.commands, self.percents):
            each.clear()
        ctx.set(dut.go, 1)
        for _ in range(LIMIT):
            await self.cycle(ctx)
            self.percents.append(ctx.get(dut.progress))
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
        (UNIT, None, ColdStatus.FAILED, 1),
    ],
)
def test_every_line_is_zero_and_the_tier_forgets(config, bad, status, failed):
    bench = Bench(1, bad=bad, status=status, config=config)
    assert EVEN.dram_lines == 128

    async def run(ctx):
        ctx.set(bench.dut.inner_command.p.lba, 7)  # which nobody offers
        for again in range(2):
            assert await bench.erase(ctx) == (failed and not again)
            assert bench.addresses == bench.answers == list(range(config.dram_lines))
            assert bench.lines == [0] * config.dram_lines
            assert bench.commands == [(ColdOp.ERASE, OWN, 0)]
            assert bench.percents == sorted(bench.percents) and bench.percents[-1] == 99
            assert len(set(bench.percents)) > 50
            bench.bad, bench.status = None, ColdStatus.OK

    simulate(bench.dut, run)


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


@pytest.mark.parametrize(
    ("given", "seen", "stops"),
    [
        ("outer_axi.aw.ready", "inner_axi.aw.ready", True),
        ("outer_axi.w.ready", "inner_axi.w.ready", True),
        ("outer_axi.b.valid", "inner_axi.b.valid", False),
        ("outer_command.ready", "inner_command.ready", True),
        ("inner_axi.aw.valid", "outer_axi.aw.valid", False),
        ("inner_axi.w.valid", "outer_axi.w.valid", False),
        ("inner_command.valid", "outer_command.valid", False),
        ("inner_axi.b.ready", "outer_axi.b.ready", False),
    ],
)
def test_handshakes_pass_while_nothing_is_erased(given, seen, stops):
    assert changes(eraser(), seen, [{given: 1}]) == [MediaEraser.LATENCY]
    if stops:  # what the endpoint would take, meanwhile
        assert not changes(eraser(), seen, [{given: 1}], prepare={"go": 1})


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("inner_axi.aw.p.addr", "outer_axi.aw.p.addr"),
        ("inner_axi.w.p.data", "outer_axi.w.p.data"),
        ("inner_axi.ar.p.addr", "outer_axi.ar.p.addr"),
        ("outer_axi.r.p.data", "inner_axi.r.p.data"),
        ("outer_axi.b.p.id", "inner_axi.b.p.id"),
        ("inner_command.p.lba", "outer_command.p.lba"),
        ("outer_completion.p.id.index", "inner_completion.p.id.index"),
    ],
)
def test_what_the_endpoint_says_passes_in_the_cycle(given, seen):
    port = given.split(".p.")[0]
    given = [{f"{port}.valid": 1, given: 5}]
    assert changes(eraser(), seen, given) == [MediaEraser.LATENCY]
    assert MediaEraser.INTERVAL == 1
