# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""DataHead: how fast an answer without data passes."""

from data_speed import check_flow, flow

from kelp_hw.datapath.head import DataHead
from kelp_spec.config import named
from kelp_spec.metadata import Answer, DataOp

UNIT = named("unit")


def test_latency_and_interval():
    block = DataHead(config=UNIT)
    ends, held = flow(block.i, block.o)
    answers = [(block.i.p.kind, DataOp.ANSWER), (block.i.p.answer, Answer.CMP)]
    check_flow(block, held=held + answers, **ends)
