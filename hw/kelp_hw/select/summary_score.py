# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Bounds of pages from their summaries (docs/select.md, "Scores"). One line of a summary a cycle; a
page's bounds 11 cycles after its last line."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import BLOCK_EXPONENT_BITS, SUMMARY_BITS

from .line_scores import LineScores
from .signatures import SelectLayouts

__all__ = ["SummaryScore"]

_HIGH = SUMMARY_BITS * ELEMENTS  #: where the high bounds begin, negated
_EXPONENT = 2 * _HIGH


class SummaryScore(wiring.Component):
    """What no token of a page can score more than, for all query heads of a group.

    Latency: `LATENCY` cycles from a summary's last line to `o`. One line in each cycle
    (`INTERVAL`). No error cases: every line means some bounds.

    Parameters
    ----------
    heads : int
    lines : int
        Lines of a token at most, and so of a summary.
    id_bits : int

    Members
    -------
    i_query : in, always-ready stream of query_line
        Only while `idle`.
    scale : in
        Holds still while summaries are inside.
    i : in, stream of summary_line
        The lines of a summary, 0 … `last`, one page after another.
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
                "i": In(stream.Signature(layouts.summary_line)),
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
        given, line, words = self.i.p, Signal(self.layouts.line), self.i.p.data
        # One more, since a bound has one bit less after the point.
        exponent = words[_EXPONENT : _EXPONENT + BLOCK_EXPONENT_BITS].as_signed() + 1
        m.d.comb += [
            scores.scale.eq(self.scale),
            self.i.ready.eq(~scores.i.valid | scores.i.ready),
            self.idle.eq(scores.idle & ~self.i.valid),
            line.exponent.eq(exponent),
            *(line[name].eq(given[name]) for name in ("line", "last", "id")),
        ]
        for k in range(ELEMENTS):
            low, negated = (
                words[at + SUMMARY_BITS * k : at + SUMMARY_BITS * (k + 1)].as_signed()
                for at in (0, _HIGH)
            )
            m.d.comb += [line.low[k].eq(low), line.high[k].eq(-negated)]
        with m.If(self.i.ready):
            m.d.sync += [scores.i.valid.eq(self.i.valid), scores.i.p.eq(line)]
        return m
