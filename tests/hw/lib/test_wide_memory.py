# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""WideMemory: how fast it is read."""

import pytest
from timing import check_memory

from kelp_hw.lib.wide_memory import WideMemory


@pytest.mark.parametrize("depth", [4, 32], ids=["LUT RAM", "block RAM"])
def test_latency_and_interval(depth):
    check_memory(WideMemory(depth=depth, shape=8))


@pytest.mark.parametrize("options", [{}, {"transparent": False, "granularity": 4}])
def test_block_ram_keeps_no_promise_in_the_cycle_of_a_write(options):
    """Its behaviour is the macro's, in the data path's bench (`BLOCKS`)."""
    with pytest.raises(ValueError, match="block = True is refused"):
        WideMemory(depth=4, shape=8, block=True, **options)
