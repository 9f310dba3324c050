# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""NoEndpoint: every request is answered once, as one outside the map; its pace."""

import pytest
from streams import Ends, pump

from kelp_fpga.boards.no_endpoint import NoEndpoint
from kelp_spec.config import named
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq

REQUESTS = ("m2s_req", "m2s_rwd")
ANSWERS = ("s2m_drs", "s2m_ndr")


def run(requests, writes, **rates):
    dut = NoEndpoint(config=named("unit"))
    ends = Ends({"m2s_req": requests, "m2s_rwd": writes}, ANSWERS, **rates)
    return dut, pump(dut, ends, cycles=200)


def test_latency_and_interval():
    reads = [{"opcode": M2SReq.MEM_RD, "tag": n} for n in range(4)]
    dut, seen = run(reads, [])
    assert [answer.taken for answer in seen["s2m_drs"]] == [
        dut.LATENCY + n * dut.INTERVAL for n in range(4)
    ]


@pytest.mark.parametrize("take", [1.0, 0.3])
def test_every_request_is_answered_once(take):
    """NXM to a read, Cmp to a write and to an invalidation, nothing to a speculative read."""
    codes = [M2SReq.MEM_RD, M2SReq.MEM_SPEC_RD, M2SReq.MEM_RD_DATA, M2SReq.MEM_INV]
    requests = [{"opcode": codes[n % 4], "tag": n, "ld_id": n % 3} for n in range(16)]
    _, seen = run(requests, [], take=take)
    said = {
        name: [(a.item.tag, a.item.ld_id, a.item.opcode) for a in seen[name]] for name in ANSWERS
    }
    assert said == {
        "s2m_drs": [(n, n % 3, S2MDRS.MEM_DATA_NXM) for n in range(16) if n % 2 == 0],
        "s2m_ndr": [(n, n % 3, S2MNDR.CMP) for n in range(16) if n % 4 == 3],
    }
    _, seen = run([], [{"tag": n, "ld_id": n % 3} for n in range(8)], take=take)
    assert [(a.item.tag, a.item.ld_id) for a in seen["s2m_ndr"]] == [(n, n % 3) for n in range(8)]
    assert not seen["s2m_drs"]


def test_it_takes_one_at_a_time_and_says_when_nothing_stands():
    """A write goes first where both are offered, and neither is lost."""
    dut = NoEndpoint(config=named("unit"))
    quiet = []
    ends = Ends(
        {"m2s_req": [{"opcode": M2SReq.MEM_INV, "tag": 1}], "m2s_rwd": [{"tag": 2}]}, ANSWERS
    )
    ends.watch = lambda ctx: quiet.append(ctx.get(dut.quiescent))
    seen = pump(dut, ends, cycles=6)
    assert [a.item.tag for a in seen["s2m_ndr"]] == [2, 1]
    assert quiet == [0, 0, 1, 1, 1, 1]
