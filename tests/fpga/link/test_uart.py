# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""UART: transmitter into receiver, clocks that differ, damaged bytes; its pace."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from streams import Ends, pump

from kelp_fpga.link.uart import UartReceiver, UartTransmitter
from kelp_verif.harness.runner import run_cocotb


class Uart(wiring.Component):
    def __init__(self, divisor):
        self.divisor = divisor
        super().__init__(
            {"rx": In(1), "o": Out(stream.Signature(8)), "i": In(stream.Signature(8)), "tx": Out(1)}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = UartReceiver(divisor=self.divisor)
        m.submodules.transmitter = transmitter = UartTransmitter(divisor=self.divisor)
        m.d.comb += [receiver.rx.eq(self.rx), self.tx.eq(transmitter.tx)]
        connect(m, receiver.o, flipped(self.o))
        connect(m, flipped(self.i), transmitter.i)
        return m


@pytest.mark.parametrize("divisor", [4, 27])
@pytest.mark.sampled
def test_uart(divisor):
    result = run_cocotb(
        Uart(divisor),
        bench="kelp_verif.fpga.uart_bench",
        params={"divisor": divisor},
        timeout_s=100,
    )
    assert len(result.tests) == 2


@pytest.mark.parametrize("divisor", [0, 3, 1 << 16, 2.5])
def test_uart_refuses_a_divisor(divisor):
    with pytest.raises(ValueError, match="legal: 4 … 65535"):
        UartReceiver(divisor=divisor)


@pytest.mark.parametrize("divisor", [4, 5, 27])
def test_latency_and_interval(divisor):
    """A start bit follows the byte that is taken, bytes follow one another without a pause, and a
    received one is there in the middle of its stop bit."""
    sender, wire = UartTransmitter(divisor=divisor), []
    ends = Ends({"i": [0x55, 0x55, 0x55]}, (), watch=lambda ctx: wire.append(ctx.get(sender.tx)))
    taken = [each.taken for each in pump(sender, ends, cycles=40 * divisor)["i"]]
    assert wire.index(0) - taken[0] == sender.LATENCY
    assert taken[2] - taken[1] == sender.INTERVAL == 10 * divisor
    receiver, now = UartReceiver(divisor=divisor), iter(range(len(wire)))
    ends = Ends({}, ("o",), watch=lambda ctx: ctx.set(receiver.rx, wire[next(now)]))
    got = pump(receiver, ends, cycles=len(wire))["o"]
    assert [each.item for each in got] == [0x55, 0x55, 0x55]
    assert got[0].offered - wire.index(0) == receiver.LATENCY
    assert got[1].offered - got[0].offered == receiver.INTERVAL
