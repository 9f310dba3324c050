# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""HotPages: how fast a page that is met again is found."""

import pytest
from timing import check_interval, varied

from kelp_hw.tracker.hot_pages import HotPages
from kelp_spec.config import named

UNIT = named("unit")


@pytest.mark.parametrize(("attribute", "output"), [("LATENCY", "entry"), ("HIT_LATENCY", "hit")])
def test_latency_and_interval(attribute, output):
    check_interval(
        lambda: HotPages(config=UNIT),
        attribute,
        output,
        varied("same", (1, 0, 1)),
        prepare={"page.page": 1, "ahead.page": 1},
        before=[{"keep": 1, "new.frame": 5}],
    )
