# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""LinkSender before its framer, heard by the host's own code: each message once, all of the window
again when asked, acknowledgements of their own; its pace."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from streams import Ends, pump

from kelp_fpga.link.framing import Framer
from kelp_fpga.link.protocol import FROM_DEVICE, VERSION, WINDOW, Deframer, Kind
from kelp_fpga.link.sender import LinkSender, sent

PATIENCE = 40
KINDS = (Kind.RWD, Kind.REQ, Kind.BOARD)


class Link(wiring.Component):
    LEVELS = {"polled": 1, "owed": 1, "urgent": 1, "greet": 1, "nonce": 32, "expected": 8}

    def __init__(self):
        self.sender = LinkSender(patience=PATIENCE)
        super().__init__(
            {
                "i": In(stream.Signature(sent)),
                "o": Out(stream.Signature(8)),
                "ack": In(stream.Signature(8, always_ready=True)),
                **{name: In(bits) for name, bits in self.LEVELS.items()},
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.sender = sender = self.sender
        m.submodules.framer = framer = Framer()
        connect(m, flipped(self.i), sender.i)
        connect(m, flipped(self.ack), sender.ack)
        connect(m, sender.o, framer.i)
        connect(m, framer.o, flipped(self.o))
        m.d.comb += [getattr(sender, name).eq(getattr(self, name)) for name in self.LEVELS]
        m.d.comb += sender.enable.eq(1)
        return m


def message(n):
    kind = KINDS[n % 3]
    payload = bytes((7 * n + k) & 0xFF for k in range(FROM_DEVICE[kind]))
    return kind, payload


def items(count):
    return [
        {"kind": kind, "payload": int.from_bytes(payload, "little")}
        for kind, payload in map(message, range(count))
    ]


def run(count, at, *, cycles, take=1.0, acks=True):
    """Frames that the host hears, in order; `at`: cycle → {port: value} for that cycle. With `acks`
    the host acknowledges a frame some cycles after it has come."""
    dut, host, frames, now = Link(), Deframer(FROM_DEVICE), [], [0]

    def watch(ctx):
        for name in dut.LEVELS:
            ctx.set(getattr(dut, name), at.get(now[0], {}).get(name, 0))
        now[0] += 1

    def answer(path, item):
        for frame in host.feed(bytes([item])):
            frames.append(frame)
            if acks and frame.kind in KINDS:
                yield "ack", frame.seq + 1 & 0xFF

    ends = Ends({"i": items(count), "ack": []}, ("o",), take=take, answer=answer, watch=watch)
    seen = pump(dut, ends, cycles=cycles)
    assert not host.bad
    return dut, frames, seen


def test_latency_and_interval():
    dut, _, seen = run(4, {}, cycles=700)
    taken = [each.taken for each in seen["i"]]
    assert seen["o"][0].offered - taken[0] == dut.sender.LATENCY
    assert [b - a for a, b in zip(taken, taken[1:], strict=False)] == 3 * [dut.sender.INTERVAL]


@pytest.mark.parametrize("take", [1.0, 0.4])
def test_each_message_once_and_in_order(take):
    count = 2 * WINDOW + 3
    _, frames, _ = run(count, {}, cycles=int(count * 120 / take), take=take)
    assert [(f.kind, f.payload) for f in frames] == [message(n) for n in range(count)]
    assert [f.seq for f in frames] == list(range(count))


def test_a_window_is_kept_until_the_host_has_it_and_sent_again():
    """Without acknowledgements no more than a window is taken; a host that polls hears it again."""
    again = 200 * WINDOW
    _, frames, seen = run(WINDOW + 4, {}, cycles=again, acks=False)
    assert len(seen["i"]) == WINDOW and [f.seq for f in frames] == list(range(WINDOW))
    dut, host, frames, now = Link(), Deframer(FROM_DEVICE), [], [0]

    def watch(ctx):
        ctx.set(dut.ack.valid, now[0] == again)
        ctx.set(dut.ack.payload, 2)
        ctx.set(dut.polled, now[0] == again)
        now[0] += 1

    ends = Ends({"i": items(WINDOW)}, ("o",), watch=watch)
    ends.answer = lambda path, item: frames.extend(host.feed(bytes([item]))) or ()
    pump(dut, ends, cycles=2 * again)
    assert [f.seq for f in frames] == [*range(WINDOW), *range(2, WINDOW)]
    assert [(f.kind, f.payload) for f in frames[WINDOW:]] == [message(n) for n in range(2, WINDOW)]


def test_what_has_no_message_to_carry_it_goes_alone():
    """An acknowledgement after PATIENCE cycles, an urgent one at once, a greeting with the nonce;
    without news nothing."""
    _, frames, _ = run(0, {}, cycles=400)
    assert frames == []
    _, frames, seen = run(0, {5: {"owed": 1}}, cycles=400)
    assert [f.kind for f in frames] == [Kind.CONTROL] and seen["o"][0].offered > PATIENCE
    _, frames, seen = run(0, {5: {"urgent": 1}}, cycles=400)
    assert [f.kind for f in frames] == [Kind.CONTROL] and frames[0].flags
    assert seen["o"][0].offered < PATIENCE
    held = {n: {"nonce": 0xCAFE1234, "expected": 9} for n in range(400)}
    held[5] = held[5] | {"greet": 1}
    _, [greeting], _ = run(0, held, cycles=400)
    assert greeting.kind == Kind.SYNC and greeting.ack == 9
    assert greeting.payload[:6] == (0xCAFE1234).to_bytes(4, "little") + bytes([VERSION, WINDOW])


@pytest.mark.parametrize("patience", [0, 1 << 24, 2.5])
def test_a_patience_that_is_none_is_refused(patience):
    with pytest.raises(ValueError, match="legal: 1"):
        LinkSender(patience=patience)
