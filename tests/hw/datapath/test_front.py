# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""DataFront: how fast an op passes; alone, beside a model of its contract."""

import dataclasses

from data_speed import check_flow, flow

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.datapath.front import DataFront
from kelp_spec.config import named
from kelp_spec.metadata import DataOp
from kelp_verif.harness.runner import Model, run_cocotb

UNIT = named("unit")
MANY = UNIT.with_(frames=(60, 60, 8, 8))  # more than a bit for each


def test_latency_and_interval():
    block = DataFront(config=UNIT, axi=axi_signature(UNIT))
    ends, held = flow(block.i, block.o)
    answers = [(block.i.p.kind, DataOp.ANSWER), (block.room, 1), (block.o_write.ready, 1)]
    check_flow(block, held=held + answers, **ends)


def test_each_op_and_read_request_is_the_models():
    records = run_cocotb(
        DataFront(config=MANY, axi=axi_signature(MANY)),
        bench="kelp_verif.datapath.front_bench",
        test=["contract", "flipped_requests"],
        params={"config": dataclasses.asdict(MANY), "cycles": 20_000},
        model=Model(public=[("top.*_requests", "rows")]),
        timeout_s=100,
    ).records
    few = {
        "ops": 3000,
        "poisoned": 100,
        "spared": 100,
        "asked": 1000,
        "turns": 300,
        "full": 20,
        "reset": 2,
    }
    assert all(records[name] >= count for name, count in few.items()), records
