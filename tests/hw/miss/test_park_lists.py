# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ParkLists: how fast an append is offered, and what is refused."""

import pytest
from timing import check_interval, offers, shown

from kelp_hw.miss.park_lists import ParkLists


def test_latency_and_interval():
    check_interval(
        lambda: ParkLists(lists=2, nodes=4, shape=4),
        "LATENCY",
        shown(),
        offers(field="data", **{"i.p.park": 1}),
        prepare={"o.ready": 1},
        before=[{"i.valid": 1, "i.p.create": 1}, {}, {"visit_start": 1}],
    )


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="nodes = True is refused"):
        ParkLists(lists=2, nodes=True, shape=4)
