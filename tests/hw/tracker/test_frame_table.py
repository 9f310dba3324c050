# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""FrameTable: against its golden model, and with flipped bits in its entries."""

import random

import pytest
from flips import NO_FAULT, fields, flip, simulate_memory

from kelp_golden.frame_table import FrameTable as GoldenFrameTable
from kelp_hw.tracker.frame_table import FrameTable
from kelp_spec.config import named
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.metadata import Answer, DataOp, Op, Outcome
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, made, run_cocotb


@pytest.mark.parametrize(
    ("config", "cycles"),
    [
        ("unit", 12_000),
        pytest.param("unit_coherent", 6_000, marks=pytest.mark.night),
        ("unit_cxl", 6_000),
        pytest.param("trace", 3_000, marks=pytest.mark.night),
    ],
)
def test_frame_table_is_its_golden_model(config, cycles):
    params = {"config": config, "cycles": cycles}
    result = run_cocotb(
        made(FrameTable, config=named(config)),
        bench="kelp_verif.tracker.frame_table_bench",
        model=Model(public=[*PUBLIC, ("kelp_sram_collision_x", "words")]),
        params=params,
        timeout_s=280,
    )
    assert result.records["forwarded"] > cycles // 20
    seen = set(result.records["seen"])
    assert seen >= {"useful", "useless", "MEMORY_READ_FAILED", "MEMORY_WRITE_FAILED"}
    if named(config).cxlio:
        sources = ("UNKNOWN", "EXTERNAL", "INTERNAL")
        assert {"healed", *(str(("poisoned", s)) for s in sources)} <= seen
    for kind, answer in [
        ("READ", "DATA"),
        ("WRITE", "CMP"),
        ("FLUSH", "NONE"),
        *(("ANSWER", a) for a in ("ZEROS", "POISON", "NXM", "CMP")),
    ]:
        assert str((kind, answer)) in seen


def test_golden_refuses_a_frame_with_two_owners():
    golden = GoldenFrameTable(named("unit"))
    golden.start(3, 1, 2)
    with pytest.raises(ValueError, match="frame 3 .* still belongs"):
        golden.start(3, 0, 0)


# - flipped bits: docs/protection.md says what they do --------------------------------------------

UNIT = named("unit")
FRAME, OWNER = 5, {"squeue": 3, "page": 6}


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

    simulate_memory(dut, run)


READ_DATA = DataOp.READ, Answer.DATA, 0, 0
READ_FRESH = DataOp.READ, Answer.DATA, 0, 1
READ_POISON = DataOp.READ, Answer.DATA, 1, 0
CONTROL, MASKS = FrameTable(config=UNIT).parts


def code_bits(part, config=UNIT):
    """Bits of the row in which a code word of an entry lies."""
    widths = FrameTable(config=config)._table().word.widths
    low = sum(widths[:part])
    return range(low, low + widths[part])


