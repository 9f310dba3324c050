# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A deep memory in pieces: which there are, and that together they are one memory."""

import pytest
from timing import check_memory

from kelp_hw.lib.split_sram import SplitSram
from kelp_verif.harness.runner import run_cocotb

BLOCK = 18 << 10  #: bits of a block RAM


def test_latency_and_interval():
    check_memory(SplitSram(depth=4, shape=8))


@pytest.mark.parametrize(
    "depth, width", [(20480, 27), (640, 27), (8192, 26), (20480, 9), (5000, 40)]
)
@pytest.mark.sampled
def test_reads_what_was_written(depth, width):
    run_cocotb(
        SplitSram(depth=depth, shape=width),
        bench="kelp_verif.lib.split_sram_bench",
        test="reads_what_was_written",
        params={"depth": depth, "width": width, "latency": SplitSram.LATENCY},
        timeout_s=120,
    )


@pytest.mark.parametrize(
    "depth, width, number",
    [
        (4096, 27, 1),
        (8192, 26, 12),
        (20480, 27, 30),
        (20480, 9, 10),
        (16385, 40, 45),
        (1 << 20, 27, 1),
    ],
)
def test_pieces_hold_every_bit_once(depth, width, number):
    pieces = SplitSram.split(depth, width)
    assert (
        len(pieces) == number and sum(piece.rows * piece.bits for piece in pieces) == depth * width
    )
    assert len({(piece.first, piece.low) for piece in pieces}) == number
    if number > 1:
        assert all(piece.rows * piece.bits <= BLOCK for piece in pieces)


def test_bad_arguments():
    with pytest.raises(ValueError, match="depth = 0 is refused; legal: an integer of 1 and up"):
        SplitSram(depth=0, shape=1)
    with pytest.raises(
        ValueError, match="shape = 0 is refused; legal: a shape of at least one bit"
    ):
        SplitSram(depth=2, shape=0)
