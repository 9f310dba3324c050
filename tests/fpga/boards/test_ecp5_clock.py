# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The PLL's dividers."""

import pytest

from kelp_fpga.boards.ecp5_clock import pll_dividers


@pytest.mark.parametrize("mhz, made", [(80, 80), (125, 125), (100, 100), (62.5, 62.5)])
def test_pll_makes_the_clock(mhz, made):
    reference, feedback, output = pll_dividers(int(mhz * 1e6))
    assert (
        25 / reference * feedback == made
        and 400 <= made * output <= 800
        and 25 / reference >= 3.125
    )


def test_pll_refuses_what_it_cannot_make():
    with pytest.raises(ValueError, match="hz = 77777777 is refused"):
        pll_dividers(77_777_777)
