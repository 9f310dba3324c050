# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""FreeList: how fast it gives numbers and counts them; a proof says that each is given once."""

import pytest
from timing import check_fifo, check_pace

from kelp_hw.lib.free_list import FreeList


def test_latency_and_interval():
    check_fifo(FreeList(count=4, first=1))


def test_level_latency_and_interval():
    check_pace(FreeList(count=4), "LEVEL_LATENCY", "level", [{"o.ready": 1}] * 3)


def test_an_empty_list_is_refused():
    with pytest.raises(ValueError, match="count = 0 is refused"):
        FreeList(count=0)
