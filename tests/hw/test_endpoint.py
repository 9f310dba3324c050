# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The whole endpoint under constrained-random traffic: kelp_verif.endpoint.endpoint_bench with
several mixes (spec §3, §4)."""

import dataclasses

import pytest

from kelp_rtl.verilator import QUICK_OPT
from kelp_spec.config import named
from kelp_spec.policy import Policy
from kelp_verif.endpoint.endpoint_top import FlatEndpoint
from kelp_verif.harness.runner import Model, run_cocotb

# The first test builds the model. No file takes longer: by its limit, workers begin with it.
pytestmark = pytest.mark.timeout(2400)

UNIT = named("unit")
#: With eight codec lanes whatever goes through the data path keeps four cycles' distance, and the
#: model has two thirds of the logic.
NARROW = UNIT.with_(name="unit_narrow", codec_lanes=8)
EASY = {"req": 0.9, "rwd": 0.7, "ready": 1.0, "pages": 4, "dwell": 400, "sequential": 0.9}
ROUGH = {"req": 0.6, "rwd": 0.5, "ready": 0.5, "pages": 5, "dwell": 150, "hint": 0.1}
STORM = {"req": 0.8, "rwd": 0.4, "ready": 0.7, "pages": 40, "dwell": 100}
AHEAD = {
    "req": 0.15,
    "rwd": 0.05,
    "ready": 0.8,
    "pages": 3,
    "dwell": 60,
    "hint": 0.4,
    "spec_read": 0.5,
}
LOUD = {
    "req": 0.7,
    "rwd": 0.6,
    "ready": 0.8,
    "pages": 4,
    "dwell": 300,
    "poison": 0.1,
    "odd": 0.1,
    "loud": True,
}
FAULTY = {"once": 0.08, "for_good": 0.05, "silent": 0.3, "deaf": 0.3}
FLIPS = {"single": 2, "double": 2, "wild_single": 1, "wild_double": 1, "advance": 1}
LIFE = {"reopen": 4, "advance": 2, "peer": 2}


def runner_of(config, opt=QUICK_OPT):
    """Runs one test of the bench on an endpoint of `config`: phases of `cycles` cycles, one for
    each mix, everything else as the phase says; `bench` are more of the bench's parameters."""
    endpoint = FlatEndpoint(config=config)

    def run(mixes, cycles, *, test="random_traffic", at_least=None, bench=None, seed=None, **plan):
        params = {
            "config": dataclasses.asdict(config),
            "phases": [{"cycles": cycles, "mix": mix} | plan for mix in mixes],
            "at_least": at_least or {},
            **(bench or {}),
        }
        result = run_cocotb(
            endpoint,
            bench="kelp_verif.endpoint.endpoint_bench",
            test=test,
            seed=seed,
            params=params,
            timeout_s=1200,
            model=Model(public=[("*tracker*words*bank_0", "memory")], opt=opt),
        )
        print(f"{result.records['cycles']} cycles", result.records["coverage"])
        return result.records["coverage"]

    return run


@pytest.fixture(
    scope="module",
    params=[
        # A model that nothing else needs, two minutes of processor time: `make test` has the
        # compiled driver before the endpoint, this bench a library of AXI that is not ours.
        pytest.param(NARROW, id="narrow", marks=pytest.mark.night),
        pytest.param(UNIT, id="unit", marks=pytest.mark.slow),  # a model of its own
    ],
)
def run(request):
    return runner_of(request.param)


def test_traffic(run):
    """Back-pressure of every kind; pages come and go between the pools and the flash."""
    # (A pool without a victim is rare: all that it has must be pinned or in use.)
    run(
        [EASY, ROUGH, STORM, STORM | {"hint": 0.3}, AHEAD, AHEAD, LOUD],
        6000,
        at_least={
            "hit": 100,
            "miss": 40,
            "park": 200,
            "allocate": 10,
            "allocate_waits": 3,
            "read_absent": 30,
            "hit_writing_back": 3,
            "cancelled_write_back": 3,
            "cold_write_backs": 40,
            "cold_fetches": 40,
            "evicted_missed": 10,
            "flip_retry": 1,
            "prefetch": 5,
            "useful": 1,
            "useless": 1,
            "hint_mass": 5,
            "hint_prefetch": 5,
            "hint_pin": 2,
            "hint_release": 5,
            "mass": 5,
            "pin": 2,
            "unpin": 5,
            "step": 10,
            "spec_read": 50,
            "no_victim": 1,
            "out_of_map": 8,
            "foreign_ld": 8,
            "unknown_opcode": 8,
            "read_poison": 20,
            "formats": 3,
            "exact_logs": 2,
            "irq": 1,
            "irq_masked": 1,
        },
    )


def test_faults(run):
    """A flash that fails, once or for good, and that does not answer."""
    run(
        [STORM, ROUGH, AHEAD],
        7000,
        faults=FAULTY,
        actions={"advance": 1},
        at_least={
            "cold_retry": 10,
            "cold_timeout": 4,
            "cold_failed_fetches": 1,
            "cold_failed_write_backs": 1,
            "fill_failed": 1,
            "failed_release": 1,
            "advance": 5,
            "read_poison": 5,
            "miss": 40,
            "cancelled_write_back": 3,
        },
    )


