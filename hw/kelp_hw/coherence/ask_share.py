# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Two that ask the front for sectors: evictions, and the mailbox (docs/coherence.md). Asks and
answers pass in the cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["AskShare"]


class AskShare(wiring.Component):
    """Joins two streams of sectors, and gives each its answers, which come in order. The second
    goes first: it asks for one sector and waits for its answer. What stands goes before both.

    Latency: `LATENCY`, combinational. One ask in each cycle (`INTERVAL`), while no more than
    `DEPTH` wait for their answers. No error cases.

    Parameters
    ----------
    sector_bits : int
        Of a sector's number.

    Members
    -------
    i_first, i_second : in, streams of sectors
    o_ask : out, stream of sectors; i_answer : in, always-ready stream
        As `CoherentFront` has them.
    o_first, o_second : out, always-ready streams
    """

    LATENCY = 0
    INTERVAL = 1
    DEPTH = 8

    def __init__(self, *, sector_bits: int):
        self.sector_bits = sector_bits
        ask, answer = stream.Signature(sector_bits), stream.Signature(1, always_ready=True)
        super().__init__(
            {
                "i_first": In(ask),
                "i_second": In(ask),
                "o_ask": Out(ask),
                "i_answer": In(answer),
                "o_first": Out(answer),
                "o_second": Out(answer),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Whose the asks are that wait for their answers, oldest at bit 0; how many there are.
        whose, count = Signal(self.DEPTH), Signal(range(self.DEPTH + 1))
        turn, stays, room, asks = Signal(), Signal(), Signal(), Signal()
        left, kept = Signal(range(self.DEPTH + 1)), Signal(self.DEPTH)
        m.d.comb += [
            room.eq(count != self.DEPTH),
            turn.eq(self.i_second.valid & ~stays),
            self.o_ask.valid.eq((self.i_first.valid | self.i_second.valid) & room),
            self.o_ask.p.eq(Mux(turn, self.i_second.p, self.i_first.p)),
            self.i_first.ready.eq(self.o_ask.ready & room & ~turn),
            self.i_second.ready.eq(self.o_ask.ready & room & turn),
            asks.eq(self.o_ask.valid & self.o_ask.ready),
            left.eq(count - self.i_answer.valid),
            kept.eq(Mux(self.i_answer.valid, whose >> 1, whose)),
            self.o_first.valid.eq(self.i_answer.valid & ~whose[0]),
            self.o_second.valid.eq(self.i_answer.valid & whose[0]),
            self.o_first.p.eq(self.i_answer.p),
            self.o_second.p.eq(self.i_answer.p),
        ]
        m.d.sync += [
            stays.eq(self.i_first.valid & room & ~self.o_ask.ready & ~turn),
            count.eq(left + asks),
            whose.eq(kept | (asks & turn) << left),
            Assert(~self.i_answer.valid | (count != 0), "an answer to no ask"),
        ]
        return m
