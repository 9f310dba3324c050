# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Phase detector."""

import pytest
from timing import changes, check_pace

from kelp_golden.phase import PhaseDetector as GoldenDetector
from kelp_hw.control.phase import PHASE_WINDOW, PhaseDetector
from kelp_spec.config import named
from kelp_verif.harness.runner import run_cocotb

UNIT = named("unit")


def test_latency():
    request = {"i_op.valid": 1}
    options = {"prepare": {"open": 1}, "before": [request] * 15}
    check_pace(PhaseDetector(config=UNIT, window=16), "LATENCY", "decode", [request], **options)


def test_it_counts_a_request_of_each_lane_at_its_interval():
    block = PhaseDetector(config=UNIT, window=16)
    requests = [{"i_op.valid": 1, "i_hot.valid": 1}] * 8
    seen = changes(block, "decode", requests, prepare={"open": 1})
    assert seen == [7 * block.INTERVAL + block.LATENCY]


@pytest.mark.parametrize(
    ("writes", "decode"), [(0, True), (372, True), (373, False), (4096, False)]
)
def test_golden_threshold(writes, decode):
    golden = GoldenDetector()
    for n in range(4096):
        assert not golden.decode
        golden.request(n < writes)
    assert golden.decode == decode


@pytest.mark.parametrize(("window", "cycles"), [(64, 8_000), (PHASE_WINDOW, 6_000)])
def test_agrees_with_golden(window, cycles):
    result = run_cocotb(
        PhaseDetector(config=named("unit"), window=window),
        bench="kelp_verif.control.phase_bench",
        params={"config": "unit", "window": window, "cycles": cycles},
    )
    assert result.records["changes"] >= (10 if window == 64 else 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": 1}, "config = 1"),
        ({"config": named("unit"), "window": 100}, r"window = 100 .* power of two"),
    ],
)
def test_bad_parameters_are_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PhaseDetector(**arguments)
