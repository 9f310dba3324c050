# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Egress: answers of the data path and of the side onto S2M DRS and NDR."""

import pytest

from kelp_hw.host.egress import Egress
from kelp_spec.config import named
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.runner import made, run_cocotb


def run(test, block=Egress, **params):
    return run_cocotb(
        made(block, config=named("unit")),
        bench="kelp_verif.host.egress_bench",
        test=test,
        params={"config": "unit", **params},
        timeout_s=120,
    ).records


def test_every_answer_leaves_once_in_its_order():
    records = run(["random_answers", "full_rate"], cycles=10_000)
    wanted = [
        "i drs",
        "i ndr",
        "i_window drs",
        "i_window ndr",
        "nxm",
        "poison",
        "both taken",
        "i gives way",
        "i_window gives way",
        "drs held back",
        "ndr held back",
        "reset of an answer",
        "fatal i drs",
        "fatal i ndr",
        "fatal i_window drs",
    ]
    assert {
        what: records["seen"].get(what, 0) for what in wanted if records["seen"].get(what, 0) < 3
    } == {}
    assert records["rates"] == {"alone": [1.0, 0.0], "shared": [0.5, 0.5]}


def test_the_bench_catches_a_planted_bug():
    with pytest.raises(AssertionError, match="failed with seed"):
        run(
            "random_answers",
            mutant(
                Egress,
                "side_turn & ~self.i_window.p.write",
                "self.i_window.valid & ~self.i_window.p.write",
            ),
            cycles=2_000,
        )


def test_bad_parameters_are_refused():
    with pytest.raises(TypeError, match="config must be a kelp_spec.Config, not None"):
        Egress(config=None)
