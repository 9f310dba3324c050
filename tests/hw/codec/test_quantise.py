# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Quantiser: as fast as it says and the specification asks; `test_codec.py` compares answers."""

import numpy as np
import pytest
from amaranth.lib import data
from streams import Ends, pump

from kelp_golden import codec
from kelp_hw.codec.quantise import Quantiser
from kelp_spec.formats import ELEMENTS, Format, HostType
from kelp_verif.codec.codec_cases import mixed_lines
from kelp_verif.codec.codec_model import META_BITS, pack_lines, rtl_encode
from kelp_verif.harness.runner import run_cocotb

#: Elements at a time: a line at once, or in two or four beats. The logic of a lane is the same, and
#: four beats have all the rest; each width is a model of its own, the largest of half a minute.
LANES = (*(pytest.param(wide, marks=pytest.mark.slow) for wide in (32, 16)), 8)


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


@pytest.mark.parametrize(
    ("fmt", "lanes", "count"),
    [
        (None, 32, 24),
        (Format.INT8, 8, 30),
        *((f, 8, 4) for f in Format),
    ],
)
@pytest.mark.sampled
def test_of_one_format_alone_or_of_a_whole_line(fmt, lanes, count):
    """A Quantiser that is made for it, amid pauses: answers, and when they come."""
    lines, host_types, formats = mixed_lines(np.random.default_rng(3), count)
    lines[1, 3] |= 0x7FFF  # a NaN
    formats[:5] = [*Format][:count]
    formats = formats if fmt is None else [fmt] * count
    dut = Quantiser(meta_shape=5, lanes=lanes, only=fmt)
    items = [
        {
            "line": int.from_bytes(line.astype("<u2").tobytes(), "little"),
            "host_type": int(host_type),
            "format": int(format_),
            "meta": n,
        }
        for n, (line, host_type, format_) in enumerate(zip(lines, host_types, formats, strict=True))
    ]
    cycles = int(count * dut.INTERVAL / 0.4) + 60
    seen = pump(dut, Ends(sends={"i": items}, takes=("o",), offer=0.8, take=0.6), cycles=cycles)
    assert len(seen["o"]) == count
    for n, found in enumerate(seen["o"]):
        payload, scale = codec.encode(lines[n][None], HostType(host_types[n]), Format(formats[n]))
        bits = int.from_bytes(payload[0].tobytes(), "little")
        assert (found.item.payload, found.item.scale) == (bits, int(scale[0])), n
        assert (found.item.format, found.item.meta) == (formats[n], n)
    seen = pump(dut, Ends(sends={"i": items[:3]}, takes=("o",)), cycles=60)
    apart = [o.offered - i.taken for i, o in zip(seen["i"], seen["o"], strict=True)]
    assert apart == [dut.LATENCY] * 3


def test_meta_may_be_a_struct_or_empty():
    for shape, width in ((data.StructLayout({"tag": 16, "slot": 5}), 21), (0, 0)):
        component = Quantiser(meta_shape=shape)
        assert component.o_layout["meta"].width == width
    with pytest.raises(TypeError):
        Quantiser(meta_shape="wide")