def test_flipped_bits(run):
    """One or two bits of a page word flip, with and without requests under way to the page."""
    run(
        [STORM, ROUGH, AHEAD],
        7000,
        actions=FLIPS,
        at_least={
            "flip_1": 3,
            "flip_2": 3,
            "flip_1_wild": 1,
            "flip_2_wild": 1,
            "corrected": 4,
            "uncorrected": 4,
            "read_lost": 1,
            "write_lost": 1,
            "recover": 1,
            "read_poison": 5,
            "miss": 40,
        },
    )


#: Of a run that draws watermarks of 1 and 2 beside small pools: of 5500 prefetches 24 found a
#: frame in 400 000 cycles, and none was late.
BARREN = 76646731


@pytest.mark.parametrize(
    "seed",
    [pytest.param(None, id="any"), pytest.param(BARREN, id="barren", marks=pytest.mark.slow)],
)
def test_close_and_reopen(run, seed):
    """Sessions close under traffic, their frames come back, and they open anew with another shape
    and other formats."""
    # (Late prefetches are rare: a page has to be asked for between its prefetch and its fetch.)
    run(
        [STORM, ROUGH, *5 * [AHEAD | {"pages": 8, "dwell": 15}], AHEAD],
        6000,
        actions=LIFE,
        seed=seed,
        at_least={
            "open": 6,
            "close": 6,
            "scrub": 200,
            "scrub_retry": 5,
            "unsure": 5,
            "closed_session": 5,
            "refused_command": 1,
            "peer": 1,
            "formats": 4,
            "miss": 20,
            "late": 1,
        },
    )


def test_reset(run):
    """A reset under traffic: nothing older is answered after it, nothing of before it is seen."""
    run(
        [STORM, ROUGH, AHEAD],
        2500,
        test="reset_under_traffic",
        actions={"advance": 1},
        at_least={"open": 8, "miss": 10, "read_absent": 50, "reset_in_flight": 3},
    )


def test_everything_at_once(run):
    run(
        [STORM, ROUGH, AHEAD],
        10_000,
        faults=FAULTY,
        actions=LIFE | FLIPS | {"single": 4, "double": 4},
        at_least={
            "close": 3,
            "flip_1": 1,
            "flip_2": 1,
            "cold_retry": 5,
            "cold_timeout": 2,
            "miss": 20,
            "cold_write_backs": 20,
        },
    )


@pytest.mark.parametrize("fmt", ["int4", "raw16"])
def test_four_frames_under_policy_kelp(run, fmt):
    """The documented reserve, prefetch of the next layer's pages, four frames: every line is right,
    and nothing stands still (docs/design.md §11; tests/hw/test_progress.py has many seeds)."""
    calm = {"pages": 10, "dwell": 120, "hint": 0.0, "odd": 0.0, "poison": 0.0, "spec_read": 0.0}
    run(
        [calm | {"req": 0.8, "rwd": 0.3, "ready": ready, "prefetch": 8} for ready in (1, 0.7, 0.5)],
        1000,
        actions={"advance": 1},
        bench={
            "settings": {
                "low_water": 0,
                "high_water": 1,
                "limit": 4,
                "policy": Policy.KELP,
                "format": fmt,
            },
            "standstill": 4000,
        },
        at_least={"miss": 10, "cold_write_backs": 10},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "mix", [EASY, ROUGH, STORM, AHEAD, LOUD], ids=["easy", "rough", "storm", "ahead", "loud"]
)
def test_soak(run, mix):
    run([mix] * 4, 40_000, faults=FAULTY, actions=LIFE | FLIPS)


#: No size is a power of two that need not be one.
ODD = {"sessions": 3, "queues": 5, "frames": (11, 5, 7, 5), "candidates": 5}


@pytest.mark.slow  # a model of its own
def test_everything_with_odd_sizes():
    """The same with fifteen queues a session, five layers of three heads; a pool whose pages have
    keys and values of different formats."""
    odd = ODD | {"queues": 15, "pool_formats": ("raw16", "int8/int4", "int8", "int4")}
    runner_of(NARROW.with_(name="unit_odd", **odd), opt="-O0")(
        [EASY, STORM, ROUGH],
        8000,
        faults=FAULTY,
        actions=LIFE | FLIPS | {"single": 5},
        bench={"settings": {"shape": (5, 3)}},
        at_least={
            "close": 3,
            "flip_1": 1,
            "hit": 50,
            "miss": 20,
            "cold_write_backs": 20,
            "formats": 3,
        },
    )


@pytest.mark.slow  # a model of its own
def test_everything_without_codecs():
    """raw16 alone: no quantiser, no dequantiser, no scale lines; line-wide memories in block RAM.
    And descriptors of any shape."""
    runner_of(UNIT.with_(name="unit_raw", codecs=False, wide_blocks=True, **ODD), opt="-O0")(
        [EASY, STORM, ROUGH],
        8000,
        faults=FAULTY,
        actions=LIFE | FLIPS | {"single": 5},
        at_least={
            "close": 3,
            "flip_1": 1,
            "hit": 50,
            "miss": 20,
            "cold_write_backs": 20,
            "formats": 1,
        },
    )


@pytest.mark.slow
def test_traffic_through_flits():
    """Host packer, device unpacker, endpoint, device packer, host unpacker; no flit is refused. A
    read and a write are in no order on a link, so phases have either, and each settles."""
    config = named("unit_flit")
    assert config == UNIT.with_(name="unit_flit", flits=16)
    writes, reads = EASY | {"req": 0}, ROUGH | {"rwd": 0}
    runner_of(config, opt="-O0")([writes, reads, ROUGH | {"req": 0}, EASY | {"rwd": 0}], 400)
