# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A FIFO for reads of memory, written before it is known whether they count. One item a cycle,
which takes 1 cycle when nothing waits."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal, Value
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .protected import CheckedWord, Fault

__all__ = ["RequestFifo"]


class RequestFifo(wiring.Component):
    """A FIFO of `depth` rows whose input cannot wait: its sender counts the places.

    Latency: `LATENCY` cycle from `i` to `o` when nothing waits. One item in each cycle
    (`INTERVAL`). Errors: an item without a place is an assertion. Critical path: no enable or
    address of the rows depends on `i.valid`; the row at the end is always written, and counts only
    with `i.valid`.

    Parameters
    ----------
    depth : int
        A power of two.
    shape : shape-like
        Of an item.
    protect : bool
        The rows carry check bits, with encoder and decoder combinational.

    Members
    -------
    i : always-ready stream
    o : stream
    level : out
        How many items wait.
    fault : out, Fault
        Of the item that leaves the rows: `corrected` in that cycle, `uncorrected` while it stands
        at their end. Zero when not protected.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, depth: int, shape, protect: bool = False):
        if not isinstance(depth, int) or depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth = {depth!r} is refused; legal: a power of two, 2 and up")
        self.depth, self.shape = depth, shape
        self.word = CheckedWord(shape, protect=protect)
        super().__init__(
            {
                "i": In(stream.Signature(shape, always_ready=True)),
                "o": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
                "fault": Out(Fault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory.Memory(
            shape=self.word.code_bits, depth=self.depth, init=()
        )
        write, read = rows.write_port(), rows.read_port(domain="comb")
        begin, end, takes = Signal(range(self.depth)), Signal(range(self.depth)), Signal()
        oldest, single, double = self.word.decode(m, read.data)
        m.d.comb += [
            # When all places are taken, the end is the beginning.
            write.en.eq(self.level != self.depth),
            write.addr.eq(end),
            write.data.eq(self.word.encode(m, self.i.p)),
            read.addr.eq(begin),
            self.o.valid.eq(self.level != 0),
            Value.cast(self.o.p).eq(oldest),
            takes.eq(self.o.valid & self.o.ready),
            self.fault.corrected.eq(takes & single.any()),
            self.fault.uncorrected.eq(self.o.valid & double.any()),
        ]
        with m.If(takes):
            m.d.sync += begin.eq(begin + 1)
        with m.If(self.i.valid):
            m.d.sync += end.eq(end + 1)
        with m.If(takes != self.i.valid):
            m.d.sync += self.level.eq(Mux(takes, self.level - 1, self.level + 1))
        m.d.sync += Assert(~self.i.valid | (self.level != self.depth), "a request without a place")
        return m
