# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The sending half of the device's link: messages kept until the host has them, and the frames that
carry them (kelp_fpga.link.host_link has the protocol)."""

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

#: A message: its kind, and its payload from the lowest byte on.
sent = data.StructLayout({"kind": 4, "payload": 8 * _LONGEST})


class LinkSender(wiring.Component):
    """Messages into `WINDOW` slots; frames from there, once, and again from the oldest on when the
    host says so. An acknowledgement of its own is sent when nothing else carries it for `patience`
    cycles. Without news it sends nothing.

    Throughput: a message enters in as many cycles as its longest kind has bytes, and 2; a byte of a
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
        slot_bits = (WINDOW - 1).bit_length()
        m.submodules.slots = slots = Sram(depth=WINDOW * _SLOT, shape=8)
        kinds = Array(Signal(4, name=f"kind_{k}") for k in range(WINDOW))
        # oldest not acknowledged, next to be kept, next to be sent
        base, fill, next_ = Signal(8), Signal(8), Signal(8)

        # - messages in ----------------------------------------------------------------------------
        shift, left = Signal(8 * _LONGEST), Signal(range(_LONGEST + 1))
        # A place, known a cycle ahead: the endpoint's answers hang on it. `keeping`: left != 0, in
        # a register that steers hundreds.
        free, keeping = Signal(), Signal()
        m.d.sync += free.eq(~keeping & ((fill - base)[:8] < WINDOW))
        m.d.comb += [
            self.i.ready.eq(self.enable & free & ~keeping),
            slots.write_en.eq(keeping),
            slots.write_data.eq(shift[:8]),
            slots.write_address.eq(Cat(Cat(_LONGEST - left, Const(0, 7))[:7], fill[:slot_bits])),
        ]
        # Whether there is a message comes late, and does not matter to what is not sent.
        m.d.sync += shift.eq(Mux(keeping, shift[8:], self.i.p.payload))
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                left.eq(_LONGEST),
                keeping.eq(1),
                kinds[fill[:slot_bits]].eq(self.i.p.kind),
            ]
        with m.Elif(keeping):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                m.d.sync += [fill.eq(fill + 1), keeping.eq(0)]

        # - what the host has ----------------------------------------------------------------------
        # `start`: the frame at `next_` begins in this cycle. The host's word is compared a cycle
        # after it comes, and obeyed in the one behind that: a frame that begins meanwhile is one
        # from before it. No two words come within three cycles, nor do two frames begin.
        start, after = Signal(), Signal(8)
        m.d.comb += after.eq(next_ + start)
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
        ]
        m.d.sync += Assert(
            ~(self.ack.valid & (heard | compared)),
            "an acknowledgement comes before the one ahead of it is obeyed",
        )
        with m.If(self.ack.valid):
            m.d.sync += [word.eq(self.ack.p), again.eq(self.polled)]
        with m.If(compared & (done <= kept)):
            m.d.sync += base.eq(word)
            with m.If(again | (gone < done)):
                m.d.sync += next_.eq(word)

        owed, urgent, greet, waited = Signal(), Signal(), Signal(), Signal(range(self.patience + 1))
        m.d.sync += [
            owed.eq(owed | self.owed),
            urgent.eq(urgent | self.urgent),
            greet.eq(greet | self.greet),
        ]
        m.d.sync += waited.eq(Mux(owed, Mux(waited == self.patience, waited, waited + 1), 0))

        # - frames out -----------------------------------------------------------------------------
        kind, seq, flags, place, size = (
            Signal(4),
            Signal(8),
            Signal(8),
            Signal(range(_LONGEST + 1)),
            Signal(range(_LONGEST + 1)),
        )
        sizes = Array(Const(FROM_DEVICE.get(k, 0), len(size)) for k in range(16))
        greeting = Cat(self.nonce, Const(VERSION, 8), Const(WINDOW, 8), Const(0, 16))
        # A payload's bytes come from block RAM, through a register that holds the one at `o`:
        # `step` moves each on, and the head's last two bytes fill both.
        ahead, step, greeted, byte = Signal(range(_LONGEST + 2)), Signal(), Signal(8), Signal(8)
        m.d.comb += [
            slots.read_en.eq(step),
            slots.read_address.eq(Cat(Cat(ahead, Const(0, 7))[:7], seq[:slot_bits])),
        ]
        with m.If(step):
            m.d.sync += [
                ahead.eq(ahead + 1),
                greeted.eq(greeting.word_select(ahead[:3], 8)),
                byte.eq(Mux(kind == Kind.SYNC, greeted, slots.read_data)),
            ]
        # `expected` as it is when its byte is offered: what comes later, a later frame says.
        expected = Signal(8)
        head = Array((kind | flags, seq, expected))
        part = Signal(2)
        moved = self.o.valid & self.o.ready
        m.d.sync += size.eq(sizes[kind])  # a cycle after the kind, before the head's last byte
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [
                    part.eq(0),
                    place.eq(0),
                    ahead.eq(0),
                    seq.eq(next_),
                    flags.eq(Mux(urgent, NAK, 0)),
                ]
                with m.If(greet):
                    m.d.sync += [kind.eq(Kind.SYNC), greet.eq(self.greet), flags.eq(0)]
                    m.next = "HEAD"
                with m.Elif(urgent | (waited == self.patience)):
                    m.d.sync += [kind.eq(Kind.CONTROL), urgent.eq(self.urgent), owed.eq(self.owed)]
                    m.next = "HEAD"
                with m.Elif(next_ != fill):
                    m.d.comb += start.eq(1)
                    m.d.sync += owed.eq(self.owed)
                    m.next = "LOOK"
            with m.State("LOOK"):
                m.d.sync += kind.eq(kinds[seq[:slot_bits]])
                m.next = "HEAD"
            with m.State("HEAD"):
                m.d.comb += [
                    self.o.valid.eq(1),
                    self.o.p.byte.eq(head[part]),
                    self.o.p.last.eq((part == 2) & (size == 0)),
                ]
                m.d.comb += step.eq(moved & (part != 0))
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
                    self.o.p.byte.eq(byte),
                    step.eq(moved),
                ]
                with m.If(moved):
                    m.d.sync += place.eq(place + 1)
                    with m.If(self.o.p.last):
                        m.next = "IDLE"
        with m.If(self.clear):
            m.d.sync += [
                base.eq(0),
                fill.eq(0),
                next_.eq(0),
                left.eq(0),
                keeping.eq(0),
                owed.eq(0),
                urgent.eq(0),
                heard.eq(0),
                compared.eq(0),
            ]
        return m
