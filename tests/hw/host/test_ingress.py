# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Ingress: what becomes of each M2S message."""

import pytest
from streams import Ends, pump
from timing import check_pace, offers, shown

from kelp_hw.host.ingress import Ingress
from kelp_spec.address import AddressMap, KvAddress, Region
from kelp_spec.config import named
from kelp_spec.messages import M2SReq, M2SRwD
from kelp_spec.metadata import Event
from kelp_verif.formal.prove import mutant
from kelp_verif.harness.runner import made, run_cocotb

#: Session and queue counts that are no powers of two, and an aperture above the register window's
#: size: addresses beyond each exist.
ODD = {"sessions": 3, "queues": 5}


UNIT = named("unit")
MAP = AddressMap(UNIT)
PAGES = [MAP.encode(KvAddress(0, 0, page, 0, 0)) for page in (1, 2, 3)]
OPEN = {
    "enable": 1,
    "i_write_slot.valid": 1,
    "o_request.ready": 1,
    "o_window.ready": 1,
    "o_spec.ready": 1,
}


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


@pytest.mark.parametrize(
    ("attribute", "output", "stimuli"),
    [
        ("LATENCY", shown("o_request", "origin.tag"), reads(M2SReq.MEM_RD, PAGES)),
        ("LATENCY", shown("o_window", "tag"), reads(M2SReq.MEM_RD, [MAP.hint_base] * 3)),
        ("LATENCY", shown("o_spec", "page.page"), reads(M2SReq.MEM_SPEC_RD, PAGES)),
        ("WRITE_LATENCY", shown("o_write", "data"), offers(stream="m2s_rwd", field="data")),
        ("AHEAD_LATENCY", "o_ahead.candidates.0.page", reads(M2SReq.MEM_RD, PAGES)),
    ],
    ids=["request", "window", "spec", "write", "ahead"],
)
def test_latency_and_interval(attribute, output, stimuli):
    check_pace(Ingress(config=UNIT), attribute, output, stimuli, prepare=OPEN)


def run(test, block=Ingress, base="unit", **params):
    return run_cocotb(
        made(block, config=named(base).with_(**ODD)),
        bench="kelp_verif.host.ingress_bench",
        test=test,
        params={"base": base, "config": ODD, **params},
        timeout_s=120,
    ).records


def test_every_message_goes_where_its_opcode_and_address_say():
    records = run(["random_messages", "one_message_a_cycle"], cycles=24_000)
    seen = records["seen"]
    assert all(
        seen.get(f"{channel} opcode {code}", 0) for channel in ("req", "rwd") for code in range(16)
    )
    wanted = [
        "both offered",
        "req passes a write",
        "spec dropped",
        "reset of a message",
        "beyond the configuration",
        "no byte",
        "partial",
        "full",
        "NONE req",
        "NONE rwd",
        "OUT_OF_MAP req",
        "OUT_OF_MAP rwd",
        "UNKNOWN_OPCODE req",
        "UNKNOWN_OPCODE rwd",
        "req to None",
        "req to spec",
        "hint write",
        "hint read",
        "register write",
        "register read",
        "req in its turn",
        "two requests held",
        "window waits for a request",
        "foretold",
    ]
    assert {what: seen.get(what, 0) for what in wanted if seen.get(what, 0) < 3} == {}
    assert records["rates"] == {"req": 1.0, "rwd": 1.0, "both": 1.0}


def test_with_a_choice_and_a_host_that_caches():
    """Reads for ownership, of the GATHER window, and what goes to the SELECT region."""
    seen = run("random_messages", base="unit_select_coherent", cycles=6_000)["seen"]
    wanted = ("for ownership", "gathered", "select read", "select write", "foretold")
    assert {what: seen.get(what, 0) for what in wanted if seen.get(what, 0) < 20} == {}


def test_a_choice_is_told_of_writes_that_have_no_place():
    seen = run("random_messages", base="unit_select", cycles=3_000)["seen"]
    wanted = ("gathered", "select write", "stuck at the side", "stuck without a slot")
    assert {what: seen.get(what, 0) for what in wanted if seen.get(what, 0) < 20} == {}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(session < c.sessions)", "(session <= c.sessions)"),
        ("side_valid & ~behind", "side_valid"),  # a CLOSE overtakes requests
        ("& ~req_goes", ""),  # RwD without pause keep reads out
    ],
)
@pytest.mark.sampled
def test_the_bench_catches_a_planted_bug(old, new):
    with pytest.raises(AssertionError, match="failed with seed"):
        run("random_messages", mutant(Ingress, old, new), cycles=4_000)


def test_the_bench_sees_a_write_that_is_said_to_have_a_place():
    told = mutant(Ingress, "rwd_kv & ~self.i_write_slot.valid)", "0)")
    with pytest.raises(AssertionError, match="failed with seed"):
        run("random_messages", told, base="unit_select", cycles=1_000)


def test_bad_parameters_are_refused():
    with pytest.raises(TypeError, match="config must be a kelp_spec.Config, not 'unit'"):
        Ingress(config="unit")


def test_a_gathered_read_is_one_of_its_page():
    """As GatherWindow leaves it; a write in that region is outside the map, as a session that the
    configuration has not."""
    config = named("unit_select").with_(sessions=3)
    places = AddressMap(config)
    page, gather = places.encode(KvAddress(2, 1, 9, 1, 3)), Region.GATHER << config.aperture_bits
    beyond = AddressMap(config.with_(sessions=4)).encode(KvAddress(3, 0, 0, 0, 0))
    reads = [page, page | gather, beyond | gather]
    sends = {
        "m2s_req": [
            {"opcode": M2SReq.MEM_RD, "address": address >> 6, "tag": tag}
            for tag, address in enumerate(reads)
        ],
        "m2s_rwd": [{"opcode": M2SRwD.MEM_WR, "address": (page | gather) >> 6, "tag": 9}],
        "i_write_slot": [5],
    }
    ends = Ends(sends=sends, takes=("o_request",), held={"enable": 1})
    requests = {
        t.item.origin.tag: t.item
        for t in pump(Ingress(config=config), ends, cycles=30)["o_request"]
    }
    assert requests.keys() == {0, 1, 2, 9}
    for tag, gathered, refused in ((0, 0, 0), (1, 1, 0), (2, 1, 1), (9, 0, 1)):
        found = requests[tag]
        assert found.gathered == gathered, tag
        assert found.refused == (Event.OUT_OF_MAP if refused else Event.NONE), tag
        if not refused:
            at = found.session, found.queue, found.page, found.kv_line
            assert at == (2, 1, 9, config.half_lines + 3)
    assert not requests[9].has_write
