# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One choice of pages, from a group's queries to the chosen pages, with summaries and keys at hand
(docs/select.md, "Passes and rates"). One line a cycle in either stage, in stage two fewer where
there are fewer products; three requests inside."""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.formats import ELEMENTS
from kelp_spec.select import (
    ABSENT_MORE,
    CODED_LINES,
    ESTIMATE_MASS_BITS,
    NEAR,
    NEAR_PLACES,
    SCORE_BITS,
    SCORE_MOST,
)

from ..lib.protected import BlockFault, ProtectedFifo, gather, gather_blocks
from .choice import Choice
from .key_score import KeyScore
from .mass_share import MassShare
from .page_marks import PageMarks
from .page_mass import PageMass
from .signatures import SelectLayouts, checked
from .summary_score import SummaryScore
from .top_k import TopK
from .unscored import Unscored

__all__ = ["KeySizes", "SelectEngine"]


class KeySizes(NamedTuple):
    """Sizes of keys and of their summaries."""

    lines: int  #: of a token at most, a power of two
    rows: int  #: lines of a summary at most
    lanes: int  #: codes that are scored in a cycle
    products: int = ELEMENTS  #: elements of a key that are multiplied in a cycle


class SelectEngine(wiring.Component):
    """Names pages by their summaries, scores those named, the first and the newest by their stored
    keys, and chooses. The lines of a page whose keys are not at hand have a NaN; such a page has no
    mass, and no page without mass is chosen for it.

    Three parts work at once, in the order of requests: stage one with the names on one request,
    stage two on two, masses with the choice on one. The first page's keys are asked for while stage
    one runs; those of a request as soon as the last of the one before are asked for.

    Latency: `LATENCY` cycles from a request for page 0 alone, of one line and one head, to that
    page at `o`, where keys are answered in the cycle after they are asked for; in general that of
    docs/select.md. A request in `INTERVAL` cycles for the same, in general in as many as the
    slowest part takes. Errors: none; a key or summary out of order is an assertion of the blocks.

    Parameters
    ----------
    heads : int
        Query heads of a group.
    sizes : KeySizes
    pages : int
        Of a queue; a power of two, 64 and more.
    quota : int
        Pages that each head names.
    most : int
        Pages chosen at most, beside the first and the newest.
    protect : bool
        The candidates' marks and names have check bits.
    context : shape-like, optional
        What a request brings along for its caller.
    estimates : bool, optional
        A page that is absent has the mass that its summary says.

    Members
    -------
    i_query, i_plan : in, always-ready streams of query_line, plan_line
        Of the request that comes next, before it is offered; the plan's last line is the last.
    i : in, stream
        The newest page, the lines of a page's keys, how many are chosen at `most`, the `target` of
        the heads' masses together, the scale of scores, and the `context`. Taken when its pages are
        named, stage two has begun, and the request before it has left that.
    o_summary, i_summary : out, stream of pages; in, stream of summary_line
        Summaries asked for, and their lines in that order.
    o_key, i_key : out, stream of pages; in, stream of stored_line
        Pages asked for, each with its request's `bank` and the tokens that are `near`, and the
        lines of these tokens' keys in that order. `id` is the page, above it whether the token is
        the last of the page that is looked at, above that the bank, and with `estimates` above that
        whether the page is absent, which the last token has to say. Requests take the banks in
        turn.
    o : out, stream
        The pages chosen with the sums of their masses, the first and the newest before the others;
        then one item that is `none`. With `estimates` as Choice's with `wants`.
    scores, scored : out
        Of each bank: a request is in stage two, and its context.
    leaves, left : out
        In the last cycle of a request in stage two, and its bank: none of its keys is inside any
        more.
    chooses, chosen : out
        A request is behind it, from then until its last item is taken at `o`, and its context.
    fault : out, BlockFault
    """

    LATENCY = 40
    INTERVAL = 27

    def __init__(
        self,
        *,
        heads: int,
        sizes: KeySizes,
        pages: int,
        quota: int,
        most: int,
        protect: bool = False,
        context=1,
        estimates: bool = False,
    ):
        self.heads, self.sizes, self.pages, self.protect = heads, sizes, pages, protect
        lines, rows = sizes.lines, sizes.rows
        self.estimates = bool(estimates)
        self.quota, self.most = checked("quota", quota, 1, 256), checked("most", most, 1, 256)
        self.marks = PageMarks(pages=pages, lists=heads, protect=protect)
        bits = self.page_bits = self.marks.page_bits
        self.layouts = SelectLayouts(heads=heads, lines=lines, rows=rows, id_bits=bits)
        self.depth = checked("heads · quota + 2", heads * quota + 2, 2, 512)
        #: a page to look at, and which tokens of it (`SelectLayouts.near`)
        self.looks = {"page": bits, "near": self.layouts.near}
        #: a page, and whether it is absent
        self.id_bits = bits + self.estimates
        self.share = MassShare(heads=heads, depth=self.depth, id_bits=self.id_bits)
        self.choice = Choice(
            depth=most, mass_bits=self.share.mass_bits, id_bits=bits, wants=self.estimates
        )
        keys = SelectLayouts(heads=heads, lines=lines, id_bits=bits + 2 + self.estimates)
        self.request = data.StructLayout(
            {
                "newest": bits,
                "page_lines": range(rows * CODED_LINES + 1),
                "most": range(most + 1),
                "target": self.choice.sum_bits,
                "scale": self.layouts.scale,
                "context": context,
            }
        )
        super().__init__(
            {
                "i_query": In(stream.Signature(self.layouts.query_line, always_ready=True)),
                "i_plan": In(stream.Signature(self.layouts.plan_line, always_ready=True)),
                "i": In(stream.Signature(self.request)),
                "o_summary": Out(stream.Signature(bits)),
                "i_summary": In(stream.Signature(self.layouts.summary_line)),
                "o_key": Out(stream.Signature(data.StructLayout({**self.looks, "bank": 1}))),
                "i_key": In(stream.Signature(keys.stored_line)),
                "o": Out(stream.Signature(self.choice.o.p.shape())),
                "scores": Out(2),
                "scored": Out(data.ArrayLayout(context, 2)),
                "leaves": Out(1),
                "left": Out(1),
                "chooses": Out(1),
                "chosen": Out(context),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bits = self.page_bits
        m.submodules.marks, m.submodules.share = self.marks, self.share
        m.submodules.choice = self.choice
        lines, rows, lanes, products = self.sizes
        m.submodules.found = found = SummaryScore(
            heads=self.heads, lines=lines, rows=rows, lanes=lanes, id_bits=bits
        )
        m.submodules.key_scores = scores = KeyScore(
            heads=self.heads,
            lines=lines,
            id_bits=bits + 2 + self.estimates,
            banks=2,
            products=products,
        )
        m.submodules.unscored = unscored = Unscored(heads=self.heads)
        # The pages named, until stage two comes to them.
        m.submodules.names = names = ProtectedFifo(
            shape=data.StructLayout({**self.looks, "last": 1}),
            depth=self.heads * self.quota,
            protect=self.protect,
        )
        connect(m, flipped(self.i_summary), found.i)
        connect(m, flipped(self.i_plan), found.i_plan)
        connect(m, flipped(self.i_key), scores.i)
        for block in (found, scores):
            m.d.comb += [
                block.i_query.valid.eq(self.i_query.valid),
                block.i_query.p.eq(self.i_query.p),
            ]
        #: the request at `i` has gone to stage two; the queries' place there
        handed, bank = Signal(), Signal()
        m.d.comb += [
            found.scale.eq(self.i.p.scale),
            found.page_lines.eq(self.i.p.page_lines),
            scores.put_bank.eq(bank),
        ]
        guesses = self._guesses(m) if self.estimates else None
        self._name(m, found, unscored, names, guesses, handed, bank)
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += bank.eq(~bank)
        self._score(m, scores, unscored, names, guesses, handed, bank)
        names_fault = Signal(BlockFault)
        gather(m, names_fault, names.fault)
        gather_blocks(m, self.fault, self.marks.fault, names_fault)
        return m

    # - stage one, and names -----------------------------------------------------------------------
    def _guesses(self, m):
        """What the first page and those named count when they are absent, in that order, until
        stage two comes to them."""
        m.submodules.guesses = guesses = ProtectedFifo(
            shape=self.layouts.scores.members["score"],
            depth=2 * (self.heads * self.quota + 1),
            protect=False,
        )
        m.d.sync += Assert(~guesses.w_en | guesses.w_rdy, "more is guessed than has a place")
        return guesses

    def _name(self, m, estimates, unscored, names, guesses, handed, bank):
        """Estimates of all pages to the lists of the heads; then of those named again, for what is
        not scored."""
        newest, marks = self.i.p.newest, self.marks
        first_stage, last, taken = Signal(), Signal(), Signal()
        #: the last page named, once it is known
        last_named, named = Signal(self.page_bits), Signal()
        m.d.comb += [
            taken.eq(estimates.o.valid & estimates.o.ready),
            last.eq(
                Mux(
                    first_stage,
                    estimates.o.p.id == newest - 1,
                    named & (estimates.o.p.id == last_named),
                )
            ),
        ]
        self._lists(m, estimates, taken & first_stage, last)
        again = taken & ~first_stage & (estimates.o.p.id != 0)
        has_place = first_stage | (estimates.o.p.id == 0) | names.w_rdy
        m.d.comb += [
            names.w_en.eq(again),
            names.w_data.page.eq(estimates.o.p.id),
            names.w_data.near.eq(estimates.o.p.near),
            names.w_data.last.eq(last),
        ]
        m.d.sync += Assert(~names.w_en | names.w_rdy, "more is named than has a place")
        self._masses(m, estimates, unscored, last, has_place)
        page, found = Signal(self.page_bits), marks.o
        if self.estimates:
            m.d.comb += guesses.w_en.eq(taken & ~first_stage)
            for score, known in zip(guesses.w_data, estimates.o.p.score, strict=True):
                more = Signal(signed(SCORE_BITS + 1), name="more")
                m.d.comb += [
                    more.eq(known + ABSENT_MORE),
                    score.eq(Mux(more > SCORE_MOST, SCORE_MOST, more)),
                ]
        with m.FSM():
            with m.State("WAIT"):
                m.d.sync += page.eq(1)
                with m.If(self.i.valid):
                    m.next = "HAND"
                    with m.If(newest > 1):
                        m.next = "ALL"
                    if self.estimates:
                        with m.Elif(newest == 1):
                            m.next = "FIRST"
            with m.State("ALL"):
                asks = page != newest
                m.d.comb += [
                    first_stage.eq(1),
                    self.o_summary.valid.eq(asks),
                    self.o_summary.p.eq(page),
                ]
                with m.If(asks & self.o_summary.ready):
                    m.d.sync += page.eq(page + 1)
                with m.If(taken & last):
                    m.next = "FIRST" if self.estimates else "NAME"
            if self.estimates:
                with m.State("FIRST"):  # which is never named, but may be absent
                    m.d.comb += self.o_summary.valid.eq(1)
                    with m.If(self.o_summary.ready):
                        m.next = "NAME"
                        with m.If(newest == 1):
                            m.d.sync += [last_named.eq(0), named.eq(1)]
                            m.next = "REST"
            with m.State("NAME"):
                m.d.comb += [
                    self.o_summary.valid.eq(found.valid),
                    self.o_summary.p.eq(found.p.page),
                    found.ready.eq(self.o_summary.ready),
                ]
                with m.If(found.valid & found.ready & found.p.last):
                    m.d.sync += [last_named.eq(found.p.page), named.eq(1)]
                    m.next = "REST"
            with m.State("REST"):
                with m.If(taken & last):
                    m.d.sync += named.eq(0)
                    m.next = "HAND"
            with m.State("HAND"):
                # The next one's queries take the place of the one before.
                with m.If(handed & ~self.scores.bit_select(~bank, 1)):
                    m.d.comb += self.i.ready.eq(1)
                    m.next = "WAIT"

    def _lists(self, m, estimates, enters, last):
        """The best pages of each head, to the marks, and what tokens of it are near."""
        marks = self.marks
        less = Signal(range((NEAR << 31 >> NEAR_PLACES) + 1))
        m.d.comb += less.eq(NEAR << self.i.p.scale.sh >> NEAR_PLACES)
        for k in range(self.heads):
            m.submodules[f"top_{k}"] = top = TopK(
                depth=self.quota, score=self.layouts.token_sum, id_bits=self.page_bits
            )
            m.d.comb += [
                top.i.valid.eq(enters),
                top.i.p.score.eq(estimates.o.p.best[k]),
                top.i.p.id.eq(estimates.o.p.id),
                top.i.p.last.eq(last),
                marks.i[k].valid.eq(top.o.valid),
                marks.i[k].p.page.eq(top.o.p.id),
                marks.i[k].p.last.eq(top.o.p.last),
                top.o.ready.eq(marks.i[k].ready),
            ]
            m.d.sync += Assert(~top.i.valid | top.i.ready, "a list is still read out")
            # The last one comes before any page that is named comes again.
            with m.If(top.o.valid & top.o.ready):
                m.d.sync += estimates.least[k].eq(top.o.p.score - less)

    def _masses(self, m, estimates, unscored, last, has_place):
        """The estimates' weights, summed: of all pages, kept; then of those named."""
        m.submodules.estimate_mass = mass = PageMass(
            heads=self.heads, id_bits=1, mass_bits=ESTIMATE_MASS_BITS
        )
        all_, all_valid = Signal.like(mass.o.p), Signal()
        m.d.comb += [
            estimates.o.ready.eq(mass.i.ready & has_place),
            # The first page is scored in any case.
            mass.i.valid.eq(estimates.o.valid & (estimates.o.p.id != 0) & has_place),
            mass.i.p.last.eq(last),
            unscored.i_all.valid.eq(all_valid),
            unscored.i_all.p.eq(all_),
            unscored.i_named.valid.eq(mass.o.valid & all_valid),
            unscored.i_named.p.eq(mass.o.p),
            mass.o.ready.eq(~all_valid | unscored.i_named.ready),
        ]
        for k in range(self.heads):
            m.d.comb += mass.i.p.score[k].eq(estimates.o.p.score[k])
        with m.If(mass.o.valid & ~all_valid):
            m.d.sync += [all_.eq(mass.o.p), all_valid.eq(1)]
        with m.If(unscored.i_all.ready):
            m.d.sync += all_valid.eq(0)

    # - stage two, masses and choice ---------------------------------------------------------------
    def _score(self, m, scores, unscored, names, guesses, handed, bank):
        """Keys of the first page, of those named, of the newest; their scores to the masses of
        pages, those to the shares."""
        bits, share = self.page_bits, self.share
        m.submodules.mass = mass = PageMass(heads=self.heads, id_bits=self.id_bits)
        requests = [Signal(self.request, name=f"request_{b}") for b in range(2)]

        def of(which, name):
            found = Signal(self.request, name=name)
            m.d.comb += found.eq(Mux(which, requests[1].as_value(), requests[0].as_value()))
            return found

        #: whose keys are asked for, are scored now, and whose masses come next
        asks, key_bank, oldest = Signal(), self.i_key.p.id[bits + 1], Signal()
        asked, request = of(asks, "asked"), of(oldest, "request")
        newest, page, taken = request.newest, mass.o.p.id[:bits], Signal()
        few = newest <= 1  # nothing is named
        chosen = Signal(self.request)
        # What is not scored must be known when the last page has come, and the choice be free.
        last = page == newest
        goes = ~last | ((few | unscored.o.valid) & ~self.chooses)
        m.d.comb += [mass.i.valid.eq(scores.o.valid), scores.o.ready.eq(mass.i.ready)]
        m.d.comb += [
            scores.bank.eq(key_bank),
            scores.scale.eq(of(key_bank, "of_key").scale),
            mass.i.p.score.eq(scores.o.p.score),
            mass.i.p.id.eq(scores.o.p.id[:bits]),
            mass.i.p.last.eq(scores.o.p.id[bits]),
        ]
        if self.estimates:
            self._absent(m, scores, mass, guesses, requests)
        m.d.comb += [
            share.i.valid.eq(mass.o.valid & goes),
            mass.o.ready.eq(share.i.ready & goes),
            share.i.p.mass.eq(mass.o.p),
            share.i.p.named.eq((page != 0) & ~last),
            share.i.p.last.eq(last),
            share.i.p.more.as_value().eq(Mux(few, 0, unscored.o.p.as_value())),
            taken.eq(share.i.valid & share.i.ready & last),
            unscored.o.ready.eq(taken & ~few),
        ]
        with m.If(handed & self.i.ready):
            m.d.sync += handed.eq(0)
        begins = Signal()
        with m.FSM():
            with m.State("WAIT"):
                m.d.comb += begins.eq(self.i.valid & ~handed)
                with m.If(begins):
                    m.d.sync += [asks.eq(bank), handed.eq(1)]
                    m.next = "FIRST"
            with m.State("FIRST"):
                m.d.comb += [self.o_key.valid.eq(1), self.o_key.p.near.eq(~0)]
                with m.If(self.o_key.ready):
                    m.next = "NAMED"
                    with m.If(asked.newest <= 1):
                        m.next = "NEWEST"
                    with m.If(asked.newest == 0):
                        m.next = "WAIT"
            with m.State("NAMED"):
                m.d.comb += [
                    self.o_key.valid.eq(names.r_rdy),
                    self.o_key.p.page.eq(names.r_data.page),
                    self.o_key.p.near.eq(names.r_data.near),
                    names.r_en.eq(self.o_key.ready),
                ]
                with m.If(names.r_rdy & self.o_key.ready & names.r_data.last):
                    m.next = "NEWEST"
            with m.State("NEWEST"):
                m.d.comb += [
                    self.o_key.valid.eq(1),
                    self.o_key.p.page.eq(asked.newest),
                    self.o_key.p.near.eq(~0),
                ]
                with m.If(self.o_key.ready):
                    m.next = "WAIT"
        for b in range(2):
            m.d.comb += self.scored[b].eq(requests[b].context)
            with m.If(begins & (bank == b)):
                m.d.sync += [requests[b].eq(self.i.p), self.scores[b].eq(1)]
            with m.If(taken & (oldest == b)):
                m.d.sync += self.scores[b].eq(0)
        m.d.sync += oldest.eq(oldest ^ taken)
        m.d.comb += [
            self.o_key.p.bank.eq(asks),
            self.leaves.eq(taken),
            self.left.eq(oldest),
            self.chosen.eq(chosen.context),
        ]
        self._choose(m, chosen, taken, request)

    def _absent(self, m, scores, mass, guesses, requests):
        """An absent page's last token stands for all of it, with what is guessed of the page.
        Guesses come in the order of the keys."""
        bits = self.page_bits
        at, known, newest, alone = scores.o.p.id, Signal(), Signal(bits), Signal()
        page, ends, bank, absent = at[:bits], at[bits], at[bits + 1], at[bits + 2]
        m.d.comb += [
            newest.eq(Mux(bank, requests[1].newest, requests[0].newest)),
            known.eq(ends & (page != newest)),
            mass.i.valid.eq(scores.o.valid & (~known | guesses.r_rdy)),
            scores.o.ready.eq(mass.i.ready & (~known | guesses.r_rdy)),
            guesses.r_en.eq(scores.o.valid & known & mass.i.ready),
            mass.i.p.id.eq(Cat(page, absent)),
            alone.eq(known & absent),
            mass.i.p.alone.eq(alone),
        ]
        with m.If(alone):
            m.d.comb += mass.i.p.score.eq(guesses.r_data)

    def _choose(self, m, chosen, taken, request):
        """The shares' pages to the choice."""
        share, choice, first = self.share, self.choice, Signal(init=1)
        with m.If(share.o.valid & share.o.ready):
            m.d.sync += first.eq(share.o.p.last)
        with m.If(taken):
            m.d.sync += [self.chooses.eq(1), chosen.eq(request)]
        with m.If(self.o.valid & self.o.ready & self.o.p.none):
            m.d.sync += self.chooses.eq(0)
        m.d.comb += [
            choice.most.eq(chosen.most),
            choice.target.eq(chosen.target),
            choice.i.valid.eq(share.o.valid),
            share.o.ready.eq(choice.i.ready),
            choice.i.p.id.eq(share.o.p.id[: self.page_bits]),
            choice.i.p.mass.eq(share.o.p.mass),
            choice.i.p.last.eq(share.o.p.last),
            choice.i.p.present.eq(~share.o.p.id[self.page_bits : self.id_bits].any()),
            # By its place: no bit that flips in a name makes these more than two.
            choice.i.p.always.eq(first | share.o.p.last),
        ]
        connect(m, choice.o, flipped(self.o))
