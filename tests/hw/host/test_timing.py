# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""`LATENCY`, `INTERVAL` and the like of the blocks at the CXL.mem channels; those of a hint in the
window router, `test_windows.py` measures."""

import pytest
from amaranth.hdl import Mux
from timing import changes, port

from kelp_hw.host.egress import Egress
from kelp_hw.host.hints import HintAbsorber
from kelp_hw.host.ingress import Ingress
from kelp_hw.host.windows import WindowRouter
from kelp_spec.address import AddressMap, KvAddress
from kelp_spec.config import named
from kelp_spec.hints import HintKind, HintLine, pack
from kelp_spec.messages import M2SReq
from kelp_spec.metadata import Answer

UNIT = named("unit")
MAP = AddressMap(UNIT)


def shown(stream, field):
    """The payload's field while `stream` is valid."""
    return lambda dut: Mux(port(dut, f"{stream}.valid"), port(dut, f"{stream}.p.{field}"), 0)


def reads(opcode, addresses):
    return [
        {
            "m2s_req.valid": 1,
            "m2s_req.p.opcode": opcode,
            "m2s_req.p.address": address >> 6,
            "m2s_req.p.tag": tag,
        }
        for tag, address in enumerate(addresses, 1)
    ]


def line(kind):
    """A hint line of three entries, and two cycles in which they leave."""
    data = int.from_bytes(pack(HintLine(kind=kind, entries=(1, 2, 3)), UNIT), "little")
    return [{"i.valid": 1, "i.p.data": data}, {}, {}]


TAGS = (1, 2, 3)
PAGES = [MAP.encode(KvAddress(0, 0, page, 0, 0)) for page in (1, 2, 3)]
WRITES = [{"m2s_rwd.valid": 1, "m2s_rwd.p.data": data} for data in TAGS]
ANSWERS = [{"i.valid": 1, "i.p.origin.tag": tag} for tag in TAGS]
OPEN = {
    "enable": 1,
    "i_write_slot.valid": 1,
    "o_request.ready": 1,
    "o_window.ready": 1,
    "o_spec.ready": 1,
}
SESSION = {
    "sessions.0.open": 1,
    "sessions.0.used_queues": UNIT.queues,
    "sessions.0.used_pages": UNIT.pages,
    "o_op.ready": 1,
    "o_prefetch.ready": 1,
}
TAKEN = {"s2m_drs.ready": 1, "s2m_ndr.ready": 1}
#: Block, attribute, output, stimuli, what holds all the time.
CASES = {
    "Ingress, request": (
        Ingress,
        "LATENCY",
        shown("o_request", "origin.tag"),
        reads(M2SReq.MEM_RD, PAGES),
        OPEN,
    ),
    "Ingress, window": (
        Ingress,
        "LATENCY",
        shown("o_window", "tag"),
        reads(M2SReq.MEM_RD, [MAP.hint_base] * 3),
        OPEN,
    ),
    "Ingress, spec": (
        Ingress,
        "LATENCY",
        shown("o_spec", "page"),
        reads(M2SReq.MEM_SPEC_RD, PAGES),
        OPEN,
    ),
    "Ingress, write": (Ingress, "WRITE_LATENCY", shown("o_write", "data"), WRITES, OPEN),
    "Ingress, ahead": (
        Ingress,
        "AHEAD_LATENCY",
        "o_ahead.candidates.0.page",
        reads(M2SReq.MEM_RD, PAGES),
        OPEN,
    ),
    "HintAbsorber, op": (
        HintAbsorber,
        "LATENCY",
        shown("o_op", "page"),
        line(HintKind.PIN),
        SESSION,
    ),
    "HintAbsorber, prefetch": (
        HintAbsorber,
        "LATENCY",
        shown("o_prefetch", "page"),
        line(HintKind.PREFETCH),
        SESSION,
    ),
    "Egress, DRS": (
        Egress,
        "LATENCY",
        shown("s2m_drs", "tag"),
        ANSWERS,
        TAKEN | {"i.p.answer": Answer.DATA},
    ),
    "Egress, NDR": (
        Egress,
        "LATENCY",
        shown("s2m_ndr", "tag"),
        ANSWERS,
        TAKEN | {"i.p.answer": Answer.CMP},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_latency_and_interval(case):
    cls, attribute, output, stimuli, prepare = CASES[case]
    expected = [getattr(cls, attribute) + k * cls.INTERVAL for k in range(len(stimuli))]
    assert changes(cls(config=UNIT), output, stimuli, prepare=prepare) == expected


def test_window_router_hands_a_register_access_on_in_the_same_cycle():
    accesses = [{"i.valid": 1, "i.p.tag": tag} for tag in TAGS]
    handed = changes(WindowRouter(config=UNIT), shown("o_register", "tag"), accesses)
    assert handed == [WindowRouter.ACCESS_LATENCY + k for k in range(3)]


@pytest.mark.parametrize("write", [0, 1], ids=["DRS", "NDR"])
def test_egress_has_answers_of_windows_at_their_interval(write):
    answer = {"i_window.valid": 1, "i_window.p.write": write, "i_window.p.tag": 1}
    channel = "s2m_ndr" if write else "s2m_drs"
    seen = changes(Egress(config=UNIT), shown(channel, "tag"), [answer] * 6, prepare=TAKEN)
    # An answer stands for two cycles: it is sent in the second, and gone a cycle later.
    first = Egress.WINDOW_LATENCY
    assert seen[0::2] == [first + k * Egress.WINDOW_INTERVAL for k in range(3)]
