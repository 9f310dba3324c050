# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Exp2: its latency and what it refuses; the priority unit's bench compares its values."""

import pytest
from timing import check_pace, varied

from kelp_hw.lib.exp2 import Exp2


def test_latency_and_interval():
    check_pace(Exp2(bias=0), "LATENCY", "halving", varied("steps", mantissa=1 << 15))


def test_bias_is_checked():
    with pytest.raises(ValueError, match="bias = 9 .*0 … 8"):
        Exp2(bias=9)
