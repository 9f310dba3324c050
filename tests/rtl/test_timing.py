# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Shares of cycles as the compiled driver takes them."""

import pytest

from kelp_rtl.timing import chance


def test_a_share_below_one_is_never_always_and_one_above_none_is_never_never():
    """Stalls of each cycle would end in a standstill that nobody asked for."""
    assert chance("drs", 0.999995) == 65535 and chance("drs", 1 - 2**-53) == 65535
    assert chance("read_error", 0.999995, always=True) == 65535
    assert chance("failure_rate", 1e-9) == 1
    assert chance("drs", 0) == 0 and chance("drs", 0.5) == 32768
    assert chance("read_error", 1, always=True) == 65536


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, float("nan")])
def test_a_share_beyond_is_refused_by_name(share):
    with pytest.raises(ValueError, match="drs = .* is refused; legal: 0 … below 1"):
        chance("drs", share)
