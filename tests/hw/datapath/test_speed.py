# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Each block of the data path is as fast as its `LATENCY` and `INTERVAL` say: cycles from an input
to its output, and from one accepted input to the next while nothing pushes back."""

import pytest
from simulation import simulate

from kelp_hw.codec.raw_lines import RawDequantiser, RawQuantiser
from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.datapath.flush import FlushUnit
from kelp_hw.datapath.front import DataFront
from kelp_hw.datapath.head import DataHead
from kelp_hw.datapath.line_slots import LineSlots
from kelp_hw.datapath.scale_slots import ScaleSlots
from kelp_hw.datapath.slot_table import SlotTable
from kelp_hw.datapath.write_out import WriteOut
from kelp_hw.datapath.write_path import WritePath
from kelp_hw.datapath.write_store import WriteStore
from kelp_spec.config import named
from kelp_spec.metadata import Answer, DataOp

UNIT = named("unit")
ITEMS = 6


def measured(block, *, held, accepted, seen):
    """Cycles of the first `ITEMS` transfers at the input and at the output: `held` are (signal,
    value) that stand from the start, `accepted` and `seen` are expressions."""
    into, out = [], []

    async def bench(ctx):
        for signal, value in held:
            ctx.set(signal, value)
        for cycle in range(100):
            if ctx.get(accepted):
                into.append(cycle)
            if ctx.get(seen):
                out.append(cycle)
            if len(out) == ITEMS:
                return
            await ctx.tick()

    simulate(block, bench)
    assert len(out) == ITEMS, f"{len(out)} of {ITEMS} came out in 100 cycles"
    return into[:ITEMS], out


def flow(i, o):
    """A stream that is always offered, and one that is always taken."""
    return dict(accepted=i.valid & i.ready, seen=o.valid & o.ready), [(i.valid, 1), (o.ready, 1)]


def flush_unit():
    block = FlushUnit(config=UNIT)
    ends, held = flow(block.i, block.o)
    return block, dict(ends, held=held)


def data_front():
    block = DataFront(config=UNIT, axi=axi_signature(UNIT))
    ends, held = flow(block.i, block.o)
    answers = [(block.i.p.kind, DataOp.ANSWER), (block.room, 1), (block.o_write.ready, 1)]
    return block, dict(ends, held=held + answers)


def data_head():
    block = DataHead(config=UNIT)
    ends, held = flow(block.i, block.o)
    return block, dict(
        ends, held=[*held, (block.i.p.kind, DataOp.ANSWER), (block.i.p.answer, Answer.CMP)]
    )


def write_out():
    block = WriteOut(axi=axi_signature(UNIT), line_bits=8, line_slots=16, scale_slots=8)
    held = [(block.lines.due.valid, 1), (block.aw.ready, 1), (block.w.ready, 1)]
    return block, dict(held=held, accepted=block.lines.take, seen=block.aw.valid & block.w.valid)


def raw(block):
    ends, held = flow(block.i, block.o)
    return block, dict(ends, held=held)


@pytest.mark.parametrize(
    "make",
    [
        flush_unit,
        data_front,
        data_head,
        write_out,
        lambda: raw(RawQuantiser(meta_shape=4)),
        lambda: raw(RawDequantiser(meta_shape=4)),
    ],
    ids=["FlushUnit", "DataFront", "DataHead", "WriteOut", "RawQuantiser", "RawDequantiser"],
)
def test_flow(make):
    block, how = make()
    into, out = measured(block, **how)
    assert out[0] - into[0] == block.LATENCY
    assert {b - a for a, b in zip(out, out[1:], strict=False)} == {block.INTERVAL}


def answered(block, asks, answer):
    """`answer` to each of `asks`, `LATENCY` cycles after it. `asks` are set one a cycle: signal,
    value, signal, value …"""
    seen = []

    async def bench(ctx):
        for cycle in range(len(asks) + block.LATENCY):
            ask = asks[cycle] if cycle < len(asks) else ()
            for signal, value in zip(ask[::2], ask[1::2], strict=True):
                ctx.set(signal, value)
            seen.append(ctx.get(answer))
            await ctx.tick()

    simulate(block, bench)
    return seen[block.LATENCY :]


def test_slot_table_answers_a_look_up_a_cycle():
    block = SlotTable(config=UNIT, slots=8, lead=4)
    look = block.look
    # Allocate slots for lines 1, 2, 3; look all up again.
    asks = [
        (look.tag.valid, 1, look.tag.p.offset, line, look.use, n > 0, look.fire, n > 0)
        for n, line in enumerate([1, 2, 3, 3, 1, 2])
    ]
    slots = answered(block, asks, look.slot)
    assert slots[3:] == [slots[2], slots[0], slots[1]] and len({*slots}) == 3


def test_write_store_reads_a_row_a_cycle():
    block = WriteStore(config=UNIT)
    order = [2, 0, 3, 1]
    writes = [
        (block.i.valid, 1, block.i.p.slot, slot, block.i.p.data, 7 + slot) for slot in range(4)
    ]
    reads = [(block.i.valid, 0, block.read_en, 1, block.read_slot, slot) for slot in order]
    assert answered(block, writes + reads, block.o_row.data)[4:] == [7 + slot for slot in order]


@pytest.mark.parametrize("buffer", [LineSlots, ScaleSlots])
def test_line_buffer_reads_a_line_a_cycle(buffer):
    block = buffer(config=UNIT)
    head = block.head
    slot, answer = (
        (head.read_slot, head.line) if buffer is LineSlots else (head.place.slot, head.scale)
    )
    order = [2, 0, 3, 1]
    look = block.look.slot
    allocations = [
        (look.tag.valid, n < 4, look.tag.p.offset, n, look.use, n > 0, look.fire, n > 0)
        for n in range(5)
    ]
    fills = [
        (look.use, 0, look.fire, 0, block.fill.valid, 1, block.fill.p.slot, n)
        + (block.fill.p.data, 9 + n)
        for n in range(4)
    ]
    reads = [(block.fill.valid, 0, slot, n) for n in order]
    what = (block.look.reads, 1)
    if buffer is LineSlots:
        what += (block.look.quarters, 0b1111)
    seen = answered(block, [what, *allocations, *fills, *reads], answer)
    assert seen[-4:] == [9 + n for n in order]


def test_write_path_quantises_a_line_a_cycle():
    block = WritePath(config=UNIT)
    accepted, ready = [], []

    async def bench(ctx):
        ctx.set(block.i_data.valid, 1)
        ctx.set(block.i_data.p.byte_enable, (1 << 64) - 1)
        await ctx.tick()
        ctx.set(block.i.valid, 1)
        for cycle in range(ITEMS + block.LATENCY + 2):
            if ctx.get(block.i.ready):
                accepted.append(cycle)
            ctx.set(block.head.consume, ctx.get(block.head.ready))
            if ctx.get(block.head.ready):
                ready.append(cycle)
            await ctx.tick()

    simulate(block, bench)
    pairs = list(zip(accepted, ready, strict=False))[:ITEMS]
    assert len(pairs) == ITEMS
    assert {out - into for into, out in pairs} == {block.LATENCY}
    assert {b - a for (_, a), (_, b) in zip(pairs, pairs[1:], strict=False)} == {block.INTERVAL}
