# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sending half of the device's link: messages kept until the host has them, and the frames that
carry them (kelp_fpga.link.host_link has the protocol). A message in as many cycles as its longest
kind has bytes, and 2; a byte of a frame a cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.lib.sram import Sram

from .framing import body_byte
from .protocol import FROM_DEVICE, NAK, VERSION, WINDOW, Kind

__all__ = ["LinkSender", "sent"]

_LONGEST = max(FROM_DEVICE.values())
_SLOT = 128
_SLOT_BITS = (WINDOW - 1).bit_length()

#: A message: its kind, and its payload from the lowest byte on.
sent = data.StructLayout({"kind": 4, "payload": 8 * _LONGEST})


class _Window:
    """Messages are kept from `base` on; those from `next_` on are not sent yet."""

    def __init__(self):
        self.base = Signal(8)  #: oldest not acknowledged
        self.fill = Signal(8)  #: next to be kept
        self.next_ = Signal(8)  #: next to be sent
        self.start = Signal()  #: the frame at `next_` begins in this cycle
        self.kinds = Array(Signal(4, name=f"kind_{k}") for k in range(WINDOW))
        # What is said beside them, until a frame says it:
        self.owed = Signal()
        self.urgent = Signal()
        self.greet = Signal()


class _Frame:
    """The frame under way."""

    def __init__(self):
        self.kind = Signal(4)
        self.seq = Signal(8)
        self.flags = Signal(8)
        self.part = Signal(2)  #: of the head
        self.place = Signal(range(_LONGEST + 1))  #: of the payload's `size` bytes
        self.size = Signal(range(_LONGEST + 1))
        self.byte = Signal(8)
        self.ahead = Signal(range(_LONGEST + 2))
        self.step = Signal()


