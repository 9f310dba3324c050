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
    heads, lines, id_bits, banks : int
        As of LineScores.

    Members
    -------
    i : in, stream of stored_line
        The lines of a token, 0 … `last`, one token after another.
    i_query : in, always-ready stream of query_line
        Into `put_bank`; of the bank that was used last only while `idle`.
    bank, put_bank, scale : in
        As of LineScores.
    o : out, stream of scores
        `id` is that of the last line.
    idle : out
        No line is inside.
    """

    LATENCY = LineScores.LATENCY + 1
    INTERVAL = 1

    def __init__(self, *, heads: int, lines: int, id_bits: int, banks: int = 1):
        layouts = self.layouts = SelectLayouts(heads=heads, lines=lines, id_bits=id_bits)
        self.heads, self.lines, self.id_bits, self.banks = heads, lines, id_bits, banks
        super().__init__(
            {
                "i_query": In(stream.Signature(layouts.query_line, always_ready=True)),
                "bank": In(range(banks)),
                "put_bank": In(range(banks)),
                "scale": In(layouts.scale),
                "i": In(stream.Signature(layouts.stored_line)),
                "o": Out(stream.Signature(layouts.scores)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.scores = scores = LineScores(
            heads=self.heads, lines=self.lines, id_bits=self.id_bits, banks=self.banks
        )
        connect(m, flipped(self.i_query), scores.i_query)
        connect(m, scores.o, flipped(self.o))
        line = Signal(self.layouts.line)
        unpack(m, self.i.p, line.element, line.exponent, line.nan)
        m.d.comb += [
            scores.put_bank.eq(self.put_bank),
            self.i.ready.eq(~scores.i.valid | scores.i.ready),
            self.idle.eq(scores.idle & ~self.i.valid),
            *(line[name].eq(self.i.p[name]) for name in ("line", "last", "id")),
        ]
        with m.If(self.i.ready):
            m.d.sync += [
                scores.i.valid.eq(self.i.valid),
                scores.i.p.eq(line),
                scores.bank.eq(self.bank),
                scores.scale.eq(self.scale),
            ]
        return m
