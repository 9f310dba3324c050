# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Histogram of latencies, one for hits and one for misses (spec §9). One event a cycle, counted by
reads after 5 cycles; a read is answered after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from kelp_spec.registers import HISTOGRAM_BINS

from ..layouts import latency_layout

__all__ = ["LatencyHistogram"]


class LatencyHistogram(wiring.Component):
    """Counts latencies by power of two: bin b holds 2^b … 2^(b+1)−1 cycles, bin 0 also 0.

    Latency: reads from `LATENCY` cycles after an event on count it; `read_data` comes
    `READ_LATENCY` cycle after `read_row`. One event and one read in each cycle (`INTERVAL`). Counts
    are 32 bits and saturate. No error cases.

    Parameters
    ----------
    cycle_bits : int
        Width of a latency, 1 … 32; latencies beyond the bins fall into the last one.

    Members
    -------
    i : always-ready stream of latency_layout
        An event.
    clear : in
        Held high for `ROWS` cycles or more, it empties every bin, while no event comes or is
        inside: one that has read its bin before brings the old count back.
    read_row : in
        b, or 32 + b for misses.
    read_data : out
        The count of the `read_row` of the last cycle.
    """

    ROWS = 64  #: two halves of 32: hits, then misses
    LATENCY = 5
    READ_LATENCY = 1
    INTERVAL = 1
    CLEARS = ("memory",)  #: memories in it that are written whole before it is ready

    def __init__(self, *, cycle_bits: int):
        if not 1 <= cycle_bits <= 32:
            raise ValueError(f"cycle_bits = {cycle_bits} is refused; legal: 1 … 32")
        self.cycle_bits = cycle_bits
        super().__init__(
            {
                "i": In(stream.Signature(latency_layout(cycle_bits), always_ready=True)),
                "clear": In(1),
                "read_row": In(range(self.ROWS)),
                "read_data": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=32, depth=self.ROWS, init=[])
        write = memory.write_port()
        # A port of its own for the host's reads, which is a second block RAM: with one answer a
        # cycle there is no cycle in which an event's read leaves the port free.
        read, shown = (memory.read_port(transparent_for=(write,)) for _ in range(2))

        # Stage 0: `i` registered, since egress has it on a critical path. 1: bin number. 2: count
        # out. 3: incremented. 4: written, and forwarded to younger events on the same row.
        event, valid0 = Signal.like(self.i.p), Signal()
        m.d.sync += [event.eq(self.i.p), valid0.eq(self.i.valid)]
        bin_ = Signal(range(HISTOGRAM_BINS))
        for b in range(min(self.cycle_bits, HISTOGRAM_BINS)):
            with m.If(event.cycles[b]):
                m.d.comb += bin_.eq(b)
        if self.cycle_bits > HISTOGRAM_BINS:
            with m.If(event.cycles[HISTOGRAM_BINS:].any()):
                m.d.comb += bin_.eq(HISTOGRAM_BINS - 1)
        rows, valid = [Signal(range(self.ROWS), name=f"row{k}") for k in range(1, 5)], Signal(4)
        row1, row2, row3, row4 = rows
        m.d.sync += [
            row1.eq(Cat(bin_, event.missed)),
            row2.eq(row1),
            row3.eq(row2),
            row4.eq(row3),
            valid.eq(Cat(valid0, valid)),
        ]
        m.d.comb += [
            read.addr.eq(row1),
            shown.addr.eq(self.read_row),
            self.read_data.eq(shown.data),
        ]

        # The memory shows what is written while it is read; the event just before has its count in
        # stage 4 when this one is in stage 3, the one before that when this one's count is out.
        count, after, follows, follows_second = Signal(32), Signal(32), Signal(), Signal()
        before = Mux(follows, after, count)
        m.d.sync += [
            follows_second.eq(valid[2] & (row1 == row3)),
            count.eq(Mux(follows_second, after, read.data)),
            follows.eq(valid[2] & (row2 == row3)),
            after.eq(before + ~before.all()),
        ]
        m.d.comb += [write.addr.eq(row4), write.en.eq(valid[3]), write.data.eq(after)]
        sweep = Signal(range(self.ROWS))
        with m.If(self.clear):
            m.d.sync += sweep.eq(sweep + 1)
            m.d.comb += [write.addr.eq(sweep), write.en.eq(1), write.data.eq(0)]
        return m
