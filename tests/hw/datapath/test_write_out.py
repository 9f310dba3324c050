# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""WriteOut: how fast lines that are due leave."""

from data_speed import check_flow

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.datapath.write_out import WriteOut
from kelp_spec.config import named

UNIT = named("unit")


def test_latency_and_interval():
    block = WriteOut(axi=axi_signature(UNIT), line_bits=8, line_slots=16, scale_slots=8)
    held = [(block.lines.due.valid, 1), (block.lines.take, 1)]
    held += [(block.aw.ready, 1), (block.w.ready, 1)]
    accepted, seen = block.lines.turn, block.aw.valid & block.w.valid
    check_flow(block, held=held, accepted=accepted, seen=seen)
