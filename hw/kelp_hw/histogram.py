# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Latency histogram in cycles, hits and misses apart (spec §9)."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from kelp_spec.registers import HISTOGRAM_BINS

__all__ = ["LatencyHistogram"]

_ROWS = 64   # two halves of 32: hits, then misses


class LatencyHistogram(wiring.Component):
    """Counts latencies by power of two: bin b holds 2^b … 2^(b+1)−1 cycles, bin 0 also 0.

    One event a cycle. Counts are 32 bits and saturate. Reading takes the event port's spare read slots: `read_data` is the count of `read_row` (b, or 32 + b
    for misses)
    one cycle after a cycle in which `read_grant` is high.

    Parameters
    ----------
    cycle_bits : int
        Width of a latency; longer ones fall into the last bin.
    """

    def __init__(self, *, cycle_bits: int):
        if not 1 <= cycle_bits <= 32:
            raise ValueError(f"cycle_bits = {cycle_bits} is refused; legal: 1 … 32")
        self.cycle_bits = cycle_bits
        super().__init__({
            "i": In(data.StructLayout({"missed": 1, "cycles": cycle_bits})),
            "i_valid": In(1),
            "clear": In(1),                 #: held high for 64 cycles or more empties every bin
            "read_row": In(range(_ROWS)),
            "read_grant": Out(1),
            "read_data": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=32, depth=_ROWS, init=[])
        write = memory.write_port()
        read = memory.read_port(transparent_for=(write,))

        # Stage 1: bin number. Stage 2: count out. Stage 3: incremented, written; forwarded to a younger event on the same row.
        bin_ = Signal(range(HISTOGRAM_BINS))
        for b in range(min(self.cycle_bits, HISTOGRAM_BINS)):
            with m.If(self.i.cycles[b]):
                m.d.comb += bin_.eq(b)
        if self.cycle_bits > HISTOGRAM_BINS:
            with m.If(self.i.cycles[HISTOGRAM_BINS:].any()):
                m.d.comb += bin_.eq(HISTOGRAM_BINS - 1)
        row1, valid1 = Signal(range(_ROWS)), Signal()
        m.d.sync += [row1.eq(Cat(bin_, self.i.missed)), valid1.eq(self.i_valid)]
        m.d.comb += [read.addr.eq(Mux(valid1, row1, self.read_row)), self.read_grant.eq(~valid1), self.read_data.eq(read.data)]

        row2, valid2 = Signal(range(_ROWS)), Signal()
        m.d.sync += [row2.eq(row1), valid2.eq(valid1)]
        m.d.comb += [
            write.addr.eq(row2),
            write.en.eq(valid2),
            write.data.eq(read.data + ~read.data.all()),
        ]
        sweep = Signal(range(_ROWS))
        with m.If(self.clear):
            m.d.sync += sweep.eq(sweep + 1)
            m.d.comb += [write.addr.eq(sweep), write.en.eq(1), write.data.eq(0)]
        return m
