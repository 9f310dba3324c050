# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""SlotTable: a look-up a cycle."""

from data_speed import answered

from kelp_hw.datapath.slot_table import SlotTable
from kelp_spec.config import named

UNIT = named("unit")


def test_it_answers_a_look_up_a_cycle():
    block = SlotTable(config=UNIT, slots=8, lead=4)
    look = block.look
    # Allocate slots for lines 1, 2, 3; look all up again.
    asks = [
        (look.tag.valid, 1, look.tag.p.offset, line, look.use, n > 0, look.fire, n > 0)
        for n, line in enumerate([1, 2, 3, 3, 1, 2])
    ]
    slots = answered(block, asks, look.slot)
    assert slots[3:] == [slots[2], slots[0], slots[1]] and len({*slots}) == 3
