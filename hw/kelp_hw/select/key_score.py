# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Exact scores of stored keys (docs/select.md, "Scores"). One line a cycle; a token's scores 11
cycles after its last line."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from .block_form import unpack
from .line_scores import LineScores
from .signatures import SelectLayouts

__all__ = ["KeyScore"]


class KeyScore(wiring.Component):
    """Brings stored lines into block form and scores them for all query heads of a group.

    int8 and int4 lines come as they are stored; raw16 and fp8 lines as the quantiser would store
    them in int8.

    Latency: `LATENCY` cycles from a token's last line to `o`. One line in each cycle (`INTERVAL`).
    Errors: none; a token with a NaN has the least score.

    Parameters
    ----------
    heads : int
    lines : int
        Lines of a token at most.
    id_bits : int

    Members
    -------
    i_query : in, always-ready stream of query_line
        Only while `idle`.
    scale : in
        Holds still while tokens are inside.
    i : in, stream of stored_line
        The lines of a token, 0 … `last`, one token after another.
    o : out, stream of scores
        `id` is that of the last line.
    idle : out
        No line is inside.
    """

    LATENCY = LineScores.LATENCY + 1
    INTERVAL = 1

    def __init__(self, *, heads: int, lines: int, id_bits: int):
        layouts = self.layouts = SelectLayouts(heads=heads, lines=lines, id_bits=id_bits)
        self.heads, self.lines, self.id_bits = heads, lines, id_bits
        super().__init__(
            {
                "i_query": In(stream.Signature(layouts.query_line, always_ready=True)),
                "scale": In(layouts.scale),
                "i": In(stream.Signature(layouts.stored_line)),
                "o": Out(stream.Signature(layouts.scores)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.scores = scores = LineScores(
            heads=self.heads, lines=self.lines, id_bits=self.id_bits
        )
        connect(m, flipped(self.i_query), scores.i_query)
        connect(m, scores.o, flipped(self.o))
        stored, line = self.i.p, Signal(self.layouts.line)
        unpack(m, stored, line.low, line.exponent, line.nan)
        m.d.comb += [
            scores.scale.eq(self.scale),
            self.i.ready.eq(~scores.i.valid | scores.i.ready),
            self.idle.eq(scores.idle & ~self.i.valid),
            line.high.eq(line.low),
            *(line[name].eq(stored[name]) for name in ("line", "last", "id")),
        ]
        with m.If(self.i.ready):
            m.d.sync += [scores.i.valid.eq(self.i.valid), scores.i.p.eq(line)]
        return m
