# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""DataFront: how fast an op passes."""

from data_speed import check_flow, flow

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.datapath.front import DataFront
from kelp_spec.config import named
from kelp_spec.metadata import DataOp

UNIT = named("unit")


def test_latency_and_interval():
    block = DataFront(config=UNIT, axi=axi_signature(UNIT))
    ends, held = flow(block.i, block.o)
    answers = [(block.i.p.kind, DataOp.ANSWER), (block.room, 1), (block.o_write.ready, 1)]
    check_flow(block, held=held + answers, **ends)
