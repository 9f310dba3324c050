# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""UART, 8N1: bits of a wire to bytes of a stream and back. A byte takes ten bits of `divisor`
cycles each; a received one is there in the middle of its stop bit."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import cdc, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["UartReceiver", "UartTransmitter", "uart_divisor"]

_FRAME_BITS = 10  #: of a byte on the wire: start, eight of data, stop


def uart_divisor(hz: int, baud: int) -> int:
    """Clock cycles per bit of a line rate. ValueError when the clock does not make it within 3
    %."""
    if hz <= 0 or baud <= 0:
        raise ValueError(
            f"a clock of {hz / 1e6:g} MHz and baud = {baud} are refused; legal: more than 0"
        )
    divisor = max(1, round(hz / baud))
    if not 0.97 < hz / divisor / baud < 1.03:
        raise ValueError(
            f"baud = {baud} is refused with a clock of {hz / 1e6:g} MHz: {hz / baud:.2f} "
            + "cycles a bit; choose a whole part of the clock"
        )
    return divisor


def _checked(divisor: int) -> int:
    if not isinstance(divisor, int) or not 4 <= divisor <= 65535:
        raise ValueError(f"divisor = {divisor!r} is refused; legal: 4 … 65535 clock cycles per bit")
    return divisor


class UartReceiver(wiring.Component):
    """Bytes from a wire. A byte without a stop bit is dropped, and so is one that comes while the
    byte before it has not been taken.

    Sampled in the middle of each bit, counted from the start bit's edge: off by half a bit after
    9.5, so the clocks may differ by 4 % at large divisors.

    Latency: `LATENCY` cycles from the start bit's edge, in the middle of the stop bit; a byte each
    `INTERVAL` cycles.

    Parameters
    ----------
    divisor : int
        Clock cycles per bit.

    Members
    -------
    rx : In(1)
        The wire, asynchronous, high when idle.
    o : Out stream(8)
    """

    def __init__(self, *, divisor: int):
        self.divisor = _checked(divisor)
        super().__init__({"rx": In(1), "o": Out(stream.Signature(8))})

    @property
    def LATENCY(self) -> int:
        """The synchroniser, half a bit, the other nine, and the byte's register."""
        return 2 + self.divisor // 2 + (_FRAME_BITS - 1) * self.divisor + 1

    @property
    def INTERVAL(self) -> int:
        return _FRAME_BITS * self.divisor

    def elaborate(self, platform):
        m = Module()
        rx = Signal(init=1)
        m.submodules.sync = cdc.FFSynchronizer(self.rx, rx, init=1)
        count, bits, shift, busy = (
            Signal(range(self.divisor + self.divisor // 2)),
            Signal(range(10)),
            Signal(8),
            Signal(),
        )
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        broken = Signal()  # the line must rest before another start bit counts
        with m.If(broken):
            m.d.sync += broken.eq(~rx)
        with m.Elif(~busy):
            # One and a half bits from here is the middle of the first data bit; a start bit that is
            # gone half a bit on was noise.
            m.d.sync += [busy.eq(~rx), bits.eq(0), count.eq(self.divisor // 2 - 1)]
        with m.Elif(count != 0):
            m.d.sync += count.eq(count - 1)
        with m.Else():
            m.d.sync += [
                count.eq(self.divisor - 1),
                bits.eq(bits + 1),
                shift.eq(Cat(shift[1:], rx)),
            ]
            with m.If((bits == 0) & rx):
                m.d.sync += busy.eq(0)
            with m.If(bits == 9):
                m.d.sync += [busy.eq(0), shift.eq(shift), broken.eq(~rx)]
                with m.If(rx & ~self.o.valid):
                    m.d.sync += [self.o.payload.eq(shift), self.o.valid.eq(1)]
        return m


class UartTransmitter(wiring.Component):
    """Bytes to a wire, back to back: ten bits of `divisor` cycles each, so one each `INTERVAL`
    cycles. Latency: its start bit begins `LATENCY` cycle after a byte is taken.

    Parameters
    ----------
    divisor : int
        Clock cycles per bit.

    Members
    -------
    i : In stream(8)
    tx : Out(1)
        The wire, high when idle and in reset.
    """

    LATENCY = 1

    def __init__(self, *, divisor: int):
        self.divisor = _checked(divisor)
        super().__init__({"i": In(stream.Signature(8)), "tx": Out(1, init=1)})

    @property
    def INTERVAL(self) -> int:
        return _FRAME_BITS * self.divisor

    def elaborate(self, platform):
        m = Module()
        count, bits, shift = Signal(range(self.divisor)), Signal(range(11)), Signal(9, init=0x1FF)
        last = Signal()
        m.d.comb += [last.eq(count == 0), self.i.ready.eq((bits == 0) | ((bits == 1) & last))]
        m.d.sync += [
            self.tx.eq(Mux(bits == 0, 1, self.tx)),
            count.eq(Mux(last, self.divisor - 1, count - 1)),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                self.tx.eq(0),
                shift.eq(Cat(self.i.payload, 1)),
                bits.eq(10),
                count.eq(self.divisor - 1),
            ]
        with m.Elif((bits != 0) & last):
            m.d.sync += [self.tx.eq(shift[0]), shift.eq(Cat(shift[1:], 1)), bits.eq(bits - 1)]
        return m