class LinkSender(wiring.Component):
    """Messages into `WINDOW` slots; frames from there, once, and again from the oldest on when the
    host says so. An acknowledgement of its own is sent when nothing else carries it for `patience`
    cycles. Without news it sends nothing.

    Latency: a message's frame begins `LATENCY` cycles after it is taken, when the line is idle.
    Throughput: a message each `INTERVAL` cycles, while the host acknowledges them; a byte of a
    frame a cycle when `o` takes them.

    Parameters
    ----------
    patience : int
        Cycles: an answer that comes within saves a frame.

    Members
    -------
    i : In stream(sent)
        Once ready, while `enable`, it stays so until a message comes.
    o : Out stream(body_byte)
    clear, enable : In
        Forget every message; let new ones in.
    expected : In
        As of the receiver; every frame carries it.
    ack, polled, owed, urgent : In, always-ready stream
        From the receiver.
    greet, nonce : In
        Answer a SYNC.
    """

    LATENCY = _LONGEST + 3
    INTERVAL = _LONGEST + 2

    def __init__(self, *, patience: int):
        if not isinstance(patience, int) or not 1 <= patience < 1 << 24:
            raise ValueError(f"patience = {patience!r} is refused; legal: 1 … {(1 << 24) - 1}")
        self.patience = patience
        super().__init__(
            {
                "i": In(stream.Signature(sent)),
                "o": Out(stream.Signature(body_byte)),
                "clear": In(1),
                "enable": In(1),
                "expected": In(8),
                "ack": In(stream.Signature(8, always_ready=True)),
                "polled": In(1),
                "owed": In(1),
                "urgent": In(1),
                "greet": In(1),
                "nonce": In(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.slots = Sram(depth=WINDOW * _SLOT, shape=8)
        window, frame = _Window(), _Frame()
        self._keep(m, window)
        self._acknowledged(m, window)
        waited = Signal(range(self.patience + 1))
        m.d.sync += [
            window.owed.eq(window.owed | self.owed),
            window.urgent.eq(window.urgent | self.urgent),
            window.greet.eq(window.greet | self.greet),
            waited.eq(Mux(window.owed, Mux(waited == self.patience, waited, waited + 1), 0)),
        ]
        self._payload(m, frame)
        with m.FSM():
            self._begin(m, window, frame, waited)
            self._send(m, frame)
        with m.If(self.clear):
            m.d.sync += [
                getattr(window, name).eq(0) for name in ("base", "fill", "next_", "owed", "urgent")
            ]
        return m

    def _keep(self, m: Module, window: _Window) -> None:
        """Messages in, a byte a cycle."""
        slots, fill = m.submodules.slots, window.fill
        shift, left = Signal(8 * _LONGEST), Signal(range(_LONGEST + 1))
        # A place, known a cycle ahead: the endpoint's answers hang on it. `keeping`: left != 0, in
        # a register that steers hundreds.
        free, keeping = Signal(), Signal()
        m.d.sync += free.eq(~keeping & ((fill - window.base)[:8] < WINDOW))
        m.d.comb += [
            self.i.ready.eq(self.enable & free & ~keeping),
            slots.write_en.eq(keeping),
            slots.write_data.eq(shift[:8]),
            slots.write_address.eq(Cat(Cat(_LONGEST - left, Const(0, 7))[:7], fill[:_SLOT_BITS])),
        ]
        # Critical path: whether there is a message; it does not matter to what is not sent.
        m.d.sync += shift.eq(Mux(keeping, shift[8:], self.i.p.payload))
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                left.eq(_LONGEST),
                keeping.eq(1),
                window.kinds[fill[:_SLOT_BITS]].eq(self.i.p.kind),
            ]
        with m.Elif(keeping):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                m.d.sync += [fill.eq(fill + 1), keeping.eq(0)]
        with m.If(self.clear):
            m.d.sync += [left.eq(0), keeping.eq(0)]

    def _acknowledged(self, m: Module, window: _Window) -> None:
        """What the host has. Its word is compared a cycle after it comes, and obeyed in the one
        behind that: a frame that begins meanwhile is one from before it. No two words come within
        three cycles, nor do two frames begin."""
        base, fill, next_, after = window.base, window.fill, window.next_, Signal(8)
        m.d.comb += after.eq(next_ + window.start)
        m.d.sync += next_.eq(after)
        heard, compared, word, again = Signal(), Signal(), Signal(8), Signal()
        # of the messages from `base` on: acknowledged, there, sent
        done, kept, gone = Signal(8), Signal(8), Signal(8)
        m.d.sync += [
            heard.eq(self.ack.valid),
            compared.eq(heard),
            done.eq(word - base),
            kept.eq(fill - base),
            gone.eq(after - base),
            Assert(
                ~(self.ack.valid & (heard | compared)),
                "an acknowledgement comes before the one ahead of it is obeyed",
            ),
        ]
        with m.If(self.ack.valid):
            m.d.sync += [word.eq(self.ack.p), again.eq(self.polled)]
        with m.If(compared & (done <= kept)):
            m.d.sync += base.eq(word)
            with m.If(again | (gone < done)):
                m.d.sync += next_.eq(word)
        with m.If(self.clear):
            m.d.sync += [heard.eq(0), compared.eq(0)]

    def _payload(self, m: Module, frame: _Frame) -> None:
        """A payload's bytes come from block RAM, through a register that holds the one at `o`:
        `step` moves each on, and the head's last two bytes fill both."""
        slots, ahead = m.submodules.slots, frame.ahead
        sizes = Array(Const(FROM_DEVICE.get(k, 0), len(frame.size)) for k in range(16))
        greeting = Cat(self.nonce, Const(VERSION, 8), Const(WINDOW, 8), Const(0, 16))
        greeted = Signal(8)
        m.d.comb += [
            slots.read_en.eq(frame.step),
            slots.read_address.eq(Cat(Cat(ahead, Const(0, 7))[:7], frame.seq[:_SLOT_BITS])),
        ]
        with m.If(frame.step):
            m.d.sync += [
                ahead.eq(ahead + 1),
                greeted.eq(greeting.word_select(ahead[:3], 8)),
                frame.byte.eq(Mux(frame.kind == Kind.SYNC, greeted, slots.read_data)),
            ]
        # a cycle after the kind, before the head's last byte
        m.d.sync += frame.size.eq(sizes[frame.kind])

    def _begin(self, m: Module, window: _Window, frame: _Frame, waited: Signal) -> None:
        """States in which a frame is chosen: a greeting, an acknowledgement, a message."""
        kind, next_, urgent = frame.kind, window.next_, window.urgent
        with m.State("IDLE"):
            m.d.sync += [
                frame.part.eq(0),
                frame.place.eq(0),
                frame.ahead.eq(0),
                frame.seq.eq(next_),
                frame.flags.eq(Mux(urgent, NAK, 0)),
            ]
            with m.If(window.greet):
                m.d.sync += [kind.eq(Kind.SYNC), window.greet.eq(self.greet), frame.flags.eq(0)]
                m.next = "HEAD"
            with m.Elif(urgent | (waited == self.patience)):
                m.d.sync += [
                    kind.eq(Kind.CONTROL),
                    urgent.eq(self.urgent),
                    window.owed.eq(self.owed),
                ]
                m.next = "HEAD"
            with m.Elif(next_ != window.fill):
                m.d.comb += window.start.eq(1)
                m.d.sync += window.owed.eq(self.owed)
                m.next = "LOOK"
        with m.State("LOOK"):
            m.d.sync += kind.eq(window.kinds[frame.seq[:_SLOT_BITS]])
            m.next = "HEAD"

    def _send(self, m: Module, frame: _Frame) -> None:
        """States of a frame's head and its payload."""
        part, place, size = frame.part, frame.place, frame.size
        moved = self.o.valid & self.o.ready
        # `expected` as it is when its byte is offered: what comes later, a later frame says.
        expected = Signal(8)
        head = Array((frame.kind | frame.flags, frame.seq, expected))
        with m.State("HEAD"):
            m.d.comb += [
                self.o.valid.eq(1),
                self.o.p.byte.eq(head[part]),
                self.o.p.last.eq((part == 2) & (size == 0)),
                frame.step.eq(moved & (part != 0)),
            ]
            with m.If(moved):
                m.d.sync += [part.eq(part + 1), expected.eq(self.expected)]
                with m.If(part == 2):
                    m.next = "IDLE"
                    with m.If(size != 0):
                        m.next = "PAYLOAD"
        with m.State("PAYLOAD"):
            m.d.comb += [
                self.o.valid.eq(1),
                self.o.p.last.eq(place + 1 == size),
                self.o.p.byte.eq(frame.byte),
                frame.step.eq(moved),
            ]
            with m.If(moved):
                m.d.sync += place.eq(place + 1)
                with m.If(self.o.p.last):
                    m.next = "IDLE"
