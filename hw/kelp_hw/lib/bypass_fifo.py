# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Where answers wait for their channel, so that the pipeline behind them never has to
(docs/design.md §4)."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Shape, Signal, Value
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AnswerQueue"]


class AnswerQueue(wiring.Component):
    """A queue of `depth` places whose input cannot wait: whoever sends has counted the places.

    Latency none when nothing waits; throughput one a cycle, of what has waited one in two cycles
    when `apart`. No register of the queue's rows waits for `o.ready`: the row at the end is written
    in any case, and counts only when what came did not go straight on.

    Parameters
    ----------
    depth : int
        A power of two; 16 rows are one level of an ECP5's distributed RAM.
    shape : shape-like
    apart : bool
        What comes is two cycles apart on average. The oldest row is a register then, which loads in
        every cycle, and counts two cycles after it came.

    Members
    -------
    i, i_valid : valid-only
    o : stream
    row, row_valid : out
        The oldest of what waits: `o.p` too, while `row_valid`.
    level : out
        How many wait.
    """

    def __init__(self, *, depth: int, shape, apart: bool = False):
        if not isinstance(depth, int) or depth < 2 or depth & (depth - 1):
            raise ValueError(f"depth = {depth!r} is refused; legal: a power of two, 2 and up")
        self.depth, self.shape, self.apart = depth, shape, apart
        super().__init__(
            {
                "i": In(shape),
                "i_valid": In(1),
                "o": Out(stream.Signature(shape)),
                "row": Out(shape),
                "row_valid": Out(1),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = Shape.cast(self.shape).width
        m.submodules.rows = rows = memory.Memory(shape=width, depth=self.depth, init=())
        write, read = rows.write_port(), rows.read_port(domain="comb")
        begin, end, level = Signal(range(self.depth)), Signal(range(self.depth)), self.level
        waits = Signal()  # level != 0
        takes, keeps = Signal(), Signal()
        m.d.comb += [
            write.en.eq(self.i_valid),
            write.addr.eq(end),
            write.data.eq(Value.cast(self.i)),
            read.addr.eq(begin),
            self.o.valid.eq(Mux(waits, self.row_valid, self.i_valid)),
            Value.cast(self.o.p).eq(Mux(waits, Value.cast(self.row), Value.cast(self.i))),
            takes.eq(self.row_valid & self.o.ready),
            keeps.eq(self.i_valid & (waits | ~self.o.ready)),
        ]
        row = Value.cast(self.row)
        if self.apart:
            m.d.sync += [row.eq(read.data), self.row_valid.eq(waits & ~takes)]
        else:
            m.d.comb += [row.eq(read.data), self.row_valid.eq(waits)]
        with m.If(takes):
            m.d.sync += begin.eq(begin + 1)
        with m.If(keeps):
            m.d.sync += end.eq(end + 1)
        with m.If(takes != keeps):
            m.d.sync += [level.eq(Mux(keeps, level + 1, level - 1)), waits.eq(keeps | (level != 1))]
        m.d.sync += [
            Assert(~keeps | takes | (level != self.depth), "an answer without a place"),
            Assert(waits == (level != 0)),
        ]
        return m
