# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""WriteStore: a row a cycle."""

from data_speed import answered

from kelp_hw.datapath.write_store import WriteStore
from kelp_spec.config import named

UNIT = named("unit")


def test_it_reads_a_row_a_cycle():
    block = WriteStore(config=UNIT)
    order = [2, 0, 3, 1]
    writes = [
        (block.i.valid, 1, block.i.p.slot, slot, block.i.p.data, 7 + slot) for slot in range(4)
    ]
    reads = [(block.i.valid, 0, block.read_en, 1, block.read_slot, slot) for slot in order]
    assert answered(block, writes + reads, block.o_row.data)[4:] == [7 + slot for slot in order]
