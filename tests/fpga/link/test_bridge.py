# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The host bridge: UART, framing and exactly-once delivery, gateware against the host's own
code."""

import random
import zlib

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_fpga.link.bridge import HostBridge
from kelp_fpga.link.crc32 import INITIAL, crc32_step
from kelp_fpga.link.protocol import FROM_DEVICE, RESIDUE, TO_DEVICE, Deframer, Frame, Kind, encode
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


def test_bridge_delivers_exactly_once():
    records = run_cocotb(
        HostBridge(patience=32),
        bench="kelp_verif.fpga.bridge_bench",
        timeout_s=280,
    ).records
    assert records["faults"] > 50 and records["resent"] > 10 and records["line_use"] > 0.5


def test_crc_is_zlibs():
    from amaranth.hdl import Signal
    from amaranth.sim import Simulator

    rng = random.Random(1)
    data = rng.randbytes(40)
    m, crc, byte = Module(), Signal(32, init=INITIAL), Signal(8)
    m.d.sync += crc.eq(crc32_step(crc, byte))
    seen = []

    async def bench(ctx):
        for value in data + zlib.crc32(data).to_bytes(4, "little"):
            ctx.set(byte, value)
            await ctx.tick()
            seen.append(ctx.get(crc))

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert seen[39] ^ 0xFFFFFFFF == zlib.crc32(data) and seen[-1] == RESIDUE


def test_frames_come_back_and_damage_is_seen():
    rng = random.Random(2)
    deframer = Deframer(TO_DEVICE)
    for _ in range(300):
        kind = rng.choice(list(Kind))
        frame = Frame(
            kind,
            rng.randrange(256),
            rng.randrange(256),
            0x10,
            bytes(rng.choices((0x7E, 0x7D, 0x5E, rng.randrange(256)), k=TO_DEVICE[kind])),
        )
        line = encode(frame)
        assert line.count(0x7E) == 2 and deframer.feed(line) == [frame]
        broken = bytearray(line)
        broken[rng.randrange(1, len(line) - 1)] ^= 1 << rng.randrange(8)
        assert frame not in deframer.feed(bytes(broken))
        assert deframer.feed(line) == [frame], "the frame after a broken one is lost"
    assert deframer.bad


def test_frames_of_no_known_length_are_refused():
    deframer = Deframer(FROM_DEVICE)
    assert (
        deframer.feed(encode(Frame(Kind.REQ, 0, 0, 0, bytes(5)))) == []
        and deframer.feed(encode(Frame(9, 0, 0, 0, b""))) == []
    )
    assert deframer.bad == 2
