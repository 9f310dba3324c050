# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The AXI4 front end against cocotbext-axi's manager."""

import pytest

from kelp_fpga.axi_front import AxiFront
from kelp_verif.runner import run_cocotb


def test_axi_front_end():
    result = run_cocotb(AxiFront(id_bits=8), bench="kelp_verif.axi_front_bench", timeout_s=250)
    rates = result.records["beats_per_cycle"]
    print(rates)
    assert rates["writes"] > 0.95 and rates["reads"] > 0.95 and rates["both"] > 1.9
    assert len(result.tests) == 3


@pytest.mark.parametrize("parameters, message", [({"depth": 100}, "depth = 100"), ({"address_bits": 64}, "address_bits = 64")])
def test_axi_front_end_refuses(parameters, message):
    with pytest.raises(ValueError, match=message):
        AxiFront(**parameters)
