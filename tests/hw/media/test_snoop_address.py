# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Snoops carry the host's address, by windows or range."""

import pytest
from streams import Ends, pump
from timing import check_pace, offers, shown

from kelp_hw.media.snoop_address import SnoopAddress
from kelp_spec.cxlio.config import UNIT_BYTES, named_cxlio

CONFIG = named_cxlio("joined").replace(name="large", capacity=8)
LINES = UNIT_BYTES // 64


WINDOWS = [
    {"on": 1, "base": 40, "size": 2, "dpa": 0},
    {"on": 1, "base": 50, "size": 3, "dpa": 4},
]


@pytest.mark.parametrize("take", [1.0, 0.3])
def test_each_snoop_has_the_hosts_address(take):
    places = [(0, 40), (1, 41), (2, None), (4, 50), (6, 52), (7, None)]
    snoops = [{"bi_tag": i, "address": u * LINES + 5 + i} for i, (u, _) in enumerate(places)]
    held = {"decoding": {"windows": WINDOWS, "enable": 1}}
    ends = Ends(sends={"i": snoops}, takes=("o",), take=take, held=held)
    seen = pump(SnoopAddress(config=CONFIG), ends, cycles=80)["o"]
    assert [(t.item["bi_tag"], t.item["address"]) for t in seen] == [
        (i, u * LINES + 5 + i) for i, (_, u) in enumerate(places) if u is not None
    ]


def test_a_window_that_is_off_is_none():
    windows = [{"on": 0, "base": 60, "size": 8, "dpa": 0}]
    held = {"decoding": {"windows": windows, "enable": 1}}
    ends = Ends(sends={"i": [{"address": LINES}]}, takes=("o",), held=held)
    assert pump(SnoopAddress(config=CONFIG), ends, cycles=20)["o"] == []


def test_beyond_the_device_is_no_range():
    held = {"decoding": {"mem_enable": 1, "range_base": 100}}
    snoops = [{"address": unit * LINES} for unit in (CONFIG.capacity - 1, CONFIG.capacity)]
    ends = Ends(sends={"i": snoops}, takes=("o",), held=held)
    seen = pump(SnoopAddress(config=CONFIG), ends, cycles=20)["o"]
    assert [t.item["address"] for t in seen] == [(99 + CONFIG.capacity) * LINES]


def test_the_range_decodes_where_no_decoder_does():
    for enable, wanted in ((0, [102 * LINES + 1]), (1, [])):
        held = {"decoding": {"mem_enable": 1, "range_base": 100, "enable": enable}}
        ends = Ends(sends={"i": [{"address": 2 * LINES + 1}]}, takes=("o",), held=held)
        seen = pump(SnoopAddress(config=CONFIG), ends, cycles=20)["o"]
        assert [t.item["address"] for t in seen] == wanted


def test_latency_and_interval():
    hold = {"o.ready": 1, "decoding.mem_enable": 1}
    dut = SnoopAddress(config=CONFIG)
    check_pace(dut, "LATENCY", shown("o", "bi_tag"), offers(field="bi_tag"), prepare=hold)
