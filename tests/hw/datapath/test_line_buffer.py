# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LineBuffer, as lines and as scales: a line a cycle."""

import pytest
from data_speed import answered

from kelp_hw.datapath.line_slots import LineSlots
from kelp_hw.datapath.scale_slots import ScaleSlots
from kelp_spec.config import named

UNIT = named("unit")


@pytest.mark.parametrize("buffer", [LineSlots, ScaleSlots])
def test_it_reads_a_line_a_cycle(buffer):
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
