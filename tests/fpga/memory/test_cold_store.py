# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A board's cold tier, its memory test and what they share the memory by."""

import pytest

from kelp_fpga.memory.block_store import LINE_RAM
from kelp_fpga.memory.cold_store import ColdStore
from kelp_spec.config import named
from kelp_verif.fpga.memory_top import MemorySide
from kelp_verif.harness.runner import Model, run_cocotb


@pytest.mark.parametrize("ultra", [False, True], ids=["block RAM", "UltraRAM"])
@pytest.mark.sampled
def test_cold_tier_and_memory_test(ultra):
    result = run_cocotb(
        MemorySide(named("unit"), ultra=ultra),
        bench="kelp_verif.fpga.cold_store_bench",
        params={"config": "unit"},
        timeout_s=200,
        model=Model(sources=[LINE_RAM] if ultra else []),
    )
    assert len(result.tests) == 3


@pytest.mark.parametrize(
    "build, message",
    [
        (
            lambda: ColdStore(config=named("unit"), first_line=0, lines=3, address_bits=25),
            "lines = 3 is refused",
        ),
        (
            lambda: ColdStore(
                config=named("unit").with_(half_lines=256),
                first_line=0,
                lines=1 << 16,
                address_bits=25,
            ),
            "half_lines = 256 is refused",
        ),
    ],
)
def test_what_does_not_fit_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
