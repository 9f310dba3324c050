# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A channel whose addresses are decoded: order, what goes along, what is in no window."""

import random

import pytest
from streams import Ends, pump
from timing import check_pace, offers, shown

from kelp_hw.layouts import MESSAGES
from kelp_hw.media.decoded_channel import DecodedChannel
from kelp_spec.coherence import MetaField, MetaValue
from kelp_spec.cxlio.config import named_cxlio

CONFIG = named_cxlio("joined")
UNIT_LINES = (256 << 20) // 64
NOWHERE = (1 << 46) - 1


def test_messages_keep_their_order_and_all_but_the_address():
    rng = random.Random(6)
    base = 14
    decoding = {
        "enable": 1,
        "windows": [
            {"on": 1, "base": base, "size": 1, "ways": 0, "granularity": 0, "dpa": 0},
            {"on": 0, "base": 0, "size": 0, "ways": 0, "granularity": 0, "dpa": 0},
        ],
    }
    given = []
    for tag in range(300):
        line = base * UNIT_LINES + rng.choice(
            (-1, 0, 1, UNIT_LINES - 1, UNIT_LINES, rng.randrange(UNIT_LINES))
        )
        given.append({"opcode": 1, "tag": tag, "address": line, "data": rng.getrandbits(512)})
    dut = DecodedChannel(config=CONFIG, message=MESSAGES["M2SRwD"])
    ends = Ends(sends={"i": given}, takes=("o",), offer=0.7, take=0.6, held={"decoding": decoding})
    seen = [t.item for t in pump(dut, ends, cycles=1200, seed=2)["o"]]
    assert len(seen) == len(given)
    for told, made in zip(given, seen, strict=True):
        offset = told["address"] - base * UNIT_LINES
        wanted = offset if 0 <= offset < UNIT_LINES else NOWHERE
        assert (made["tag"], made["data"]) == (told["tag"], told["data"])
        assert made["address"] == wanted


@pytest.mark.parametrize("enabled", [0, 1])
def test_the_range_of_the_dvsec_decodes_while_it_is_enabled(enabled):
    decoding = {"range_base": 3, "mem_enable": enabled}
    dut = DecodedChannel(config=CONFIG, message=MESSAGES["M2SReq"])
    given = [{"opcode": 1, "address": 3 * UNIT_LINES + n} for n in (0, 77)]
    ends = Ends(sends={"i": given}, takes=("o",), held={"decoding": decoding})
    seen = [t.item["address"] for t in pump(dut, ends, cycles=20)["o"]]
    assert seen == ([0, 77] if enabled else [NOWHERE] * 2)


@pytest.mark.parametrize("enabled", [0, 1])
def test_nothing_is_asked_for_that_must_not_be_granted(enabled):
    """Before the host lets snoops come, no message asks to hold a line."""
    config = CONFIG.replace(coherent=True)
    dut = DecodedChannel(config=config, message=MESSAGES["M2SReq"])
    given = [
        {"opcode": 1, "tag": i, "meta_field": i % 4, "meta_value": i // 4 % 4, "snp_type": i % 4}
        for i in range(16)
    ]
    held = {"decoding": {"mem_enable": 1}, "back_invalidate": enabled}
    ends = Ends(sends={"i": given}, takes=("o",), take=0.5, held=held)
    seen = [t.item for t in pump(dut, ends, cycles=120)["o"]]
    for told, made in zip(given, seen, strict=True):
        asks = told["meta_field"], told["meta_value"]
        shown_ = made["meta_field"], made["meta_value"]
        assert shown_ == (asks if enabled else (MetaField.NO_OP, MetaValue.INVALID))
        assert made["snp_type"] == told["snp_type"]


def test_latency_and_interval():
    dut = DecodedChannel(config=CONFIG, message=MESSAGES["M2SReq"])
    prepare = {"o.ready": 1, "decoding.mem_enable": 1}
    check_pace(dut, "LATENCY", shown("o", "tag"), offers(field="tag"), prepare=prepare)
