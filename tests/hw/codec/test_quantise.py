# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Quantiser: as fast as it says and the specification asks; `test_codec.py` compares answers."""

import numpy as np
import pytest
from amaranth.lib import data

from kelp_hw.codec.quantise import Quantiser
from kelp_spec.formats import ELEMENTS, Format, HostType
from kelp_verif.codec.codec_cases import mixed_lines
from kelp_verif.codec.codec_model import META_BITS, pack_lines, rtl_encode
from kelp_verif.harness.runner import run_cocotb

#: Elements at a time: a line at once, or in two or four beats. Two are as four, but a model each.
LANES = (32, pytest.param(16, marks=pytest.mark.slow), 8)


@pytest.mark.parametrize("host_type", HostType, ids=lambda h: h.name.lower())
@pytest.mark.parametrize("fmt", Format, ids=lambda f: f.label)
@pytest.mark.parametrize("lanes", LANES)
def test_latency_and_interval(lanes, fmt, host_type):
    rng = np.random.default_rng(16)
    lines = mixed_lines(rng, 10_000)[0]
    run = rtl_encode(pack_lines(lines, int(host_type), int(fmt)), lanes=lanes)
    component = Quantiser(meta_shape=0, lanes=lanes)
    assert (run.given - run.accepted == component.LATENCY).all()
    assert run.given[-1] - run.given[0] == (len(run.given) - 1) * component.INTERVAL


@pytest.mark.parametrize("lanes", (32, 16, 8))
def test_latency_keeps_the_specification(lanes):
    # Spec §10 asks for 12, of a block that takes a line a cycle.
    turn = ELEMENTS // lanes
    assert Quantiser(meta_shape=0, lanes=lanes).LATENCY <= 11 + turn


@pytest.mark.parametrize(
    "lanes",
    # 32 is a model that no other test needs: test_codec.py has its streams and its back-pressure.
    [pytest.param(32, id="32lanes", marks=pytest.mark.slow), pytest.param(8, id="8lanes")],
)
def test_bench(lanes):
    component = Quantiser(meta_shape=META_BITS, lanes=lanes)
    params = {
        "block": "Quantiser",
        "latency": component.LATENCY,
        "turn": component.INTERVAL,
        "count": 1500,
    }
    run_cocotb(component, bench="kelp_verif.codec.codec_bench", params=params)


def test_meta_may_be_a_struct_or_empty():
    for shape, width in ((data.StructLayout({"tag": 16, "slot": 5}), 21), (0, 0)):
        component = Quantiser(meta_shape=shape)
        assert component.o_layout["meta"].width == width
    with pytest.raises(TypeError):
        Quantiser(meta_shape="wide")
