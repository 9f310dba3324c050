# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Delay: as late as it was told to be."""

import pytest
from timing import check_pace, varied

from kelp_hw.lib.delay import Delay


# Of a memory as deep as 2(cycles − 1), a row is as far ahead as behind.
@pytest.mark.parametrize("cycles", [2, 4, 7])
def test_latency_and_interval(cycles):
    check_pace(Delay(shape=8, cycles=cycles), "LATENCY", "o", varied("i"), prepare={"en": 1})
