# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What pages are estimated to score, from their summaries (docs/select.md, "Scores"). `lanes`
codes a cycle; a page's estimates 9 cycles after its last codes."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from kelp_spec.select import (
    ALIGNED_BITS,
    CODE_BITS,
    CODED_LINES,
    SCORE_LEAST,
    SCORE_MOST,
)

from .code_weights import CodeWeights
from .signatures import SelectLayouts, checked, give

__all__ = ["SummaryScore"]

_MOST = (1 << ALIGNED_BITS - 1) - 1
_PARTS = 8  #: sums of a code's bits that are added in a cycle of their own


class SummaryScore(wiring.Component):
    """What the best token of a page is estimated to score, for all query heads of a group at once,
    and which of its tokens come near to what a head asks for.

    Latency: `LATENCY` cycles from the cycle in which a summary's last line is taken to `o`.
    `lanes` codes in each cycle (`INTERVAL`): a line of a summary in CODED_LINES / `lanes` cycles,
    a page's last in as many as it has codes for. While `o` waits one page's estimates are taken
    where there is room for them, and all behind stands still; `i` waits until weights are ready.
    Errors: none.

    Parameters
    ----------
    heads, id_bits : int
    lines : int
        Lines of a token at most, a power of two.
    rows : int
        Lines of a summary at most.
    lanes : int
        Codes that are scored in a cycle; a power of two, CODED_LINES at most.

    Members
    -------
    i_query, i_plan : in, always-ready streams of query_line, plan_line
        Only while `idle`; the plan's last line is the last of them.
    page_lines, scale, least : in
        Lines of a page's keys, the scale, and what the sum of a token is at `least` that is near,
        for each head, of what is inside.
    i : in, stream of summary_line
        The lines of a summary, 0 … `last`, one page after another.
    o : out, stream of estimates
        `id` is that of the last line. Of `near` those bits count that are of the last line of a
        token.
    idle : out
        No line is inside.
    """

    LATENCY = 9
    INTERVAL = 1

    def __init__(self, *, heads: int, lines: int, rows: int, lanes: int, id_bits: int):
        layouts = self.layouts = SelectLayouts(heads=heads, lines=lines, rows=rows, id_bits=id_bits)
        self.heads, self.lines, self.rows, self.id_bits = heads, lines, rows, id_bits
        self.lanes = checked("lanes", lanes, 1, CODED_LINES)
        self.weights = CodeWeights(heads=heads, lines=lines)
        self.groups = CODED_LINES // lanes
        #: a token's sum less NEAR, which is up to 2^25
        least = signed(max(layouts.token_sum.width, 26) + 1)
        super().__init__(
            {
                "i_query": In(stream.Signature(layouts.query_line, always_ready=True)),
                "i_plan": In(stream.Signature(layouts.plan_line, always_ready=True)),
                "page_lines": In(range(rows * CODED_LINES + 1)),
                "scale": In(layouts.scale),
                "least": In(data.ArrayLayout(least, heads)),
                "i": In(stream.Signature(layouts.summary_line)),
                "o": Out(stream.Signature(layouts.estimates)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.weights = weights = self.weights
        connect(m, flipped(self.i_query), weights.i_query)
        connect(m, flipped(self.i_plan), weights.i_plan)
        moves, goes = Signal(), Signal()
        out, out_valid = Signal(self.o.p.shape(), reset_less=True), Signal()
        give(m, self.o, out, out_valid, moves)
        lanes, at = self.lanes, Signal(range(max(2, self.groups)))
        start, end = Signal(range(self.rows * CODED_LINES + lanes)), Signal()
        m.d.comb += [
            goes.eq(self.i.valid & weights.ready),
            start.eq(self.i.p.line * CODED_LINES + at * lanes),
            end.eq(start + lanes >= self.page_lines),
            self.i.ready.eq(moves & weights.ready & (end | (at == self.groups - 1))),
        ]
        with m.If(goes & moves):
            m.d.sync += at.eq(Mux(self.i.ready, 0, at + 1))
            m.d.sync += Assert(~end | self.i.p.last, "a summary goes on beyond its page")

        # 1, 2: codes are summed, 3: clamped, 4: lines of a token, 5: the best of them, 6: of the
        # page, 7, 8: scaled, `o`.
        valid = [goes, *(Signal(name=f"valid{k}") for k in range(1, 9))]
        busy = self.i.valid | self.o.valid
        for each in valid[1:]:
            busy |= each
        m.d.comb += self.idle.eq(~busy)
        used = self.i_query.valid | self.i_plan.valid
        m.d.sync += Assert(~used | self.idle, "a query changes under a page")

        def later(value, name, last, first=0):
            """`value`, known in stage `first`, as it is in stage `last`."""
            for k in range(first, last):
                kept = Signal.like(value, name=f"{name}{k + 1}", reset_less=True)
                with m.If(moves):
                    m.d.sync += kept.eq(value)
                value = kept
            return value

        counts = Signal(lanes)  # lanes that have a code of the page
        m.d.comb += [counts[k].eq(start + k < self.page_lines) for k in range(lanes)]
        own, starts = later(counts, "counts", 4), later(start == 0, "starts", 5)
        ends, id_ = later(end, "ends", 5), later(self.i.p.id, "id", 8)
        begun = later(start & weights.token_lines, "begun", 4)  # lines of the token before it
        first, ended = Signal(), Signal()
        m.d.comb += [
            first.eq(begun == 0),
            ended.eq((begun + lanes) & weights.token_lines == 0),
        ]
        with m.If(moves):
            m.d.sync += [
                *(valid[k + 1].eq(valid[k]) for k in range(8) if k != 5),
                valid[6].eq(valid[5] & ends),
                out_valid.eq(valid[8]),
                out.id.eq(id_),
            ]
        codes = Signal(data.ArrayLayout(CODE_BITS, lanes))
        with m.Switch(at):
            for k in range(self.groups):
                with m.Case(k):
                    m.d.comb += [codes[n].eq(self.i.p.code[k * lanes + n]) for n in range(lanes)]
        near = 0
        for head in range(self.heads):
            lines = [self._line(m, head, k, moves, codes[k], start) for k in range(lanes)]
            best, hits = self._best(
                m, head, moves, lines, own, first=first, ended=ended, valid=valid[4]
            )
            near |= hits
            page = Signal.like(best, name=f"page_{head}", reset_less=True)
            with m.If(moves & valid[5]):
                m.d.sync += page.eq(Mux(~starts & (page > best), page, best))
            self._scaled(m, head, moves, page, out.score[head])
            m.d.comb += out.best[head].eq(later(page, f"sum_{head}_", 9, first=6))
        group, parts = later(start >> exact_log2(lanes), "group", 5), []
        for k in range(self.rows * self.groups):
            part = Signal(lanes, name=f"near_{k}", reset_less=True)
            with m.If(moves & valid[5] & (group == k)):
                m.d.sync += part.eq(near)
            parts.append(part)
        m.d.comb += out.near.eq(later(Cat(parts), "near", 9, first=6))
        return m

    def _line(self, m, head, lane, moves, code, start):
        """What a code's line scores, in stage 3."""
        # With more lines than lanes, which of them it is depends on where the group begins.
        turns = max(1, self.lines // self.lanes)
        turn = (start >> exact_log2(self.lanes))[: exact_log2(turns)] if turns > 1 else Const(0, 0)
        weight, base = self.weights.weight[head], self.weights.base[head]
        choices = [(lane + self.lanes * k) % self.lines for k in range(turns)]
        mine, own = list(weight[choices[0]]), base[choices[0]]
        for k in range(1, turns):
            mine = [
                Mux(turn == k, new, old) for new, old in zip(weight[choices[k]], mine, strict=True)
            ]
            own = Mux(turn == k, base[choices[k]], own)
        parts, per = [], CODE_BITS // _PARTS
        name = f"{head}_{lane}"
        for part in range(_PARTS):
            kept = Signal(signed(ALIGNED_BITS + 2), name=f"part{part}_{name}", reset_less=True)
            terms = [Mux(code[n], mine[n], 0) for n in range(part * per, (part + 1) * per)]
            with m.If(moves):
                m.d.sync += kept.eq(_sum(terms))
            parts.append(kept)
        base1 = Signal(signed(ALIGNED_BITS), name=f"base_{name}", reset_less=True)
        whole = Signal(signed(ALIGNED_BITS + 6), name=f"whole_{name}", reset_less=True)
        line = Signal(signed(ALIGNED_BITS), name=f"line_{name}", reset_less=True)
        with m.If(moves):
            m.d.sync += [
                base1.eq(own),
                whole.eq(_sum([*parts, base1])),
                line.eq(Mux(whole > _MOST, _MOST, Mux(whole < -_MOST, -_MOST, whole))),
            ]
        return line

    def _best(self, m, head, moves, lines, own, *, first, ended, valid):
        """The best token of those that end with these lines, in stage 5, and of each line whether
        its token is near; a token's lines are summed."""
        wide = self.layouts.token_sum
        hits = Signal(self.lanes, name=f"hits_{head}", reset_less=True)
        levels = [lines]
        while len(levels[-1]) > 1 and 1 << len(levels) <= self.lines:
            levels.append([a + b for a, b in zip(levels[-1][::2], levels[-1][1::2], strict=True)])
        token_lines = self.weights.token_lines
        best = Signal(wide, name=f"best_{head}", reset_less=True)
        least = Const(-(1 << wide.width - 1), wide)
        for n, level in enumerate(levels):
            kept = [
                Signal(wide, name=f"token{n}_{k}_{head}", reset_less=True)
                for k in range(len(level))
            ]
            with m.If(moves):
                m.d.sync += [a.eq(b) for a, b in zip(kept, level, strict=True)]
            found = [Mux(own[k << n], each, least) for k, each in enumerate(kept)]
            sums = kept
            if len(kept) == 1:
                # Tokens of more lines than there are lanes go on.
                held = Signal(wide, name=f"held_{head}", reset_less=True)
                whole = Signal(wide, name=f"sum_{head}")
                m.d.comb += whole.eq(Mux(first, 0, held) + found[0])
                with m.If(moves & valid):
                    m.d.sync += held.eq(whole)
                found, sums = [Mux(ended, whole, least)], [whole]
            reaches = Cat(each >= self.least[head] for each in sums)
            while len(found) > 1:
                found = [
                    _larger(m, wide, a, b) for a, b in zip(found[::2], found[1::2], strict=True)
                ]
            with m.If(moves & ((token_lines >= (1 << n) - 1) if n else 1)):
                m.d.sync += [
                    best.eq(found[0]),
                    hits.eq(Cat(reaches[k >> n] for k in range(self.lanes))),
                ]
        return best, hits

    def _scaled(self, m, head, moves, page, score):
        product = Signal(signed(len(page) + 17), name=f"scaled_{head}", reset_less=True)
        down = Signal.like(product, name=f"down_{head}", reset_less=True)
        with m.If(moves):
            m.d.sync += [
                product.eq(page * self.scale.m),
                down.eq(product >> self.scale.sh),
                score.eq(
                    Mux(down > SCORE_MOST, SCORE_MOST, Mux(down < SCORE_LEAST, SCORE_LEAST, down))
                ),
            ]


def _sum(terms):
    while len(terms) > 1:
        rest = [terms[-1]] if len(terms) % 2 else []
        terms = [a + b for a, b in zip(terms[::2], terms[1::2], strict=False)] + rest
    return terms[0]


def _larger(m, shape, a, b):
    found = Signal(shape, name="larger")
    m.d.comb += found.eq(Mux(a > b, a, b))
    return found
