# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sram: how fast it is read."""

from timing import check_memory

from kelp_hw.lib.sram import Sram


def test_latency_and_interval():
    check_memory(Sram(depth=4, shape=8))
