# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""ExcessTree: alone, beside a model of its contract, through resets, too."""

import dataclasses

from kelp_hw.eviction.excess_tree import ExcessTree
from kelp_spec.config import named
from kelp_verif.harness.runner import made, run_cocotb

ODD = named("unit").with_(queues=3)  # six leaves of eight are somebody's


def test_roots_latency_and_interval():
    records = run("contract", walks=1000)
    assert records["walks"] >= 1000 and records["ties"] >= 50, records
    dut = ExcessTree(config=ODD)
    assert dut.INTERVAL == dut.LATENCY + 1  # the bench gives a leaf as soon as another is done


def test_nothing_outlives_a_reset():
    records = run("nothing_outlives_a_reset")
    assert records["resets"] == 4, records


def test_a_reset_ends_a_walk():
    records = run("a_reset_ends_a_walk")
    assert records["resets"] > ExcessTree(config=ODD).LATENCY, records


def run(test, **params):
    return run_cocotb(
        made(ExcessTree, config=ODD),
        bench="kelp_verif.eviction.excess_tree_bench",
        test=test,
        params={"config": dataclasses.asdict(ODD)} | params,
        timeout_s=100,
    ).records
