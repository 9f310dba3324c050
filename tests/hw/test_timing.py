# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY` and `INTERVAL` of the FIFO before the data path; `make bench` measures the endpoint."""

from amaranth.hdl import Mux
from timing import changes

from kelp_hw.endpoint import DataFifo
from kelp_spec.config import named


def test_data_fifo_passes_an_op_a_cycle():
    block = DataFifo(config=named("unit"))
    seen = changes(
        block,
        lambda dut: Mux(dut.o.valid, dut.o.p.offset, 0),
        [{"i.valid": 1, "i.p.offset": offset} for offset in (1, 2, 3)],
        prepare={"o.ready": 1},
    )
    assert seen == [block.LATENCY + k * block.INTERVAL for k in range(3)]
