# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A dummy of a given size, and what its command says."""

import pytest
from command import kelp

from kelp_fpga.configs import board_config
from kelp_fpga.flow.build import size
from kelp_fpga.flow.dummy import Dummy, dummy


@pytest.mark.night
def test_a_dummy_is_as_large_as_asked_for(tmp_path):
    """With the real tools: 4 block RAMs with 60 chains of 5 functions around each, none of which
    may go; so few map worse than a device full."""
    figures = size(
        "ulx3s_85f",
        board_config("first_light"),
        directory=tmp_path,
        hz=80_000_000,
        top=dummy(luts=1200 / 83640, ebr=4 / 208, far=0.1),
    )
    assert figures["ebr"] == 4 and 1200 <= figures["luts"] < 1500 and figures["ffs"] >= 240


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"luts": 100, "ebr": 4},
            "100 tables around 4 block RAMs are refused; legal: one block RAM and up, and 230",
        ),
        ({"luts": 1000, "ebr": 0}, "1000 tables around 0 block RAMs"),
        ({"far": 1.5}, "far = 1.5 is refused; legal: 0 to 1"),
    ],
)
def test_a_dummy_that_cannot_be_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        Dummy(**({"luts": 1000, "ebr": 4, "far": 0.1} | asked), hz=80_000_000)


def test_the_dummys_command_says_what_is_wrong(tmp_path):
    done = kelp("fpga", "dummy", "--luts", "0.1")
    assert (
        done.returncode == 1
        and "84 tables around 166 block RAMs are refused" in done.stderr
        and "Traceback" not in done.stderr
    )
    done = kelp("fpga", "dummy", "--mhz", "81.7", "--luts", "50")
    assert (
        done.returncode == 1
        and "hz = 81700000 is refused" in done.stderr
        and "Traceback" not in done.stderr
    )
