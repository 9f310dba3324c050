# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One choice of pages, from a group's queries to the chosen pages, with summaries and keys at hand
(docs/select.md, "Passes and rates"). One line a cycle in either stage."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.select import BOUND_MASS_BITS, SCORE_BITS

from ..lib.protected import BlockFault
from .choice import Choice
from .key_score import KeyScore
from .mass_share import MassShare
from .page_marks import PageMarks
from .page_mass import PageMass
from .signatures import SelectLayouts, checked
from .summary_score import SummaryScore
from .top_k import TopK
from .unscored import Unscored

__all__ = ["SelectEngine"]


class SelectEngine(wiring.Component):
    """Names pages by their summaries, scores those named, the first and the newest by their stored
    keys, and chooses. The lines of a page whose keys are not at hand have a NaN; such a page has no
    mass, and no page without mass is chosen for it.

    Latency: `LATENCY` cycles from a request for page 0 alone, of one line and one head, to that
    page at `o`, where keys are answered in the cycle after they are asked for; in general that of
    docs/select.md. One request at a time (`INTERVAL` for the same). Errors: none; a key or summary
    out of order is an assertion of the blocks.

    Parameters
    ----------
    heads : int
        Query heads of a group.
    lines : int
        Lines of a token at most.
    pages : int
        Of a queue; a power of two, 64 and more.
    quota : int
        Pages that each head names.
    most : int
        Pages chosen at most, beside the first and the newest.
    protect : bool
        The candidates' marks have check bits.

    Members
    -------
    i_query : in, always-ready stream of query_line
        Only while no request is inside.
    scale : in
        Holds still while a request is inside.
    i : in, stream
        The newest page, how many are chosen at `most`, and the `target` of the heads' masses
        together. Taken when the choice is over.
    o_summary, i_summary : out, stream of pages; in, stream of summary_line
        Summaries asked for, and their lines in that order.
    o_key, i_key : out, stream of pages; in, stream of stored_line
        Pages asked for, and the lines of the tokens of their keys in that order. `id` is the page,
        and above it whether the token is the page's last.
    o : out, stream
        The pages chosen with the sums of their masses, the first and the newest before the others;
        then one item that is `none`.
    fault : out, BlockFault
    """

    LATENCY = 74
    INTERVAL = 77

    def __init__(
        self, *, heads: int, lines: int, pages: int, quota: int, most: int, protect: bool = False
    ):
        self.heads, self.lines, self.pages = heads, lines, pages
        self.quota, self.most = checked("quota", quota, 1, 256), checked("most", most, 1, 256)
        self.marks = PageMarks(pages=pages, protect=protect)
        bits = self.page_bits = self.marks.page_bits
        self.layouts = SelectLayouts(heads=heads, lines=lines, id_bits=bits)
        self.depth = checked("heads · quota + 2", heads * quota + 2, 2, 512)
        self.share = MassShare(heads=heads, depth=self.depth, id_bits=bits)
        self.choice = Choice(depth=most, mass_bits=self.share.mass_bits, id_bits=bits)
        keys = SelectLayouts(heads=heads, lines=lines, id_bits=bits + 1)
        request = {"newest": bits, "most": range(most + 1), "target": self.choice.sum_bits}
        super().__init__(
            {
                "i_query": In(stream.Signature(self.layouts.query_line, always_ready=True)),
                "scale": In(self.layouts.scale),
                "i": In(stream.Signature(data.StructLayout(request))),
                "o_summary": Out(stream.Signature(bits)),
                "i_summary": In(stream.Signature(self.layouts.summary_line)),
                "o_key": Out(stream.Signature(bits)),
                "i_key": In(stream.Signature(keys.stored_line)),
                "o": Out(stream.Signature(self.choice.o.p.shape())),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits, request = self.page_bits, self.i.p
        m.submodules.marks, m.submodules.share = self.marks, self.share
        m.submodules.choice = self.choice
        sizes = {"heads": self.heads, "lines": self.lines}
        m.submodules.bounds = bounds = SummaryScore(**sizes, id_bits=bits)
        m.submodules.scores = scores = KeyScore(**sizes, id_bits=bits + 1)
        m.submodules.bound_mass = bound_mass = PageMass(
            heads=self.heads, id_bits=1, mass_bits=BOUND_MASS_BITS
        )
        m.submodules.mass = mass = PageMass(heads=self.heads, id_bits=bits)
        m.submodules.unscored = unscored = Unscored(heads=self.heads)
        tops = [
            TopK(depth=self.quota, score=signed(SCORE_BITS), id_bits=bits)
            for _ in range(self.heads)
        ]
        for k, top in enumerate(tops):
            m.submodules[f"top_{k}"] = top
        connect(m, flipped(self.i_summary), bounds.i)
        connect(m, flipped(self.i_key), scores.i)
        for block in (bounds, scores):
            m.d.comb += [
                block.scale.eq(self.scale),
                block.i_query.valid.eq(self.i_query.valid),
                block.i_query.p.eq(self.i_query.p),
            ]
        named = Signal(range(self.pages + 1))  # how many pages are
        m.d.comb += named.eq(self.marks.count - Mux(request.newest == 0, 1, 2))
        first_stage = Signal()
        self._bound(m, bounds, bound_mass, unscored, tops, first_stage, named)
        self._score(m, scores, mass, unscored, named)
        over = Signal()
        m.d.comb += [
            over.eq(self.o.valid & self.o.ready & self.o.p.none),
            self.i.ready.eq(over),
            unscored.o.ready.eq(over),
            self.choice.most.eq(request.most),
            self.choice.target.eq(request.target),
            self.fault.eq(self.marks.fault),
        ]
        connect(m, self.choice.o, flipped(self.o))
        self._sequence(m, tops, bounds, first_stage, over)
        return m

    def _bound(self, m, bounds, bound_mass, unscored, tops, first_stage, named):
        """Bounds go to the lists of the heads, in the first stage, and to their mass: of all pages,
        kept; then of those named."""
        last = Signal()
        seen = Signal.like(named)
        all_, all_valid = Signal.like(bound_mass.o.p), Signal()
        m.d.comb += [
            last.eq(Mux(first_stage, bounds.o.p.id == self.i.p.newest - 1, seen == named - 1)),
            bounds.o.ready.eq(bound_mass.i.ready),
            bound_mass.i.valid.eq(bounds.o.valid),
            bound_mass.i.p.last.eq(last),
            unscored.i_all.valid.eq(all_valid),
            unscored.i_all.p.eq(all_),
            unscored.i_named.valid.eq(bound_mass.o.valid & all_valid),
            unscored.i_named.p.eq(bound_mass.o.p),
            bound_mass.o.ready.eq(~all_valid | unscored.i_named.ready),
        ]
        taken = bounds.o.valid & bounds.o.ready
        for k, top in enumerate(tops):
            score = bounds.o.p.score[k]
            m.d.comb += [
                bound_mass.i.p.score[k].eq((score + (score << 1)) >> 2),
                top.i.valid.eq(taken & first_stage),
                top.i.p.score.eq(score),
                top.i.p.id.eq(bounds.o.p.id),
                top.i.p.last.eq(last),
            ]
            m.d.sync += Assert(~top.i.valid | top.i.ready, "a list is still read out")
        with m.If(taken & ~first_stage):
            m.d.sync += seen.eq(Mux(last, 0, seen + 1))
        with m.If(bound_mass.o.valid & ~all_valid):
            m.d.sync += [all_.eq(bound_mass.o.p), all_valid.eq(1)]
        with m.If(unscored.i_all.ready):
            m.d.sync += all_valid.eq(0)

    def _score(self, m, scores, mass, unscored, named):
        """Scores of keys go to their page's mass, that to the shares, those to the choice."""
        bits, newest, share = self.page_bits, self.i.p.newest, self.share
        page = mass.o.p.id
        # What is not scored must be known when the last page has come.
        known = (page != newest) | (named == 0) | unscored.o.valid
        m.d.comb += [
            mass.i.valid.eq(scores.o.valid),
            scores.o.ready.eq(mass.i.ready),
            mass.i.p.score.eq(scores.o.p.score),
            mass.i.p.id.eq(scores.o.p.id[:bits]),
            mass.i.p.last.eq(scores.o.p.id[bits]),
            share.i.valid.eq(mass.o.valid & known),
            mass.o.ready.eq(share.i.ready & known),
            share.i.p.mass.eq(mass.o.p),
            share.i.p.named.eq((page != 0) & (page != newest)),
            share.i.p.last.eq(page == newest),
            share.more.as_value().eq(Mux(named == 0, 0, unscored.o.p.as_value())),
            self.choice.i.valid.eq(share.o.valid),
            share.o.ready.eq(self.choice.i.ready),
            self.choice.i.p.id.eq(share.o.p.id),
            self.choice.i.p.mass.eq(share.o.p.mass),
            self.choice.i.p.last.eq(share.o.p.last),
            self.choice.i.p.present.eq(share.o.p.mass != 0),
            self.choice.i.p.always.eq((share.o.p.id == 0) | (share.o.p.id == newest)),
        ]

    def _sequence(self, m, tops, bounds, first_stage, over):
        """Which pages are asked for, and marked."""
        newest, marks = self.i.p.newest, self.marks
        page, head = Signal(self.page_bits), Signal(range(max(2, self.heads)))
        key_sent, summary_sent = Signal(), Signal()
        with m.FSM():
            with m.State("WAIT"):
                m.d.sync += [page.eq(1), head.eq(0)]
                with m.If(self.i.valid):
                    m.next = "FIRST"
                    with m.If(newest > 1):
                        m.next = "BOUND"
            with m.State("BOUND"):
                asks = page != newest
                m.d.comb += [
                    first_stage.eq(1),
                    self.o_summary.valid.eq(asks),
                    self.o_summary.p.eq(page),
                ]
                with m.If(asks & self.o_summary.ready):
                    m.d.sync += page.eq(page + 1)
                with m.If(bounds.o.valid & bounds.o.ready & (bounds.o.p.id == newest - 1)):
                    m.next = "NAME"
            with m.State("NAME"):
                with m.Switch(head):
                    for k, top in enumerate(tops):
                        with m.Case(k):
                            m.d.comb += [
                                marks.i.valid.eq(top.o.valid),
                                marks.i.p.page.eq(top.o.p.id),
                                top.o.ready.eq(marks.i.ready),
                            ]
                            with m.If(top.o.valid & top.o.ready & top.o.p.last):
                                m.d.sync += head.eq(head + 1)
                                m.next = "FIRST" if k == self.heads - 1 else "NAME"
            with m.State("FIRST"):
                m.d.comb += [marks.i.valid.eq(1), marks.i.p.last.eq(newest == 0)]
                with m.If(marks.i.ready):
                    m.next = "NEWEST"
                    with m.If(newest == 0):
                        m.next = "SCORE"
            with m.State("NEWEST"):
                m.d.comb += [marks.i.valid.eq(1), marks.i.p.page.eq(newest), marks.i.p.last.eq(1)]
                with m.If(marks.i.ready):
                    m.next = "SCORE"
            with m.State("SCORE"):
                wants = (marks.o.p.page != 0) & (marks.o.p.page != newest)
                asked = Signal(2)
                m.d.comb += [
                    self.o_key.valid.eq(marks.o.valid & ~key_sent),
                    self.o_key.p.eq(marks.o.p.page),
                    self.o_summary.valid.eq(marks.o.valid & wants & ~summary_sent),
                    self.o_summary.p.eq(marks.o.p.page),
                    asked.eq(
                        Cat(
                            key_sent | self.o_key.ready,
                            ~wants | summary_sent | self.o_summary.ready,
                        )
                    ),
                    marks.o.ready.eq(asked.all()),
                ]
                with m.If(marks.o.valid):
                    m.d.sync += [
                        key_sent.eq(asked[0] & ~asked.all()),
                        summary_sent.eq(asked[1] & ~asked.all()),
                    ]
                    with m.If(asked.all() & marks.o.p.last):
                        m.next = "CHOOSE"
            with m.State("CHOOSE"):
                with m.If(over):
                    m.next = "WAIT"
