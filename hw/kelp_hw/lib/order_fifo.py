# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A FIFO in block RAM whose oldest item stands in a register. One item a cycle, which takes 2
cycles when nothing waits."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .protected import Fault, ProtectedMemory

__all__ = ["OrderFifo"]


class OrderFifo(wiring.Component):
    """A FIFO of `depth` items, as `SyncFIFOBuffered` cycle by cycle, except that `o.p` is a
    register. Critical path: the output of a block RAM, registered here.

    That register costs no cycle: it is loaded with what the RAM was asked for beforehand, or, when
    nothing waits in the RAM, with what came last. Latency: `LATENCY` cycles from `i` to `o` when
    nothing waits. One item in each cycle (`INTERVAL`). No error cases.

    Parameters
    ----------
    width : int
    depth : int
        A power of two, 4 and up.
    protect : bool
        The RAM's rows carry check bits, with encoder and decoder combinational.
    parts : sequence of int, optional
        As `CheckedWord` has them.

    Members
    -------
    i, o : streams
    level : out
        Items in the FIFO, those of its registers included.
    fault : out, Fault
        Of an item that moves from the RAM's output to `o`, in the cycle before it is there. Zero
        when not protected.
    lost : out
        With `parts`: a bit for each that is beyond repair, of the item at `o`.

    Attributes
    ----------
    last : Signal
        What came in the cycle before.
    ahead : Signal
        The RAM's output is the item behind `o`'s.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, width: int, depth: int, protect: bool = False, parts=None):
        if not isinstance(depth, int) or depth < 4 or depth & (depth - 1):
            raise ValueError(f"depth = {depth!r} is refused; legal: a power of two, 4 and up")
        self.width, self.depth, self.protect, self.parts = width, depth, protect, parts
        super().__init__(
            {
                "i": In(stream.Signature(width)),
                "o": Out(stream.Signature(width)),
                "level": Out(range(depth + 1)),
                "fault": Out(Fault),
                **({} if parts is None else {"lost": Out(len(parts))}),
            }
        )
        self.last, self.ahead = Signal(width), Signal()

    def elaborate(self, platform):
        m = Module()
        # What is read is never what is being written: a row is read in the cycle after it was
        # written at the earliest.
        m.submodules.rows = rows = ProtectedMemory(
            depth=self.depth,
            shape=self.width,
            protect=self.protect,
            parts=self.parts,
            transparent=False,
        )
        begin, end = Signal(range(self.depth)), Signal(range(self.depth))
        last, ahead = self.last, self.ahead
        waits, moves, asks, puts, takes = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(self.level != self.depth),
            puts.eq(self.i.valid & self.i.ready),
            takes.eq(self.o.valid & self.o.ready),
            rows.write_en.eq(puts),
            rows.write_address.eq(end),
            rows.write_data.eq(self.i.p),
            rows.read_en.eq(asks),
            rows.read_address.eq(begin),
            # At most `depth` - 1 wait in the RAM: where two do, one is ahead.
            waits.eq(begin != end),
            moves.eq(~self.o.valid | self.o.ready),
            asks.eq(waits & (~ahead | moves)),
            self.fault.as_value().eq(Mux(moves & ahead, rows.fault.as_value(), 0)),
        ]
        m.d.sync += [last.eq(self.i.p), ahead.eq(Mux(moves, ahead & waits, ahead | waits))]
        with m.If(moves):
            # With nothing ahead, what waits came in the cycle before.
            m.d.sync += [
                self.o.valid.eq(ahead | waits),
                self.o.p.eq(Mux(ahead, rows.read_data, last)),
            ]
            if self.parts is not None:
                m.d.sync += self.lost.eq(Mux(ahead, rows.uncorrected, 0))
        with m.If(puts):
            m.d.sync += end.eq(end + 1)
        with m.If(asks):
            m.d.sync += begin.eq(begin + 1)
        with m.If(puts != takes):
            m.d.sync += self.level.eq(Mux(puts, self.level + 1, self.level - 1))
        waiting = Signal(range(self.depth))
        m.d.comb += waiting.eq(end - begin)
        m.d.sync += [
            Assert(
                self.level == waiting + ahead + self.o.valid,
                "an item is counted twice or not at all",
            ),
            Assert(ahead | (waiting <= 1), "an older item waits than the one that came last"),
        ]
        return m