def test_one_flip_anywhere_in_an_entry_changes_nothing_and_is_mended():
    async def bench(ctx, memory, frames, dut):
        _, fault, before = await frames.read(1)
        assert fault == NO_FAULT and before["dirty"] and before["in_use"]
        await ctx.tick().repeat(4)
        good = ctx.get(memory[FRAME])
        for bit in (*code_bits(0), *code_bits(1)):
            flip(ctx, memory, FRAME, bit)
            for line, answer, expected in (
                (1, READ_DATA, NO_FAULT | {"corrected": 1}),
                (4, READ_DATA, NO_FAULT),  # the op before stored the entry anew
                (2, READ_FRESH, NO_FAULT),
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
            assert (got, fault) == (READ_POISON, NO_FAULT | {"poisoned": 1})
            assert entry["dirty"] and entry["squeue"] == OWNER["squeue"]
            assert entry["poison"] == entry["valid"] == (1 << UNIT.page_lines) - 1
            await ctx.tick().repeat(rng.randint(1, 5))
            # a full write heals its line, a part of one does not
            _, fault, entry = await frames.write(1, partial=1)
            assert fault == NO_FAULT and entry["poison"] == (1 << UNIT.page_lines) - 1
            assert (await frames.read(1))[0] == READ_POISON
            await frames.write(1)
            assert (await frames.read(1))[:2] == (READ_DATA, NO_FAULT)
            assert (await frames.read(4))[:2] == (READ_POISON, NO_FAULT)
            claim = await frames.op(kind=Op.CLAIM, outcome=Outcome.DONE)
            assert claim[2]["poison"] == 0xFF & ~2 and claim[2]["dirty"]
            await ctx.tick().repeat(4)

    frame_table(bench)


def test_line_masks_of_several_code_words_are_poisoned_by_any_of_them():
    """Pages of 128 lines: a flip in each word of the masks is mended."""
    config = UNIT.with_(half_lines=64)
    words = [code_bits(part, config) for part in range(1, len(FrameTable(config=config).parts))]
    assert len(words) == 4

    async def bench(ctx, memory, frames, dut):
        _, fault, before = await frames.read(1)
        await ctx.tick().repeat(4)
        good = ctx.get(memory[FRAME])
        flip(ctx, memory, FRAME, *(bits[5] for bits in words))
        assert await frames.read(1) == (READ_DATA, NO_FAULT | {"corrected": 1}, before)
        await ctx.tick().repeat(4)
        assert ctx.get(memory[FRAME]) == good
        for bits in words:
            flip(ctx, memory, FRAME, *bits[:2])
            got, fault, entry = await frames.read(100)
            assert (got, fault) == (READ_POISON, NO_FAULT | {"poisoned": 1})
            assert entry["poison"] == entry["valid"] == (1 << config.page_lines) - 1
            await ctx.tick().repeat(4)
            ctx.set(memory[FRAME], good)

    frame_table(bench, config)


def test_lines_that_are_poisoned_and_healed_are_told_once():
    """With CXL.io, whose list has them: those that two flips poison, and what is written."""
    every, told = (1 << UNIT.page_lines) - 1, []

    async def bench(ctx, memory, frames, dut):
        async def done(kind, line, **given):
            await frames.op(kind=kind, kv_line=line, **given)
            p = fields(ctx, dut.o_poisoned.p)
            source = "healed" if p["healed"] else p["source"]
            told.append((source, p["lines"]) if ctx.get(dut.o_poisoned.valid) else None)
            assert {name: p[name] for name in OWNER} == OWNER
            ctx.set(dut.i.p.poison, 0)

        written = {"write": 1, "has_write": 1}
        flip(ctx, memory, FRAME, *list(code_bits(1))[:2])
        await done(Op.WRITE, 3, poison=1, **written)
        await done(Op.READ, 3)
        await ctx.tick().repeat(4)
        await done(Op.READ, 1)
        await done(Op.WRITE, 3, partial=1, **written)
        await done(Op.WRITE, 3, **written)
        await done(Op.WRITE, 3, **written)
        await done(Op.WRITE, 3, poison=1, **written)
        await done(Op.WRITE, 3, poison=1, **written)
        await ctx.tick().repeat(4)
        flip(ctx, memory, FRAME, *list(code_bits(1))[:2])
        await done(Op.WRITE, 3, **written)

    frame_table(bench, UNIT.with_(cxlio="joined"))
    assert told == [
        (PoisonSource.INTERNAL, every),
        None,
        None,
        None,
        ("healed", 1 << 3),
        None,
        (PoisonSource.EXTERNAL, 1 << 3),
        None,
        (PoisonSource.INTERNAL, every & ~(1 << 3)),
    ]


def test_two_flips_in_dirty_or_owner_are_fatal():
    rng = random.Random(2)

    async def bench(ctx, memory, frames, dut):
        for kind in (Op.READ, Op.WRITE, Op.CLAIM, Op.PEEK):
            good = ctx.get(memory[FRAME])
            flip(ctx, memory, FRAME, *rng.sample(code_bits(0), 2))
            written = {"write": 1, "has_write": 1} if kind == Op.WRITE else {}
            _, fault, _ = await frames.op(kind=kind, outcome=Outcome.DONE, **written)
            assert fault == NO_FAULT | {"fatal": 1}, kind
            await ctx.tick().repeat(4)
            assert fields(ctx, dut.fault) == NO_FAULT
            ctx.set(memory[FRAME], good)

    frame_table(bench)


def test_what_is_not_read_is_not_reported():
    """An entry that is forwarded, or that starts anew, or an op without one."""

    async def bench(ctx, memory, frames, dut):
        flip(ctx, memory, FRAME, 0, 1)
        assert (await frames.op(kind=Op.READ, use=0, answer=Answer.ZEROS))[1] == NO_FAULT
        ctx.set(dut.i.p.answer, Answer.NONE)
        # the page left, and another one comes
        ctx.set(memory[FRAME], 0)
        flip(ctx, memory, FRAME, 20, 22)
        assert (await frames.write(2, outcome=Outcome.ALLOCATED, init=1))[1] == NO_FAULT
        await ctx.tick().repeat(4)
        # one op behind the other: each finds the entry of the one before in a register
        for distance in range(4):
            assert (await frames.read(2))[:2] == (READ_DATA, NO_FAULT)
            await ctx.tick().repeat(4)
            first = await frames.read(2)
            assert first[:2] == (READ_DATA, NO_FAULT)
            for _ in range(distance):
                await ctx.tick()

    frame_table(bench)


def test_an_unprotected_entry_is_shown_as_it_is():
    """What these tests are for: one flip of `valid` shows a line that was never written."""

    async def bench(ctx, memory, frames, dut):
        flip(ctx, memory, FRAME, CONTROL + 2)
        assert (await frames.read(2))[:2] == (READ_DATA, NO_FAULT)

    frame_table(bench, UNIT.with_(protect=False))


@pytest.mark.parametrize("protect", [True, False])
def test_an_entry_costs_check_bits_only_where_it_is_protected(protect):
    table = FrameTable(config=UNIT.with_(protect=protect))._table()
    assert table.rows.width == CONTROL + MASKS + (6 + 6) * protect
