# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Dequantiser: as fast as it says and the design asks; `test_codec.py` compares answers."""

import numpy as np
import pytest
from amaranth.lib import data
from streams import Ends, pump

from kelp_hw.codec.dequantise import Dequantiser
from kelp_spec.formats import ELEMENTS, Format, HostType
from kelp_verif.codec.codec_bench import expected_lines
from kelp_verif.codec.codec_cases import mixed_stored
from kelp_verif.codec.codec_model import META_BITS, pack_stored, rtl_decode
from kelp_verif.harness.runner import run_cocotb

#: Elements at a time: a line at once, or in two or four beats. The logic of a lane is the same, and
#: four beats have all the rest; each width is a model of its own, the largest of half a minute.
LANES = (*(pytest.param(wide, marks=pytest.mark.slow) for wide in (32, 16)), 8)


@pytest.mark.parametrize("host_type", HostType, ids=lambda h: h.name.lower())
@pytest.mark.parametrize("fmt", Format, ids=lambda f: f.label)
@pytest.mark.parametrize("lanes", LANES)
def test_latency_and_interval(lanes, fmt, host_type):
    rng = np.random.default_rng(16)
    payload, scale, _, _ = mixed_stored(rng, 10_000)
    run = rtl_decode(pack_stored(payload, scale, int(host_type), int(fmt)), lanes=lanes)
    component = Dequantiser(meta_shape=0, lanes=lanes)
    assert (run.given - run.accepted == component.LATENCY).all()
    assert run.given[-1] - run.given[0] == (len(run.given) - 1) * component.INTERVAL


@pytest.mark.parametrize("lanes", (32, 16, 8))
def test_latency_keeps_the_specification(lanes):
    # The endpoint's cycle budget counts on 6 at most, of them a line's own (docs/design.md §1).
    turn = ELEMENTS // lanes
    assert Dequantiser(meta_shape=0, lanes=lanes).LATENCY <= 5 + turn


@pytest.mark.parametrize(
    "lanes",
    # 32 is a model that no other test needs: test_codec.py has its streams and its back-pressure.
    [pytest.param(32, id="32lanes", marks=pytest.mark.slow), pytest.param(8, id="8lanes")],
)
def test_bench(lanes):
    component = Dequantiser(meta_shape=META_BITS, lanes=lanes)
    params = {
        "block": "Dequantiser",
        "latency": component.LATENCY,
        "turn": component.INTERVAL,
        "count": 1500,
    }
    run_cocotb(component, bench="kelp_verif.codec.codec_bench", params=params)


def test_whole_lines():
    """Any format behind any other, amid pauses: answers, and when they come."""
    count, lanes = 24, 32
    columns = mixed_stored(np.random.default_rng(5), count)
    columns[3][:5] = [*Format]
    dut = Dequantiser(meta_shape=5, lanes=lanes)
    items = [
        {
            "payload": int.from_bytes(payload.tobytes(), "little"),
            "scale": int(scale),
            "host_type": int(host_type),
            "format": int(fmt),
            "meta": n,
        }
        for n, (payload, scale, host_type, fmt) in enumerate(zip(*columns, strict=True))
    ]
    wanted = expected_lines(*columns)
    ends = Ends(sends={"i": items}, takes=("o",), offer=0.8, take=0.6)
    seen = pump(dut, ends, cycles=int(count * dut.INTERVAL / 0.4) + 60)
    assert len(seen["o"]) == count
    for n, (found, line) in enumerate(zip(seen["o"], wanted, strict=True)):
        bits = int.from_bytes(line.astype("<u2").tobytes(), "little")
        assert (found.item.line, found.item.meta) == (bits, n), n
    seen = pump(dut, Ends(sends={"i": items[:3]}, takes=("o",)), cycles=60)
    apart = [o.offered - i.taken for i, o in zip(seen["i"], seen["o"], strict=True)]
    assert apart == [dut.LATENCY] * 3
    assert seen["i"][2].taken - seen["i"][1].taken == dut.INTERVAL


def test_meta_may_be_a_struct_or_empty():
    for shape, width in ((data.StructLayout({"tag": 16, "slot": 5}), 21), (0, 0)):
        component = Dequantiser(meta_shape=shape)
        assert component.o_layout["meta"].width == width
    with pytest.raises(TypeError):
        Dequantiser(meta_shape="wide")
