# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Protected memories: what was written is read with any bit of a code word flipped, and two flipped
bits of one are reported."""

import itertools
import random

import pytest
from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.sim import Simulator
from flips import opened
from timing import check_memory, check_pace, varied

from kelp_hw.lib.protected import (
    BlockFault,
    CheckedWord,
    Fault,
    ProtectedFifo,
    ProtectedMemory,
    gather,
    gather_blocks,
    merged,
    used,
)
from kelp_hw.lib.split_sram import SplitSram
from kelp_hw.lib.sram import Sram
from kelp_hw.lib.wide_memory import WideMemory


def test_memory_latency_and_interval():
    check_memory(ProtectedMemory(depth=4, shape=8, protect=True))


def test_fifo_latency_and_interval():
    fifo = ProtectedFifo(shape=8, depth=4, protect=True)
    check_pace(
        fifo,
        "LATENCY",
        lambda dut: Mux(dut.r_rdy, dut.r_data, 0),
        varied("w_data", w_en=1),
        prepare={"r_en": 1},
    )


def simulate(dut, bench):
    sim = Simulator(dut)
    sim.add_clock(1e-6)
    sim.add_testbench(bench)
    sim.run()


def decoded(word, codes):
    """For each code word: (row, single, double)."""
    m, code = Module(), Signal(word.code_bits)
    found = word.decode(m, code)
    outputs = [Signal(len(each), name=f"output_{k}") for k, each in enumerate(found)]
    m.d.comb += [to.eq(each) for to, each in zip(outputs, found, strict=True)]
    results = []

    async def bench(ctx):
        for each in codes:
            ctx.set(code, each)
            results.append(tuple(ctx.get(to) for to in outputs))

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
    return results


def encoded(word, value):
    """The code word of a row."""
    m, row, code = Module(), Signal(sum(word.parts)), Signal(word.code_bits)
    m.d.comb += code.eq(word.encode(m, row))
    results = []

    async def bench(ctx):
        ctx.set(row, value)
        results.append(ctx.get(code))

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
    return results[0]


@pytest.mark.parametrize(
    ("width", "parts"),
    [(1, None), (3, None), (30, None), (70, None), (20, (4, 1, 15)), (58, None), (128, None)],
)
def test_flips_in_each_part_of_a_row(width, parts):
    word, rng = CheckedWord(width, protect=True, parts=parts), random.Random(width)
    row = rng.getrandbits(width)
    code = encoded(word, row)
    cases, expected, low = [code], [(row, 0, 0)], 0
    for p, bits in enumerate(word.widths):
        for bit in range(bits):
            cases.append(code ^ 1 << low + bit)
            expected.append((row, 1 << p, 0))
            other = low + rng.choice([b for b in range(bits) if b != bit])
            cases.append(code ^ 1 << low + bit ^ 1 << other)
            expected.append((None, 0, 1 << p))
        low += bits
    # a flip in each part at once
    cases.append(code ^ sum(1 << sum(word.widths[:p]) for p in range(len(word.widths))))
    expected.append((row, (1 << len(word.widths)) - 1, 0))
    for got, (data, single, double) in zip(decoded(word, cases), expected, strict=True):
        assert got[1:] == (single, double)
        assert data is None or got[0] == data


def test_parts_cover_the_row():
    assert CheckedWord(130, protect=True).parts == (44, 44, 42)
    for parts in ((64, 65, 1), (64, 64), (0, 130)):
        with pytest.raises(ValueError, match="parts = .* is refused; legal: 1 … 64 bits each, 130"):
            CheckedWord(130, protect=True, parts=parts)


def test_without_protection_nothing_is_added():
    word = CheckedWord(130, protect=False)
    value = Signal(130)
    assert word.code_bits == 130 and word.encode(Module(), value) is value
    assert word.decode(Module(), value)[0] is value
    assert ProtectedMemory(depth=4, shape=7, protect=False, scrub=True).rows.width == 7


MEMORIES = {
    "Sram": {"make": Sram, "shape": 12},
    "Sram of two parts": {"make": Sram, "shape": 66},
    "SplitSram": {"make": SplitSram, "shape": 12},
    "WideMemory": {"make": WideMemory, "shape": 70, "transparent": False},
    "WideMemory of four": {"make": WideMemory, "shape": 64, "granularity": 16},
}


@pytest.mark.parametrize("kind", MEMORIES)
@pytest.mark.parametrize("protect", [True, False])
def test_memory(kind, protect):
    """Rows written are read; with one flipped bit corrected, with two of one part reported."""
    dut = ProtectedMemory(depth=8, protect=protect, **MEMORIES[kind])
    rng, width = random.Random(kind), len(Value.cast(dut.read_data))
    rows = [rng.getrandbits(width) for _ in range(8)]
    top, memories = opened(dut)
    (memory,) = memories.values()

    async def read(ctx, row):
        ctx.set(dut.read_address, row)
        ctx.set(dut.read_en, 1)
        for _ in range(dut.LATENCY):
            await ctx.tick()
            ctx.set(dut.read_en, 0)
        return tuple(ctx.get(each) for each in (dut.read_data, dut.corrected, dut.uncorrected))

    async def bench(ctx):
        for row, value in enumerate(rows):
            ctx.set(dut.write_en, (1 << len(dut.write_en)) - 1)
            ctx.set(dut.write_address, row)
            ctx.set(dut.write_data, value)
            await ctx.tick()
        ctx.set(dut.write_en, 0)
        for row, value in enumerate(rows):
            assert await read(ctx, row) == (value, 0, 0)
            low, whole = 0, ctx.get(memory[row])
            for p, bits in enumerate(dut.word.widths):
                first, second = (low + bit for bit in rng.sample(range(bits), 2))
                ctx.set(memory[row], whole ^ 1 << first)
                seen = await read(ctx, row)
                assert seen == (value, 1 << p, 0) if protect else seen[0] != value
                ctx.set(memory[row], whole ^ 1 << first ^ 1 << second)
                assert (await read(ctx, row))[1:] == ((0, 1 << p) if protect else (0, 0))
                low += bits
            ctx.set(memory[row], whole)
        assert not protect or bool(dut.word.parts) and low == dut.rows.width

    simulate(top, bench)


def test_granules_are_written_one_by_one():
    dut = ProtectedMemory(depth=2, shape=32, protect=True, make=WideMemory, granularity=8)

    async def bench(ctx):
        for enable, value in ((0b1111, 0x11223344), (0b0100, 0xAABBCCDD)):
            ctx.set(dut.write_en, enable)
            ctx.set(dut.write_data, value)
            await ctx.tick()
        ctx.set(dut.write_en, 0)
        ctx.set(dut.read_en, 1)
        await ctx.tick()
        seen = [ctx.get(each) for each in (dut.read_data, dut.corrected, dut.uncorrected)]
        assert seen == [0x11BB3344, 0, 0]

    simulate(dut, bench)


@pytest.mark.parametrize("busy", ["nothing", "a write", "a read of the row", "an earlier write"])
def test_scrub(busy):
    """A row read with a single error is written back; not while it is read, and never over a write
    that came meanwhile."""
    dut = ProtectedMemory(depth=4, shape=8, protect=True, scrub=True)
    top, memories = opened(dut)
    (memory,) = memories.values()

    def write(ctx, row, value):
        ctx.set(dut.write_en, value is not None)
        # Where nothing is written the address is another row's.
        ctx.set(dut.write_address, row if value is not None else row ^ 2)
        ctx.set(dut.write_data, value or 0)

    async def bench(ctx):
        write(ctx, 1, 0x5A)
        await ctx.tick()
        write(ctx, 0, None)
        await ctx.tick()
        good, others = ctx.get(memory[1]), [ctx.get(memory[row]) for row in (0, 2, 3)]
        ctx.set(memory[1], good ^ 4)
        ctx.set(dut.read_en, 1)
        ctx.set(dut.read_address, 1)
        await ctx.tick()
        assert ctx.get(dut.read_data) == 0x5A and ctx.get(dut.fault.corrected)
        ctx.set(dut.read_en, busy == "a read of the row")
        write(ctx, 1, 0xC3 if busy == "an earlier write" else None)
        await ctx.tick()
        write(ctx, 1, 0xC3 if busy == "a write" else None)
        for _ in range(2):
            await ctx.tick()
            write(ctx, 1, None)
            if busy == "a read of the row":
                assert ctx.get(memory[1]) == good ^ 4
        ctx.set(dut.read_en, 0)
        await ctx.tick().repeat(2)
        assert ctx.get(memory[1]) == good or busy in ("a write", "an earlier write")
        assert others == [ctx.get(memory[row]) for row in (0, 2, 3)]
        ctx.set(dut.read_en, 1)
        await ctx.tick()
        value = 0xC3 if "write" in busy else 0x5A
        assert ctx.get(dut.read_data) == value and not ctx.get(dut.fault.as_value())

    simulate(top, bench)


def test_a_row_that_is_not_there_is_not_written_back():
    """Whatever stands behind its address, here a row of a larger memory with a single error."""

    class Larger(Sram):
        def elaborate(self, platform):
            self.depth = 8
            return super().elaborate(platform)

    dut = ProtectedMemory(depth=5, shape=8, protect=True, scrub=True, make=Larger)
    top, memories = opened(dut)
    (memory,) = memories.values()

    async def bench(ctx):
        for row in range(8):
            ctx.set(memory[row], 4)  # of an empty row, which is sound
            ctx.set(dut.read_en, 1)
            ctx.set(dut.read_address, row)
            await ctx.tick()
            assert ctx.get(dut.fault.corrected)
            ctx.set(dut.read_en, 0)
            await ctx.tick().repeat(4)
        assert [ctx.get(memory[row]) for row in range(8)] == [0] * 5 + [4] * 3

    simulate(top, bench)


def test_scrub_needs_one_cycle():
    with pytest.raises(ValueError, match="scrub of a SplitSram is refused"):
        ProtectedMemory(depth=4, shape=8, protect=True, scrub=True, make=SplitSram)
    with pytest.raises(ValueError, match="granularity = 7 is refused; legal: a divisor of"):
        ProtectedMemory(depth=4, shape=8, protect=True, make=WideMemory, granularity=7)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("protect", [True, False])
def test_fifo(buffered, protect):
    """Items leave in order; an item with one flipped bit is corrected and counted when it leaves,
    one with two is reported."""
    dut = ProtectedFifo(shape=12, depth=4, protect=protect, buffered=buffered)
    top, memories = opened(dut)
    (memory,) = memories.values()

    async def bench(ctx):
        for flips, expected in ((0, (0, 0)), (8, (1, 0)), (24, (0, 1))):
            for value in (7, 0x9A5):
                ctx.set(dut.w_en, 1)
                ctx.set(dut.w_data, value)
                assert ctx.get(dut.w_rdy)
                await ctx.tick()
            ctx.set(dut.w_en, 0)
            await ctx.tick().repeat(2)
            # the first is at the output, maybe in a register of its own
            for row in range(len(memory._init)):
                if ctx.get(memory[row]) & 0xFFF == 0x9A5:
                    ctx.set(memory[row], ctx.get(memory[row]) ^ flips)
            assert ctx.get(dut.w_level) == ctx.get(dut.level) == 2
            assert ctx.get(dut.r_level) == 2 and ctx.get(dut.r_rdy) and ctx.get(dut.r_data) == 7
            ctx.set(dut.r_en, 1)
            await ctx.tick()
            ctx.set(dut.r_en, 0)
            await ctx.tick().repeat(2)
            fault = (ctx.get(dut.fault.corrected), ctx.get(dut.fault.uncorrected))
            assert fault == ((0, expected[1]) if protect else (0, 0))
            ctx.set(dut.r_en, 1)
            fault = (ctx.get(dut.fault.corrected), ctx.get(dut.fault.uncorrected))
            assert fault == (expected if protect else (0, 0))
            if protect and not expected[1]:
                assert ctx.get(dut.r_data) == 0x9A5
            await ctx.tick()
            ctx.set(dut.r_en, 0)
            assert not ctx.get(dut.r_rdy) and not ctx.get(dut.fault.as_value())
            for row in range(len(memory._init)):
                ctx.set(memory[row], 0)

    simulate(top, bench)


def test_gathered_faults():
    m, to = Module(), Signal(BlockFault)
    first, second, third = (Signal(Fault, name=f"fault_{k}") for k in range(3))
    gather(m, to, first, second, poisoned=(third,))
    seen = {}

    async def bench(ctx):
        for fault in (first, second, third):
            for bits in (1, 2):
                ctx.set(fault.as_value(), bits)
                await ctx.tick()
                ctx.set(fault.as_value(), 0)
                seen[fault.as_value().name, bits] = ctx.get(to.as_value())

    simulate(m, bench)
    corrected, poisoned, fatal = 1, 2, 4
    assert list(seen.values()) == [corrected, fatal, corrected, fatal, corrected, poisoned]


def test_faults_of_several_are_joined_and_count_where_they_are_used():
    m, word, block = Module(), Signal(2), Signal(BlockFault)
    faults = [Signal(Fault, name=f"fault_{k}") for k in range(2)]
    blocks = [Signal(BlockFault, name=f"block_{k}") for k in range(2)]
    condition = Signal()
    m.d.comb += word.eq(used(merged(*faults), condition).as_value())
    gather_blocks(m, block, *blocks)

    async def bench(ctx):
        for first, second, uses in itertools.product(range(4), range(4), range(2)):
            ctx.set(faults[0].as_value(), first)
            ctx.set(faults[1].as_value(), second)
            ctx.set(condition, uses)
            assert ctx.get(word) == (first | second if uses else 0)
        for first, second in itertools.product(range(8), range(8)):
            ctx.set(blocks[0].as_value(), first)
            ctx.set(blocks[1].as_value(), second)
            assert ctx.get(block.as_value()) == first | second

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()


@pytest.mark.parametrize("buffered", [True, False])
def test_a_fifo_takes_as_many_items_as_it_is_deep(buffered):
    dut, taken = ProtectedFifo(shape=8, depth=4, protect=True, buffered=buffered), []

    async def bench(ctx):
        ctx.set(dut.w_en, 1)
        for n in range(8):
            ctx.set(dut.w_data, n)
            if ctx.get(dut.w_rdy):
                taken.append(n)
            await ctx.tick()
        assert not ctx.get(dut.w_rdy) and ctx.get(dut.w_level) == dut.depth
        ctx.set(dut.w_en, 0)
        for n in taken:
            assert ctx.get(dut.r_rdy) and ctx.get(dut.r_data) == n
            ctx.set(dut.r_en, 1)
            await ctx.tick()
        assert not ctx.get(dut.r_rdy)

    simulate(dut, bench)
    # One that is buffered is full for a cycle while a word moves to its output.
    assert len(taken) == dut.depth
