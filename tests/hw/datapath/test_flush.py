# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""FlushUnit: how fast an op passes."""

from data_speed import check_flow, flow

from kelp_hw.datapath.flush import FlushUnit
from kelp_spec.config import named

UNIT = named("unit")


def test_latency_and_interval():
    block = FlushUnit(config=UNIT)
    ends, held = flow(block.i, block.o)
    check_flow(block, held=held, **ends)
