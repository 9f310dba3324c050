# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The AXI4 front end alone, against cocotbext-axi's manager; its pace."""

import pytest
from streams import Ends, pump

from kelp_fpga.axi.axi_front import AxiFront, Burst
from kelp_verif.harness.runner import run_cocotb


def test_axi_front_end():
    result = run_cocotb(AxiFront(id_bits=8), bench="kelp_verif.fpga.axi_front_bench", timeout_s=250)
    rates = result.records["beats_per_cycle"]
    print(rates)
    assert rates["writes"] > 0.95 and rates["reads"] > 0.95 and rates["both"] > 1.9
    assert len(result.tests) == 3


@pytest.mark.parametrize(
    "parameters, message",
    [({"depth": 100}, "depth = 100"), ({"address_bits": 64}, "address_bits = 64")],
)
def test_axi_front_end_refuses(parameters, message):
    with pytest.raises(ValueError, match=message):
        AxiFront(**parameters)


def burst(line, beats):
    return {"valid": 1, "id": line % 16, "addr": line << 6, "len": beats - 1, "size": 6, "burst": 1}


def test_latency_and_interval_of_a_burst():
    """Two bursts, beat by beat, without a pause between them."""
    dut, beats, now = Burst(id_bits=4, address_bits=20), [], [0]
    waiting = [burst(8, 4), burst(40, 2)]

    def watch(ctx):
        for name in ("valid", "id", "addr", "len", "size", "burst"):
            ctx.set(getattr(dut, name), waiting[0][name] if waiting else 0)
        if waiting and ctx.get(dut.ready):
            waiting.pop(0)
        now[0] += 1

    beats = pump(dut, Ends({}, ("o",), watch=watch), cycles=20)["o"]
    assert [(beat.item.line, beat.item.last) for beat in beats] == [
        (8, 0),
        (9, 0),
        (10, 0),
        (11, 1),
        (40, 0),
        (41, 1),
    ]
    assert [beat.taken for beat in beats] == [dut.LATENCY + n * dut.INTERVAL for n in range(6)]


def test_latency_and_interval():
    """From an address to its request, and from the endpoint's answer to ours; a beat a cycle."""
    dut = AxiFront(id_bits=4, depth=16)
    told, shown, now = [], [], [0]

    def watch(ctx):
        for name, value in burst(8, 8).items():
            ctx.set(getattr(dut, f"s_axi_ar{name}"), value if now[0] == 0 else 0)
        ctx.set(dut.s_axi_rready, 1)
        if ctx.get(dut.s_axi_rvalid):
            shown.append((now[0], ctx.get(dut.s_axi_rdata)))
        if ctx.get(dut.s2m_drs.valid):
            told.append(now[0])
        now[0] += 1

    def endpoint(path, request):
        yield "s2m_drs", {"tag": request.tag, "data": 100 + request.address}

    ends = Ends({"s2m_drs": []}, ("m2s_req",), answer=endpoint, watch=watch)
    requests = pump(dut, ends, cycles=40)["m2s_req"]
    assert [each.taken for each in requests] == [
        dut.LATENCY + n * dut.INTERVAL for n in range(len(requests))
    ]
    assert [data for _, data in shown] == [108 + n for n in range(8)]
    assert [cycle for cycle, _ in shown] == [cycle + dut.ANSWER_LATENCY for cycle in told]
