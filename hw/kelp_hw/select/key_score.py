# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Exact scores of stored keys (docs/select.md, "Scores"). One line a cycle; a token's scores 11
cycles after its last line."""

from __future__ import annotations

from amaranth.lib import wiring

from .block_form import unpack
from .line_scores import ScoredLines

__all__ = ["KeyScore"]


class KeyScore(ScoredLines, wiring.Component):
    """Brings stored lines into block form and scores them for all query heads of a group.

    int8 and int4 lines come as they are stored; raw16 and fp8 lines as the quantiser would store
    them in int8.

    Latency: `LATENCY` cycles from a token's last line to `o`. One line in each cycle (`INTERVAL`).
    Errors: none; a token with a NaN has the least score.

    Parameters
    ----------
    heads, lines, id_bits, banks : int
        As of ScoredLines.

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

    KIND = "stored_line"

    def _block_form(self, m, line):
        unpack(m, self.i.p, line.low, line.exponent, line.nan)
        m.d.comb += line.high.eq(line.low)
