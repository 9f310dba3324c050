# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The host bridge: UART, framing and exactly-once delivery, gateware against the host's own
code."""

from streams import Ends, pump

from kelp_fpga.link.bridge import HostBridge
from kelp_fpga.link.protocol import FLAG, TO_DEVICE, Frame, Kind, encode, pack
from kelp_spec.messages import FIELDS, M2SReq
from kelp_verif.harness.runner import run_cocotb


def test_bridge_delivers_exactly_once():
    records = run_cocotb(
        HostBridge(patience=32),
        bench="kelp_verif.fpga.bridge_bench",
        timeout_s=280,
    ).records
    assert records["faults"] > 50 and records["resent"] > 10 and records["line_use"] > 0.5


def test_latency_and_interval():
    """The host's own line, a byte a cycle: a request leaves LATENCY cycles, and one for each of its
    bytes, after its frame's last."""
    dut = HostBridge(patience=32)
    nonce = (7).to_bytes(4, "little")
    line = encode(Frame(Kind.SYNC, 0, 0, 0, nonce)) + bytes(200 * [FLAG])
    payload = pack(FIELDS["M2SReq"], opcode=M2SReq.MEM_RD, tag=5, address=77)
    line += encode(Frame(Kind.REQ, 0, 0, 0, payload))
    seen = pump(dut, Ends({"i": list(line)}, ("m2s_req", "o")), cycles=len(line) + 60)
    taken = [each.taken for each in seen["i"]]
    assert [b - a for a, b in zip(taken, taken[1:], strict=False)] == (len(line) - 1) * [
        dut.INTERVAL
    ]
    [request] = seen["m2s_req"]
    assert (request.item.tag, request.item.address) == (5, 77)
    assert request.offered - taken[-1] == dut.LATENCY + TO_DEVICE[Kind.REQ]
