# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Sram: how fast it is read; a macro of slices is one memory."""

import re

import pytest
from timing import check_memory

from kelp_hw.export.verilog import to_verilog
from kelp_hw.lib.sram import Sram
from kelp_verif.harness.runner import run_cocotb

SLICES = [(640, 27, 9), (640, 27, 4), (300, 1, 1)]


def sliced(depth, width, bits):
    return Sram(depth=depth, shape=width, macro=True, slice_bits=bits)


@pytest.mark.parametrize(("depth", "width", "bits"), SLICES)
@pytest.mark.sampled
def test_reads_what_was_written(depth, width, bits):
    run_cocotb(
        sliced(depth, width, bits),
        bench="kelp_verif.lib.split_sram_bench",
        test="reads_what_was_written",
        params={"depth": depth, "width": width, "latency": Sram.LATENCY},
        timeout_s=120,
    )


@pytest.mark.parametrize(("depth", "width", "bits"), [*SLICES, (640, 27, None)])
def test_slices_have_every_bit_once(depth, width, bits):
    verilog = to_verilog(sliced(depth, width, bits), name="top")
    widths = [int(found, 0) for found in re.findall(r"\.WIDTH\((?:32'd)?(\w+)\)", verilog)]
    assert sum(widths) == width and all(each <= (bits or width) for each in widths)
    assert len(widths) == -(-width // (bits or width))


def test_latency_and_interval():
    check_memory(Sram(depth=4, shape=8))
