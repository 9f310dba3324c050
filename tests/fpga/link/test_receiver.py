# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LinkReceiver behind its deframer, on the host's own frames: each message once and in order, what
is missing is said, a full window drops; its pace."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from streams import Ends, pump

from kelp_fpga.link.framing import Deframer
from kelp_fpga.link.protocol import POLL, TO_DEVICE, WINDOW, Frame, Kind, encode
from kelp_fpga.link.receiver import LinkReceiver, received

WIDEST = max(TO_DEVICE.values())


class Link(wiring.Component):
    """`news`: what the receiver says beside its messages, by name."""

    NEWS = ("owed", "urgent", "polled", "sync")

    def __init__(self):
        self.receiver = LinkReceiver()
        super().__init__(
            {
                "i": In(stream.Signature(8)),
                "o": Out(stream.Signature(received)),
                "ack": Out(stream.Signature(8, always_ready=True)),
                "end": Out(1),
                "hold": In(1),
                **{name: Out(1) for name in self.NEWS},
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.deframer = deframer = Deframer()
        m.submodules.receiver = receiver = self.receiver
        connect(m, flipped(self.i), deframer.i)
        connect(m, deframer.byte, receiver.byte)
        connect(m, receiver.o, flipped(self.o))
        connect(m, receiver.ack, flipped(self.ack))
        m.d.comb += [
            receiver.end.eq(deframer.end),
            receiver.good.eq(deframer.good),
            receiver.enable.eq(1),
            receiver.hold.eq(self.hold),
            self.end.eq(deframer.end),
            *(getattr(self, name).eq(getattr(receiver, name)) for name in self.NEWS),
        ]
        return m


def frame(seq, kind=Kind.REQ, **changed):
    payload = bytes((seq + k) & 0xFF for k in range(TO_DEVICE[kind]))
    return Frame(kind, seq, changed.get("ack", 0), changed.get("flags", 0), payload)


def run(sent, *, take=1.0, offer=1.0, hold=0):
    """Messages as (kind, payload, cycle), acknowledgements, news with their cycles."""
    dut, news, now = Link(), [], [0]

    def watch(ctx):
        news.extend((name, now[0]) for name in (*dut.NEWS, "end") if ctx.get(getattr(dut, name)))
        now[0] += 1
        dut.expected = ctx.get(dut.receiver.expected)

    line = list(b"".join(map(encode, sent)))
    ends = Ends({"i": line}, ("o", "ack"), offer, take, held={"hold": hold}, watch=watch)
    seen = pump(dut, ends, cycles=int(len(line) / offer * 1.3) + 1500)
    messages = []
    for offered, _, item in seen["o"]:
        size = TO_DEVICE[Kind(item.kind)]
        data = item.payload.to_bytes(WIDEST, "little")[WIDEST - size :]
        messages.append((Kind(item.kind), data, offered))
    return dut, messages, [each.item for each in seen["ack"]], news


def test_latency_and_interval():
    """A body's bytes come one a cycle; behind its end a message is there in as many cycles as it
    has bytes, and LATENCY."""
    for kind in (Kind.REQ, Kind.RWD, Kind.BOARD):
        dut, messages, _, news = run([frame(0, kind)])
        assert dut.receiver.INTERVAL == 1
        [end] = [cycle for name, cycle in news if name == "end"]
        assert messages[0][2] - end == dut.receiver.LATENCY + TO_DEVICE[kind]


@pytest.mark.parametrize(("offer", "take"), [(1.0, 1.0), (0.5, 0.02)])
def test_each_message_once_and_in_order(offer, take):
    """Frames that come again, and one from ahead, give no message; each good frame's word of what
    the host has is told."""
    kinds = [Kind.REQ, Kind.RWD, Kind.BOARD, Kind.REQ]
    wanted = [frame(n, kinds[n % 4], ack=n) for n in range(4)]
    sent = [wanted[n] for n in (0, 1, 0, 3, 3, 2, 1, 3)]
    _, messages, acks, news = run(sent, offer=offer, take=take)
    assert [(kind, data) for kind, data, _ in messages] == [(f.kind, f.payload) for f in wanted]
    assert acks == [f.ack for f in sent]
    names = [name for name, _ in news]
    assert names.count("urgent") == 1, "the gap before frame 3 is said once"
    assert names.count("owed") == len(sent)


def test_a_window_full_of_messages_drops_the_next():
    """It does not count, and is taken when it comes again."""
    sent = [frame(n) for n in range(WINDOW + 1)]
    dut, _, _, _ = run(sent, take=0.0)
    assert dut.expected == WINDOW
    dut, messages, _, _ = run([*sent, *sent], take=0.01)
    assert dut.expected == WINDOW + 1
    assert [data for _, data, _ in messages] == [f.payload for f in sent]


def test_a_poll_and_a_sync_are_told_and_damage_is_not():
    poll = Frame(Kind.CONTROL, 0, 5, POLL, b"")
    sync = Frame(Kind.SYNC, 0, 0, 0, (0x12345678).to_bytes(4, "little"))
    _, messages, acks, news = run([poll, sync])
    names = [name for name, _ in news if name != "end"]
    assert sorted(names) == ["polled", "sync", "urgent"] and acks == [5] and not messages
    broken = bytearray(encode(frame(0)))
    broken[5] ^= 1
    dut = Link()
    assert not pump(dut, Ends({"i": list(broken)}, ("o", "ack")), cycles=200)["ack"]


def test_while_held_only_the_boards_messages_leave():
    sent = [frame(0, Kind.BOARD), frame(1, Kind.REQ), frame(2, Kind.BOARD)]
    _, messages, _, _ = run(sent, hold=1)
    assert [kind for kind, _, _ in messages] == [Kind.BOARD]
