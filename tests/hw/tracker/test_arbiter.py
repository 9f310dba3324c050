# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Arbiter: how fast a request passes; the tracker's bench judges whom it takes."""

from amaranth.hdl import Mux
from timing import check_interval, offers

from kelp_hw.tracker.arbiter import Arbiter
from kelp_spec.config import named

UNIT = named("unit")


def admitted(dut):
    """The request that the arbiter takes and sends on in one cycle."""
    return Mux(dut.i_request.ready & dut.o_valid, dut.o_entering.request.page, 0)


def test_latency_and_interval():
    check_interval(
        lambda: Arbiter(config=UNIT),
        "LATENCY",
        admitted,
        offers(stream="i_request", field="page"),
        prepare={"credits": 63, "credits_ahead": 63},
    )
