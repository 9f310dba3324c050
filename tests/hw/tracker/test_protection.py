# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Flipped bits in the memories of the tracker and the frame stage: one changes no answer and is
counted, two in one code word do what docs/protection.md says."""

import random

import pytest
from amaranth.lib import data
from amaranth.sim import Simulator
from flips import opened

from kelp_hw.endpoint import DataFifo
from kelp_hw.tracker.frame_table import FrameTable
from kelp_hw.tracker.pools import FreeFrames
from kelp_hw.tracker.queue_formats import QueueFormats
from kelp_spec.config import named
from kelp_spec.metadata import Answer, DataOp, Op, Outcome

UNIT = named("unit")
NOTHING = {"corrected": 0, "poisoned": 0, "fatal": 0}
FRAME, OWNER = 5, {"squeue": 3, "page": 6}


def simulate(dut, bench):
    """Runs `bench(ctx, memory)` with the only memory of `dut`."""
    top, memories = opened(dut)
    (memory,) = memories.values()
    simulator = Simulator(top)
    simulator.add_clock(1e-6)

    async def run(ctx):
        await bench(ctx, memory)

    simulator.add_testbench(run)
    simulator.run()


def fields(ctx, view):
    return {name: ctx.get(view[name]) for name in view.shape().members}


def flip(ctx, memory, row, *bits):
    ctx.set(memory[row], ctx.get(memory[row]) ^ sum(1 << bit for bit in bits))


class Frames:
    """A frame table with one page of which some lines are written."""

    def __init__(self, dut, ctx):
        self.dut, self.ctx = dut, ctx

    async def op(self, **given):
        """Does one op; (its data op, what is reported with it, entry after it)."""
        ctx, dut = self.ctx, self.dut
        for name, value in ({"use": 1, "frame": FRAME} | OWNER | given).items():
            ctx.set(dut.i.p[name], value)
        ctx.set(dut.i.valid, 1)
        await ctx.tick()
        ctx.set(dut.i.valid, 0)
        await ctx.tick().repeat(dut.LATENCY - 1)
        assert ctx.get(dut.o_commit.valid)
        got = (
            fields(ctx, dut.o.p) if ctx.get(dut.o.valid) else None,
            fields(ctx, dut.fault),
            fields(ctx, dut.o_commit.p.entry),
        )
        for name in ("init", "write", "partial", "has_write"):
            ctx.set(dut.i.p[name], 0)
        return got

    async def read(self, line):
        got, fault, entry = await self.op(kind=Op.READ, kv_line=line)
        return (got["kind"], got["answer"], got["poison"], got["fresh"]), fault, entry

    async def write(self, line, **given):
        return await self.op(kind=Op.WRITE, kv_line=line, write=1, has_write=1, **given)

    async def begin(self):
        while not self.ctx.get(self.dut.ready):
            await self.ctx.tick()
        await self.write(1, outcome=Outcome.ALLOCATED, init=1)
        await self.write(4)
        await self.ctx.tick().repeat(4)


def frame_table(bench, config=UNIT):
    dut = FrameTable(config=config)

    async def run(ctx, memory):
        frames = Frames(dut, ctx)
        await frames.begin()
        await bench(ctx, memory, frames, dut)

    simulate(dut, run)


READ_DATA = DataOp.READ, Answer.DATA, 0, 0
READ_FRESH = DataOp.READ, Answer.DATA, 0, 1
READ_POISON = DataOp.READ, Answer.DATA, 1, 0
CONTROL, MASKS = FrameTable(config=UNIT).parts


def code_bits(part):
    """Bits of the row in which a code word of an entry lies."""
    widths = FrameTable(config=UNIT)._table().word.widths
    low = sum(widths[:part])
    return range(low, low + widths[part])


def test_one_flip_anywhere_in_an_entry_changes_nothing_and_is_mended():
    async def bench(ctx, memory, frames, dut):
        _, fault, before = await frames.read(1)
        assert fault == NOTHING and before["dirty"] and before["in_use"]
        await ctx.tick().repeat(4)
        good = ctx.get(memory[FRAME])
        for bit in (*code_bits(0), *code_bits(1)):
            flip(ctx, memory, FRAME, bit)
            for line, answer, expected in (
                (1, READ_DATA, NOTHING | {"corrected": 1}),
                (4, READ_DATA, NOTHING),  # the op before stored the entry anew
                (2, READ_FRESH, NOTHING),
            ):
                got, fault, entry = await frames.read(line)
                assert (got, fault, entry) == (answer, expected, before), (bit, line)
                await ctx.tick().repeat(4)
            assert ctx.get(memory[FRAME]) == good

    frame_table(bench)


def test_two_flips_in_the_line_masks_poison_the_page():
    rng = random.Random(1)

    async def bench(ctx, memory, frames, dut):
        for _ in range(12):
            flip(ctx, memory, FRAME, *rng.sample(code_bits(1), 2))
            got, fault, entry = await frames.read(rng.randrange(8))
            assert (got, fault) == (READ_POISON, NOTHING | {"poisoned": 1})
            assert entry["dirty"] and entry["squeue"] == OWNER["squeue"]
            assert entry["poison"] == entry["valid"] == (1 << UNIT.page_lines) - 1
            await ctx.tick().repeat(rng.randint(1, 5))
            # a full write heals its line, a part of one does not
            _, fault, entry = await frames.write(1, partial=1)
            assert fault == NOTHING and entry["poison"] == (1 << UNIT.page_lines) - 1
            assert (await frames.read(1))[0] == READ_POISON
            await frames.write(1)
            assert (await frames.read(1))[:2] == (READ_DATA, NOTHING)
            assert (await frames.read(4))[:2] == (READ_POISON, NOTHING)
            claim = await frames.op(kind=Op.CLAIM, outcome=Outcome.DONE)
            assert claim[2]["poison"] == 0xFF & ~2 and claim[2]["dirty"]
            await ctx.tick().repeat(4)

    frame_table(bench)


def test_two_flips_in_dirty_or_owner_are_fatal():
    rng = random.Random(2)

    async def bench(ctx, memory, frames, dut):
        for kind in (Op.READ, Op.WRITE, Op.CLAIM, Op.PEEK):
            good = ctx.get(memory[FRAME])
            flip(ctx, memory, FRAME, *rng.sample(code_bits(0), 2))
            written = {"write": 1, "has_write": 1} if kind == Op.WRITE else {}
            _, fault, _ = await frames.op(kind=kind, outcome=Outcome.DONE, **written)
            assert fault == NOTHING | {"fatal": 1}, kind
            await ctx.tick().repeat(4)
            assert fields(ctx, dut.fault) == NOTHING
            ctx.set(memory[FRAME], good)

    frame_table(bench)


def test_what_is_not_read_is_not_reported():
    """An entry that is forwarded, or that starts anew, or an op without one."""

    async def bench(ctx, memory, frames, dut):
        flip(ctx, memory, FRAME, 0, 1)
        assert (await frames.op(kind=Op.READ, use=0, answer=Answer.ZEROS))[1] == NOTHING
        ctx.set(dut.i.p.answer, Answer.NONE)
        # the page left, and another one comes
        ctx.set(memory[FRAME], 0)
        flip(ctx, memory, FRAME, 20, 22)
        assert (await frames.write(2, outcome=Outcome.ALLOCATED, init=1))[1] == NOTHING
        await ctx.tick().repeat(4)
        # one op behind the other: each finds the entry of the one before in a register
        for distance in range(4):
            assert (await frames.read(2))[:2] == (READ_DATA, NOTHING)
            await ctx.tick().repeat(4)
            first = await frames.read(2)
            assert first[:2] == (READ_DATA, NOTHING)
            for _ in range(distance):
                await ctx.tick()

    frame_table(bench)


def test_an_unprotected_entry_is_shown_as_it_is():
    """What these tests are for: one flip of `valid` shows a line that was never written."""

    async def bench(ctx, memory, frames, dut):
        flip(ctx, memory, FRAME, CONTROL + 2)
        assert (await frames.read(2))[:2] == (READ_DATA, NOTHING)

    frame_table(bench, UNIT.with_(protect=False))


def test_queue_formats():
    dut, rng = QueueFormats(config=UNIT), random.Random(3)
    rows = [rng.getrandbits(8) for _ in range(UNIT.squeues)]
    names = list(dut.shape.members)

    async def read(ctx, squeue, used=1):
        ctx.set(dut.read_squeue, squeue)
        await ctx.tick()
        ctx.set(dut.read_squeue, 0)
        value = ctx.get(dut.o.as_value())
        await ctx.tick()
        ctx.set(dut.used, used)
        await ctx.tick()
        ctx.set(dut.used, 0)
        return value, fields(ctx, dut.fault)

    async def bench(ctx, memory):
        for squeue, row in enumerate(rows):
            row = data.Const(dut.shape, row % (1 << dut.shape.size))
            rows[squeue] = row.as_value().value
            ctx.set(dut.write.valid, 1)
            ctx.set(dut.write.p.squeue, squeue)
            for name in names:
                ctx.set(dut.write.p.queue_config[name], row[name])
            await ctx.tick()
        ctx.set(dut.write.valid, 0)
        for squeue in range(1, UNIT.squeues):
            good = ctx.get(memory[squeue])
            first, second = rng.sample(range(dut_bits), 2)
            flip(ctx, memory, squeue, first)
            assert await read(ctx, squeue) == (rows[squeue], NOTHING | {"corrected": 1})
            assert ctx.get(memory[squeue]) == good, "not written back"
            flip(ctx, memory, squeue, first, second)
            assert (await read(ctx, squeue, used=0))[1] == NOTHING
            assert (await read(ctx, squeue))[1] == NOTHING | {"fatal": 1}
            ctx.set(memory[squeue], good)
            assert await read(ctx, squeue) == (rows[squeue], NOTHING)

    dut_bits = QueueFormats(config=UNIT).shape.size
    simulate(dut, bench)


def test_free_frames():
    """Freed frames are handed out right with a flip each; two flips in one are reported when it
    becomes the next, and never a row that is not read."""
    dut = FreeFrames(first=8, frames=8, frame_bits=5, protect=True)
    rng = random.Random(4)

    async def bench(ctx, memory):
        ctx.set(dut.limit, 8)
        await ctx.tick().repeat(2)

        async def move(pop=0, push=None):
            """One cycle; (frame that was popped, fault of the one that follows)."""
            ctx.set(dut.pop, pop)
            ctx.set(dut.push, push is not None)
            ctx.set(dut.push_frame, push or 0)
            frame = ctx.get(dut.frame)
            fault = fields(ctx, dut.fault)
            await ctx.tick()
            ctx.set(dut.pop, 0)
            ctx.set(dut.push, 0)
            return frame, fault

        assert [(await move(pop=1))[0] for _ in range(8)] == [*range(8, 16)]
        for flips in (0, 1, 2):
            order = rng.sample(range(8, 16), 8)
            for frame in order:
                await move(push=frame)
            await ctx.tick().repeat(2)
            for row in range(8):
                flip(ctx, memory, row, *rng.sample(range(5), flips))
            await ctx.tick()  # the row behind the oldest is out already
            got = [await move(pop=1) for _ in range(8)]
            # The first was in a register from the beginning, and none follows the last.
            expected = {"corrected": flips == 1, "uncorrected": flips == 2}
            assert [fault for _, fault in got[:7]] == [expected] * 7
            assert got[7][1] == {"corrected": 0, "uncorrected": 0}
            assert flips == 2 or [frame for frame, _ in got] == order
            for row in range(8):
                ctx.set(memory[row], 0)

    simulate(dut, bench)


def test_data_ops_that_wait():
    dut = DataFifo(config=UNIT)

    async def bench(ctx, memory):
        for flips, expected in (((), NOTHING), ((3,), "corrected"), ((3, 5), "fatal")):
            ctx.set(dut.i.valid, 1)
            ctx.set(dut.i.p.frame, 21)
            await ctx.tick()
            ctx.set(dut.i.valid, 0)
            for row in range(memory.depth):
                flip(ctx, memory, row, *flips)
            await ctx.tick()
            ctx.set(dut.o.ready, 1)
            assert ctx.get(dut.o.valid) and (len(flips) == 2 or ctx.get(dut.o.p.frame) == 21)
            await ctx.tick()
            ctx.set(dut.o.ready, 0)
            fault = fields(ctx, dut.fault)
            assert fault == (NOTHING | {expected: 1} if flips else NOTHING)
            for row in range(memory.depth):
                ctx.set(memory[row], 0)
            await ctx.tick()

    simulate(dut, bench)


@pytest.mark.parametrize("protect", [True, False])
def test_an_entry_costs_check_bits_only_where_it_is_protected(protect):
    table = FrameTable(config=UNIT.with_(protect=protect))._table()
    assert table.rows.width == CONTROL + MASKS + (6 + 6) * protect
