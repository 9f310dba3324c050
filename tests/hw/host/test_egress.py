# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Egress: answers of the data path and of the side onto S2M DRS and NDR."""

import pytest
from timing import changes, check_pace, offers, shown

from kelp_hw.host.egress import Egress
from kelp_spec.config import named
from kelp_spec.metadata import Answer
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.runner import made, run_cocotb

UNIT = named("unit")
TAKEN = {"s2m_drs.ready": 1, "s2m_ndr.ready": 1}


@pytest.mark.parametrize(
    ("channel", "answer"), [("s2m_drs", Answer.DATA), ("s2m_ndr", Answer.CMP)], ids=["DRS", "NDR"]
)
def test_latency_and_interval(channel, answer):
    answers = offers(field="origin.tag")
    prepare = TAKEN | {"i.p.answer": answer}
    check_pace(Egress(config=UNIT), "LATENCY", shown(channel, "tag"), answers, prepare=prepare)


@pytest.mark.parametrize("write", [0, 1], ids=["DRS", "NDR"])
def test_answers_of_windows_leave_at_their_interval(write):
    answer = {"i_window.valid": 1, "i_window.p.write": write, "i_window.p.tag": 1}
    channel = "s2m_ndr" if write else "s2m_drs"
    seen = changes(Egress(config=UNIT), shown(channel, "tag"), [answer] * 6, prepare=TAKEN)
    # An answer stands for two cycles: it is sent in the second, and gone a cycle later.
    first = Egress.WINDOW_LATENCY
    assert seen[0::2] == [first + k * Egress.WINDOW_INTERVAL for k in range(3)]


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
