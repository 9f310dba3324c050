# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer, its park lists and free lists."""

import pytest

from kelp_hw.lib.free_list import FreeList
from kelp_hw.miss.miss_buffer import MissBuffer
from kelp_hw.miss.park_lists import ParkLists
from kelp_spec.config import named
from kelp_verif.harness.runner import made, run_cocotb


def test_every_miss_comes_home():
    params = {"config": "unit", "cycles": 20_000}
    seen = run_cocotb(
        made(MissBuffer, config=named("unit")),
        bench="kelp_verif.miss.miss_buffer_bench",
        params=params,
        timeout_s=280,
    ).records["seen"]
    for what in (
        "DEMAND",
        "ALLOCATE",
        "PREFETCH",
        "GRANT",
        "FILL",
        "REPLAY",
        "FLIP",
        "FLIP retry",
        "GRANT retry",
        "raised",
        "orphan",
    ):
        assert seen.get(what, 0) >= 3, f"{what} was not exercised: {seen}"


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="margin = 33 is refused; legal: 1 … 32"):
        MissBuffer(config=named("unit"), margin=33)
    with pytest.raises(ValueError, match="count = 0 is refused"):
        FreeList(count=0)
    with pytest.raises(ValueError, match="nodes = True is refused"):
        ParkLists(lists=2, nodes=True, shape=4)
