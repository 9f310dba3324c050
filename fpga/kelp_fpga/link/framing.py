# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Frames on a stream of bytes: flags, escapes and CRC-32 (kelp_fpga.link.protocol). Knows nothing
of what frames mean, nor what carries the bytes. A byte a cycle; bytes of the line are bytes of a
body 1 cycle later, those of a body on the line in the same cycle, behind the flag."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .crc32 import INITIAL, crc32_step
from .protocol import ESCAPE, FLAG, RESIDUE

__all__ = ["Deframer", "Framer", "body_byte"]

#: One byte of a body; `last` ends it.
body_byte = data.StructLayout({"byte": 8, "last": 1})


class Deframer(wiring.Component):
    """Bytes of the line to bytes of bodies, always ready: one each `INTERVAL` cycles. Latency:
    `LATENCY` cycle, registered.

    Members
    -------
    i : In stream(8)
    byte : Out, always-ready stream
        Each byte of a body, the CRC's included.
    end, good : Out
        A body is over; `good`: its CRC is right and it does not end within an escape. Bodies of no
        bytes are not reported.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "i": In(stream.Signature(8)),
                "byte": Out(stream.Signature(8, always_ready=True)),
                "end": Out(1),
                "good": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        crc, escaped, empty, byte = Signal(32, init=INITIAL), Signal(), Signal(init=1), Signal(8)
        m.d.comb += [self.i.ready.eq(1), byte.eq(self.i.payload ^ Mux(escaped, 0x20, 0))]
        m.d.sync += [
            self.byte.p.eq(byte),
            self.byte.valid.eq(0),
            self.end.eq(0),
            self.good.eq((crc == RESIDUE) & ~escaped),
        ]
        with m.If(self.i.valid):
            with m.If(self.i.payload == FLAG):
                m.d.sync += [self.end.eq(~empty), crc.eq(INITIAL), escaped.eq(0), empty.eq(1)]
            with m.Elif(self.i.payload == ESCAPE):
                m.d.sync += [escaped.eq(1), empty.eq(0)]
            with m.Else():
                m.d.sync += [
                    self.byte.valid.eq(1),
                    escaped.eq(0),
                    empty.eq(0),
                    crc.eq(crc32_step(crc, byte)),
                ]
        return m


class Framer(wiring.Component):
    """Bodies without their CRC to bytes of the line; a byte each `INTERVAL` cycles when the line
    takes them, and one more for each that is escaped. Latency: a body's first byte follows the
    flag, `LATENCY` cycle after it is first offered; the others pass combinationally.

    Members
    -------
    i : In stream(body_byte)
    o : Out stream(8)
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self):
        super().__init__({"i": In(stream.Signature(body_byte)), "o": Out(stream.Signature(8))})

    def elaborate(self, platform):
        m = Module()
        crc, count, escaped, last = Signal(32, init=INITIAL), Signal(2), Signal(), Signal()
        byte, special = Signal(8), Signal()
        check = ~crc
        m.d.comb += special.eq((byte == FLAG) | (byte == ESCAPE))

        def put(*, done):
            """Offer `byte`, escaped where it must be; `done` when its last half is taken."""
            m.d.comb += self.o.payload.eq(Mux(escaped, byte ^ 0x20, Mux(special, ESCAPE, byte)))
            with m.If(self.o.valid & self.o.ready):
                m.d.sync += escaped.eq(special & ~escaped)
            m.d.comb += done.eq(self.o.valid & self.o.ready & (escaped | ~special))

        taken = Signal()
        with m.FSM():
            with m.State("OPEN"):
                m.d.comb += [self.o.payload.eq(FLAG), self.o.valid.eq(self.i.valid)]
                m.d.sync += [crc.eq(INITIAL), count.eq(0)]
                with m.If(self.i.valid & self.o.ready):
                    m.next = "BODY"
            with m.State("BODY"):
                m.d.comb += [
                    byte.eq(self.i.p.byte),
                    last.eq(self.i.p.last),
                    self.o.valid.eq(self.i.valid),
                    self.i.ready.eq(taken),
                ]
                put(done=taken)
                with m.If(taken):
                    m.d.sync += crc.eq(crc32_step(crc, byte))
                    with m.If(last):
                        m.next = "CRC"
            with m.State("CRC"):
                m.d.comb += [byte.eq(check.word_select(count, 8)), self.o.valid.eq(1)]
                put(done=taken)
                with m.If(taken):
                    m.d.sync += count.eq(count + 1)
                    with m.If(count == 3):
                        m.next = "CLOSE"
            with m.State("CLOSE"):
                m.d.comb += [self.o.payload.eq(FLAG), self.o.valid.eq(1)]
                with m.If(self.o.ready):
                    m.next = "OPEN"
        return m
