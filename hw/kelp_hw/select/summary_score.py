# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Bounds of pages from their summaries (docs/select.md, "Scores"). One line of a summary a cycle; a
page's bounds 11 cycles after its last line."""

from __future__ import annotations

from amaranth.lib import wiring

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import BLOCK_EXPONENT_BITS, SUMMARY_BITS

from .line_scores import ScoredLines

__all__ = ["SummaryScore"]

_HIGH = SUMMARY_BITS * ELEMENTS  #: where the high bounds begin, negated
_EXPONENT = 2 * _HIGH


class SummaryScore(ScoredLines, wiring.Component):
    """What no token of a page can score more than, for all query heads of a group.

    Latency: `LATENCY` cycles from a summary's last line to `o`. One line in each cycle
    (`INTERVAL`). No error cases: every line means some bounds.

    Parameters
    ----------
    heads, lines, id_bits, banks : int
        As of ScoredLines.

    Members
    -------
    i : in, stream of summary_line
        The lines of a summary, 0 … `last`, one page after another.
    i_query : in, always-ready stream of query_line
        Into `put_bank`; of the bank that was used last only while `idle`.
    bank, put_bank, scale : in
        As of LineScores.
    o : out, stream of scores
        `id` is that of the last line.
    idle : out
        No line is inside.
    """

    KIND = "summary_line"

    def _block_form(self, m, line):
        words = self.i.p.data
        # One more, since a bound has one bit less after the point.
        exponent = words[_EXPONENT : _EXPONENT + BLOCK_EXPONENT_BITS].as_signed() + 1
        m.d.comb += line.exponent.eq(exponent)
        for k in range(ELEMENTS):
            low, negated = (
                words[at + SUMMARY_BITS * k : at + SUMMARY_BITS * (k + 1)].as_signed()
                for at in (0, _HIGH)
            )
            m.d.comb += [line.low[k].eq(low), line.high[k].eq(-negated)]
