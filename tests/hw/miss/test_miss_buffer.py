# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer: every miss comes home, and how soon it is filled."""

import pytest
from timing import changes

from kelp_hw.miss.miss_buffer import MissBuffer
from kelp_spec.config import named
from kelp_spec.metadata import Op, Outcome
from kelp_verif.harness.flips import PUBLIC
from kelp_verif.harness.runner import Model, made, run_cocotb


def test_it_fills_after_its_latency():
    missed = {
        "i_result.valid": 1,
        "i_result.p.op.kind": int(Op.PREFETCH),
        "i_result.p.outcome": int(Outcome.MISSED),
    }
    fill = changes(
        MissBuffer(config=named("unit")),
        "o_op.valid",
        [{"i_fetched.valid": 1}],
        prepare={"o_op.ready": 1},
        before=[{"o_miss_free.ready": 1}, missed],
    )
    assert fill == [MissBuffer.LATENCY]


def test_every_miss_comes_home():
    params = {"config": "unit", "cycles": 20_000}
    seen = run_cocotb(
        made(MissBuffer, config=named("unit")),
        bench="kelp_verif.miss.miss_buffer_bench",
        model=Model(public=PUBLIC),
        params=params,
        timeout_s=280,
    ).records["seen"]
    for what in (
        "DEMAND",
        "ALLOCATE",
        "PREFETCH",
        "GRANT",
        "FILL",
        "REPLAY",
        "FLIP",
        "FLIP retry",
        "GRANT retry",
        "raised",
        "orphan",
    ):
        assert seen.get(what, 0) >= 3, f"{what} was not exercised: {seen}"


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match="margin = 33 is refused; legal: 1 … 32"):
        MissBuffer(config=named("unit"), margin=33)
