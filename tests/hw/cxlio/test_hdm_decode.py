# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Host addresses to device addresses: edges of windows, ways, the DVSEC range."""

import random

import pytest
from streams import Ends, pump
from timing import check_pace, offers

from kelp_golden.cxlio.hdm import HdmDecoders as Golden
from kelp_golden.cxlio.hdm import Window
from kelp_golden.cxlio.registers import Registers
from kelp_hw.cxlio.hdm_decode import HdmDecode
from kelp_spec.cxlio.component import component_registers
from kelp_spec.cxlio.config import UNIT_BYTES, named_cxlio

CONFIG = named_cxlio("full").replace(name="large", capacity=64, decoders=2)
TOP = 1 << 52


def decoded(windows, lines, **held):
    """What the block makes of host lines."""
    dut = HdmDecode(config=CONFIG)
    packed = [
        {
            "on": 1,
            "base": w.base // UNIT_BYTES,
            "size": w.size // UNIT_BYTES,
            "ways": w.ways.bit_length() - 1,
            "granularity": w.granule.bit_length() - 9,
            "dpa": w.dpa // UNIT_BYTES,
        }
        for w in windows
    ]
    ends = Ends(
        sends={"i": lines}, takes=("o",), offer=0.7, take=0.7, held={"windows": packed, **held}
    )
    seen = pump(dut, ends, cycles=6 * len(lines) + 50, seed=3)["o"]
    return [(t.item["hit"], t.item["line"] if t.item["hit"] else 0) for t in seen]


def test_windows_and_ways():
    rng = random.Random(5)
    for _ in range(6):
        ways = [1 << rng.randrange(4) for _ in range(2)]
        units = [rng.randrange(1, 3) * w for w in ways]
        first = rng.randrange(1 << 10)
        second = first + units[0] + rng.randrange(3)
        windows = [
            Window(first * UNIT_BYTES, units[0] * UNIT_BYTES, ways[0], 256 << rng.randrange(7), 0),
            Window(
                second * UNIT_BYTES,
                units[1] * UNIT_BYTES,
                ways[1],
                256 << rng.randrange(7),
                rng.randrange(2, 9) * UNIT_BYTES,
            ),
        ]
        golden = Golden(CONFIG, Registers(component_registers(CONFIG)))
        golden.windows = windows
        lines = []
        for w in windows:
            for edge in (w.base, w.base + w.size):
                lines += [edge // 64 + d for d in (-1, 0, 1)]
            lines += [(w.base + rng.randrange(w.size)) // 64 for _ in range(30)]
        lines = [line for line in lines if line >= 0]
        wanted = [golden.decode(64 * line) for line in lines]
        expected = [(0, 0) if a is None else (1, a // 64) for a in wanted]
        assert decoded(windows, lines, enable=1) == expected
        assert {hit for hit, _ in expected} == {0, 1}


def test_the_dvsec_range_decodes_while_the_decoders_do_not():
    windows = [Window(0, 2 * UNIT_BYTES, 1, 256, 0), Window(2 * UNIT_BYTES, UNIT_BYTES, 1, 256, 0)]
    base, end = 100 * UNIT_BYTES // 64, 164 * UNIT_BYTES // 64
    lines = [base - 1, base, end - 1, end, 5]
    range_ = {"mem_enable": 1, "range_base": 100}
    last = end - base - 1
    assert decoded(windows, lines, **range_) == [(0, 0), (1, 0), (1, last), (0, 0), (0, 0)]
    assert decoded(windows, lines) == [(0, 0)] * 5
    with_decoders = decoded(windows, lines, enable=1, **range_)
    assert with_decoders == [(0, 0)] * 4 + [(1, 5)]


def test_two_windows_of_one_line_are_an_assertion():
    with pytest.raises(AssertionError, match="a line in two windows"):
        decoded([Window(0, 2 * UNIT_BYTES, 1, 256, 0)] * 2, [5], enable=1)


def test_latency_and_interval():
    dut = HdmDecode(config=CONFIG)
    prepare = {"o.ready": 1, "mem_enable": 1}
    check_pace(dut, "LATENCY", "o.p.line", offers(), prepare=prepare)
