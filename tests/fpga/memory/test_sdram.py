# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The SDRAM controller on a chip that checks its datasheet, and the chip's model itself."""

import pytest

from kelp_fpga.memory.sdram_timing import AS4C16M16SA_7, COMMON
from kelp_verif.fpga.chip import CHIP, VIOLATIONS, BareChip, SdramWithChip
from kelp_verif.fpga.sdram_chip_bench import COMMANDS
from kelp_verif.harness.runner import Model, made, run_cocotb


@pytest.mark.parametrize(
    "mhz",
    [pytest.param(50, marks=pytest.mark.night), pytest.param(80, marks=pytest.mark.night), 125],
)
def test_what_is_written_is_read_at_the_bandwidth_that_the_pins_have(mhz):
    records = {}
    # each from power-up: the chip must not miss refreshes in a reset
    for test in ("what_is_written_is_read", "bandwidth"):
        result = run_cocotb(
            made(SdramWithChip, hz=mhz * 1e6),
            bench="kelp_verif.fpga.sdram_bench",
            test=test,
            timeout_s=120,
            model=Model(sources=[CHIP], name=f"Sdram{mhz}"),
        )
        records |= result.records
    rates = records["bytes_per_cycle"]
    assert (
        rates["sequential_reads"] > 1.9
        and rates["sequential_writes"] > 1.9
        and rates["random_reads"] > 1.6
        and rates["copy"] > 1.6
    )
    assert records["latency"] < 60 and records["checked"] > 300
    print(f"{mhz} MHz: {records}")


_SET_UP = ("power-up", "init", "mode", "tCK")


def test_the_chip_accepts_what_is_right_and_sees_each_wrong_command():
    for test in ("a_right_sequence_is_accepted_and_reads_back", "each_wrong_command_is_seen"):
        result = run_cocotb(
            made(BareChip, hz=80e6),
            bench="kelp_verif.fpga.sdram_chip_bench",
            test=test,
            timeout_s=100,
            model=Model(sources=[CHIP]),
        )
        assert len(result.tests) == 1
    assert set(COMMANDS) | set(_SET_UP) == set(VIOLATIONS)


@pytest.mark.parametrize("name", _SET_UP)
@pytest.mark.sampled
def test_the_chip_sees_a_wrong_set_up(name):
    hz = 125e6 if name == "tCK" else 80e6  # CAS latency 2 at a period below tCK2
    for seed in range(1, 20):
        result = run_cocotb(
            made(BareChip, hz=hz),
            bench="kelp_verif.fpga.sdram_chip_bench",
            test="a_wrong_set_up_is_seen",
            params={"name": name},
            seed=seed,
            timeout_s=100,
            model=Model(sources=[CHIP]),
        )
        if result.records["clean"]:
            return
    raise AssertionError("in no run is the chip as it was before the set-up")


def test_a_clock_too_fast_is_refused():
    with pytest.raises(ValueError, match="133.3 MHz at most"):
        COMMON.cycles(150e6)
    assert AS4C16M16SA_7.cycles(125e6).cl == 3 and COMMON.cycles(80e6).cl == 2
