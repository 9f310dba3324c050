# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The receiving half of the device's link: bodies of frames to messages, each once and in order
(kelp_fpga.link.host_link has the protocol). A byte a cycle in; a message out in as many cycles as
it has bytes, and 4."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_hw.lib.sram import Sram

from .protocol import OVERHEAD, POLL, TO_DEVICE, WINDOW, Kind

__all__ = ["LinkReceiver", "injected", "received"]

_LONGEST = max(TO_DEVICE.values())
_SLOT = 128  #: bytes of memory per frame

#: A message: its kind, and its payload in the upper bytes of `payload` (`Kind.RWD` fills it).
received = data.StructLayout({"kind": 4, "payload": 8 * _LONGEST})

#: A byte of a message that the device makes itself; `kind` is of the whole.
injected = data.StructLayout({"byte": 8, "kind": 4, "last": 1})


class LinkReceiver(wiring.Component):
    """Frames are kept in a memory of `WINDOW` slots until their message is taken; a frame counts
    only when its CRC has been seen to be right.

    Throughput: a byte in each `INTERVAL` cycles. Latency: a message is offered `LATENCY` cycles,
    and one for each of its bytes, after its frame's `end`.

    Members
    -------
    byte : In, always-ready stream
    end, good : In
        From :class:`.framing.Deframer`.
    o : Out stream(received)
    hold : In
        Of what the host sent only messages of `Kind.BOARD` leave; behind another one they wait with
        it.
    inject : In stream(injected)
        Messages of the device's own, out of the same register; begun between two of the host's.
        While `hold`.
    clear : In
        Forget every frame and count from 0 again.
    enable : In
        Frames other than SYNC count.
    expected : Out
        Number of the next frame that is wanted.
    ack : Out, always-ready stream
        What a good frame acknowledges.
    owed : Out
        A frame came that the host should hear about: to be acknowledged some time.
    urgent : Out
        The host wants to hear it now: it polled, or a frame is missing (said once until it comes).
    polled : Out
        The host wants everything again that it has not acknowledged. With `ack_valid`.
    sync, nonce : Out
        A SYNC frame.
    """

    LATENCY = 4
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "byte": In(stream.Signature(8, always_ready=True)),
                "end": In(1),
                "good": In(1),
                "o": Out(stream.Signature(received)),
                "clear": In(1),
                "enable": In(1),
                "hold": In(1),
                "inject": In(stream.Signature(injected)),
                "expected": Out(8),
                "ack": Out(stream.Signature(8, always_ready=True)),
                "owed": Out(1),
                "urgent": Out(1),
                "polled": Out(1),
                "sync": Out(1),
                "nonce": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slot_bits = (WINDOW - 1).bit_length()
        m.submodules.slots = slots = Sram(depth=WINDOW * _SLOT, shape=8)
        kinds = Array(Signal(4, name=f"kind_{k}") for k in range(WINDOW))
        taken = Signal(8)  # number of the next frame whose message leaves
        self._take_bodies(m, slots, kinds, taken)
        self._give_messages(m, slots, kinds[taken[:slot_bits]], taken)
        return m

    def _take_bodies(self, m, slots, kinds, taken):
        """A body comes in."""
        slot_bits = (WINDOW - 1).bit_length()
        lengths = {kind: n + OVERHEAD for kind, n in TO_DEVICE.items()}
        # bytes of this body so far; stops at a length that no body has
        index = Signal(range(_SLOT))
        control, seq, tail = Signal(8), Signal(8), Signal(32 + 32)
        # Whether there is a place for this body, known before its first byte is stored: one that
        # comes free later has not got that.
        room = Signal()
        with m.If(index < 2):
            m.d.sync += room.eq((self.expected - taken)[:8] < WINDOW)
        with m.If(self.byte.valid):
            m.d.sync += [
                index.eq(Mux(index.all(), index, index + 1)),
                tail.eq(Cat(tail[8:], self.byte.p)),
            ]
            with m.If(index == 0):
                m.d.sync += control.eq(self.byte.p)
            with m.If(index == 1):
                m.d.sync += seq.eq(self.byte.p)
            with m.If(index == 2):
                m.d.sync += self.ack.p.eq(self.byte.p)
        m.d.comb += [
            slots.write_en.eq(self.byte.valid & (index >= 3) & room),
            slots.write_data.eq(self.byte.p),
            slots.write_address.eq(Cat((index - 3)[:7], self.expected[:slot_bits])),
        ]
        kind = control[:4]
        m.d.comb += self.nonce.eq(tail[:32])  # behind the nonce come four bytes of CRC
        # Judged in the cycle after its end: bodies are two bytes of the line apart at least.
        sound, wanted, missing_told = Signal(), Signal(), Signal()
        m.d.sync += sound.eq(0)
        with m.Switch(kind):
            for code, length in lengths.items():
                with m.Case(code):
                    m.d.sync += sound.eq(self.end & self.good & (index == length))
        numbered = (kind != Kind.CONTROL) & (kind != Kind.SYNC)
        m.d.sync += wanted.eq(numbered & (seq == self.expected) & room)
        with m.If(self.end):
            m.d.sync += index.eq(0)
        with m.If(sound & (kind == Kind.SYNC)):
            m.d.comb += self.sync.eq(1)
        with m.Elif(sound & self.enable):
            m.d.comb += [
                self.ack.valid.eq(1),
                self.polled.eq((control & POLL).any()),
                self.owed.eq(numbered),
            ]
            with m.If(wanted):
                m.d.sync += [
                    self.expected.eq(self.expected + 1),
                    kinds[self.expected[:slot_bits]].eq(kind),
                    missing_told.eq(0),
                ]
            with m.Elif(numbered):
                # A frame from behind was seen before: it is only acknowledged again. One from ahead
                # shows a gap.
                ahead = (seq - self.expected)[:8] < 2 * WINDOW
                m.d.comb += self.urgent.eq(ahead & ~missing_told)
                m.d.sync += missing_told.eq(missing_told | ahead)
            with m.If(self.polled):
                m.d.comb += self.urgent.eq(1)
                m.d.sync += missing_told.eq(0)
        with m.If(self.clear):
            m.d.sync += [self.expected.eq(0), missing_told.eq(0)]

    def _give_messages(self, m, slots, slot_kind, taken):
        """A message goes out; the next is of ``slot_kind``."""
        slot_bits = (WINDOW - 1).bit_length()
        place, here = Signal(range(_LONGEST + 1)), Signal()
        size = Signal(range(_LONGEST + 1))
        with m.Switch(slot_kind):
            for code, length in TO_DEVICE.items():
                with m.Case(code):
                    m.d.comb += size.eq(Const(length, len(size)))
        m.d.comb += [
            slots.read_en.eq(1),
            slots.read_address.eq(Cat(Cat(place, Const(0, 7))[:7], taken[:slot_bits])),
        ]
        # a message of the device's own is being made; is the one that leaves
        inside, own = Signal(), Signal()
        # A byte goes in from a register, whose enable comes from one: it steers hundreds.
        # `complete`: the last one goes in. Bytes that are not taken may pass through while no
        # message stands here: its own push them out.
        moves, byte, complete = Signal(), Signal(8), Signal()
        m.d.sync += [
            moves.eq(~self.o.valid & ~complete & (here | self.inject.valid)),
            byte.eq(Mux(here, slots.read_data, self.inject.p.byte)),
        ]
        with m.If(moves):
            m.d.sync += self.o.p.payload.eq(Cat(self.o.p.payload[8:], byte))
        m.d.comb += self.inject.ready.eq(
            self.hold & ~self.o.valid & ~complete & ~here & (place == 0)
        )
        with m.If(self.o.valid):
            with m.If(self.o.ready):
                m.d.sync += [self.o.valid.eq(0), taken.eq(taken + ~own), own.eq(0)]
        with m.Elif(complete):
            m.d.sync += [self.o.valid.eq(1), complete.eq(0)]
        with m.Elif(inside | (self.inject.valid & self.inject.ready)):
            with m.If(self.inject.valid):
                m.d.sync += [
                    self.o.p.kind.eq(self.inject.p.kind),
                    inside.eq(~self.inject.p.last),
                    own.eq(1),
                    complete.eq(self.inject.p.last),
                ]
        with m.Elif(((taken != self.expected) & ~(self.hold & (slot_kind != Kind.BOARD))) | here):
            m.d.sync += [
                self.o.p.kind.eq(slot_kind),
                here.eq(place != size),
                place.eq(Mux(place == size, 0, place + 1)),
            ]
            with m.If(place == size):
                m.d.sync += complete.eq(1)
        with m.If(own & ~self.hold):
            # Nobody waits for its answer any more, and the device is being reset.
            m.d.sync += [self.o.valid.eq(0), complete.eq(0), own.eq(0), inside.eq(0)]
        with m.If(self.clear):
            m.d.sync += [
                taken.eq(0),
                self.o.valid.eq(0),
                complete.eq(0),
                here.eq(0),
                place.eq(0),
                own.eq(0),
            ]
