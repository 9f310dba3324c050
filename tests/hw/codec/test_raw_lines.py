# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Raw lines: how fast they pass where no format but raw16 is built."""

import pytest
from data_speed import check_flow, flow

from kelp_hw.codec.raw_lines import RawDequantiser, RawQuantiser


@pytest.mark.parametrize("make", [RawQuantiser, RawDequantiser])
def test_latency_and_interval(make):
    block = make(meta_shape=4)
    ends, held = flow(block.i, block.o)
    check_flow(block, held=held, **ends)
