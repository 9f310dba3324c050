# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A channel whose addresses are decoded: order, what goes along, what is in no window."""

import random

from streams import Ends, pump
from timing import check_pace, offers, shown

from kelp_hw.layouts import MESSAGES
from kelp_hw.media.decoded_channel import DecodedChannel
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


def test_latency_and_interval():
    dut = DecodedChannel(config=CONFIG, message=MESSAGES["M2SReq"])
    prepare = {"o.ready": 1, "decoding.mem_enable": 1}
    check_pace(dut, "LATENCY", shown("o", "tag"), offers(field="tag"), prepare=prepare)
