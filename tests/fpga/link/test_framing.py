# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Framer and Deframer against the host's own frames, over a line that waits; their pace."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from streams import Ends, pump

from kelp_fpga.link.framing import Deframer, Framer, body_byte
from kelp_fpga.link.protocol import ESCAPE, FLAG, TO_DEVICE, Frame, Kind, encode
from kelp_fpga.link.protocol import Deframer as HostDeframer

OVERHEAD = 3  #: bytes of a body before its payload
RNG = random.Random(3)


def frames(count=20):
    """Frames full of bytes that must be escaped."""
    return [
        Frame(
            kind := RNG.choice(list(Kind)),
            n,
            RNG.randrange(256),
            0,
            bytes(RNG.choices((FLAG, ESCAPE, 0x5E, RNG.randrange(256)), k=TO_DEVICE[kind])),
        )
        for n in range(count)
    ]


def body(frame):
    head = bytes([frame.kind | frame.flags, frame.seq, frame.ack])
    data = head + frame.payload
    return [{"byte": byte, "last": n == len(data) - 1} for n, byte in enumerate(data)]


def test_latency_and_interval_of_the_framer():
    dut = Framer()
    data = [{"byte": n, "last": n == 7} for n in range(8)]
    seen = pump(dut, Ends({"i": data}, ("o",)), cycles=20)
    assert seen["i"][0].taken - seen["i"][0].offered == dut.LATENCY
    taken = [byte.taken for byte in seen["o"]]
    assert [byte.item for byte in seen["o"]][:9] == [FLAG, *range(8)]
    assert [b - a for a, b in zip(taken, taken[1:], strict=False)] == (len(taken) - 1) * [
        dut.INTERVAL
    ]


def test_latency_and_interval_of_the_deframer():
    dut = Deframer()
    seen = pump(dut, Ends({"i": [FLAG, 1, 2, 3]}, ("byte",)), cycles=10)
    assert [byte.item for byte in seen["byte"]] == [1, 2, 3]
    assert [byte.taken for byte in seen["byte"]] == [
        1 + dut.LATENCY + n * dut.INTERVAL for n in range(3)
    ]


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.6, 0.6)])
def test_the_framers_line_is_the_hosts(offer, take):
    sent = frames()
    ends = Ends({"i": [byte for frame in sent for byte in body(frame)]}, ("o",), offer, take)
    line = bytes(byte.item for byte in pump(Framer(), ends, cycles=9000)["o"])
    deframer = HostDeframer(TO_DEVICE)
    assert deframer.feed(line) == sent and not deframer.bad
    if offer == take == 1:
        assert line == b"".join(map(encode, sent))


class Ear(wiring.Component):
    """A deframer, its three outputs in one stream: (kind of news, byte)."""

    def __init__(self):
        self.deframer = Deframer()
        news = stream.Signature(16, always_ready=True)
        super().__init__({"i": In(stream.Signature(8)), "o": Out(news)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.deframer = d = self.deframer
        connect(m, flipped(self.i), d.i)
        m.d.comb += [
            self.o.valid.eq(d.byte.valid | d.end),
            self.o.payload.eq(d.byte.payload | (d.end << 8) | ((d.end & d.good) << 9)),
        ]
        return m


@pytest.mark.parametrize("offer", [1.0, 0.3])
def test_the_deframer_reads_the_hosts_line_and_sees_damage(offer):
    sent, line, wanted = frames(12), b"", []
    for n, frame in enumerate(sent):
        data = bytearray(encode(frame))
        if broken := n % 3 == 2:
            data[RNG.randrange(1, len(data) - 1)] ^= 1
        line += bytes(data)
        wanted.append((bytes(b["byte"] for b in body(frame)), not broken))
    seen = pump(Ear(), Ends({"i": list(line)}, ("o",), offer), cycles=int(len(line) / offer * 1.5))
    got, data = [], b""
    for _, _, news in seen["o"]:
        if news >> 8:
            got.append((data[:-4], bool(news >> 9)))
            data = b""
        else:
            data += bytes([news])
    assert [each for each in got if each[1]] == [each for each in wanted if each[1]]
    assert sum(not good for _, good in got) >= 1


def test_a_body_that_ends_within_an_escape_spoils_no_other():
    [frame] = frames(1)
    line = [FLAG, 1, 2, ESCAPE, *encode(frame)]
    seen = pump(Ear(), Ends({"i": line}, ("o",)), cycles=2 * len(line))
    news = [news for _, _, news in seen["o"]]
    assert [each >> 8 for each in news if each >> 8] == [1, 3], "bad, then good"
    ends = next(n for n, each in enumerate(news) if each >> 8)
    assert bytes(news[ends + 1 : -5]) == bytes(b["byte"] for b in body(frame))


def test_a_body_byte_has_its_end():
    assert body_byte.size == 9
