# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer, its park lists and free lists."""

from kelp_hw.miss_buffer import MissBuffer
from kelp_spec.config import named
from kelp_verif.runner import run_cocotb


def test_every_miss_comes_home():
    records = run_cocotb(MissBuffer(config=named("unit")), bench="kelp_verif.miss_buffer_bench", params={"config": "unit", "cycles": 20_000}, timeout_s=100).records
    seen = records["seen"]
    for what in ("DEMAND", "ALLOCATE", "PREFETCH", "GRANT", "FILL", "REPLAY", "FLIP", "FLIP retry", "raised", "orphan"):
        assert seen.get(what, 0) > 5, f"{what} was not exercised: {seen}"
