# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy `kelp`: sweep the queues with the highest offers, write what each offers now to the tree,
and take the best page (docs/policy.md). Combinational: an answer in the cycle in which the evictor
asks; an offer takes a walk of the tree before it."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.policy import SWEEPS, SWEEPS_MOST

from .signatures import EvictionLayouts, Moment, Offer, Search, Verdict

__all__ = ["KelpSearch"]


class Phase(enum.Enum, shape=3):
    """How far the search has come."""

    OFFERED = 0  #: at a queue that the tree names
    ASKED = 1  #: at the queue that asks for the frame
    SEARCH = 2  #: at one queue after another, or at the one before that which asks
    GIVEN = 3  #: a page was given
    FAILED = 4  #: the list had none


class KelpSearch(wiring.Component):
    """What the evictor does next with a queue of policy `kelp` (docs/policy.md).

    Every sweep ends with an offer of the swept queue. While the tree then names another queue with
    an offer, that one is swept too: up to SWEEPS with a page to give, SWEEPS_MOST in all. Where
    the last queue has nothing but pages in use, the queue that asks gives, if it is of this policy
    and has a page beside its newest; else the page that was found before goes, after another sweep
    where the queue that asks was swept. A page that is taken, or a list without one, changes
    the offer once more. A sweep that no pool asked for (`facts.evict` off) ends with its offer.

    Latency: `LATENCY` cycles from a moment to its verdict; where that is WAIT, an offer is made
    first, about `3·log2(squeues) + 10` cycles. Interval: one moment at a time.

    Parameters
    ----------
    config : Config

    Members
    -------
    search : in, Search
    asked : out
        The search is at the queue that asks: this policy judges it, whatever the queue's is.
    offer : out, Offer
    best : in, held_candidate
        Of the sweep's list (`SweepList`).
    clear : out
        Empties the list: the queue at hand has no page.
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__(
            {
                "search": In(Search(config)),
                "asked": Out(1),
                "offer": Out(Offer(config)),
                "best": In(EvictionLayouts(config).held_candidate),
                "clear": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        phase, has_page = Signal(Phase), Signal()
        m.d.comb += [
            self.asked.eq(phase == Phase.ASKED),
            has_page.eq(self.best.valid & (self.best.kind == 0)),
        ]
        self._search(m, phase, has_page)
        return m

    def _search(self, m, phase, has_page):
        facts, move, verdict = self.search.facts, self.search.move, self.search.verdict
        best, offer = self.best, self.offer
        sweeps, worthy = Signal(range(SWEEPS_MOST + 1)), Signal(range(SWEEPS + 1))
        # the last queue that the tree named; it had a page
        chosen, other = Signal.like(facts.squeue), Signal()
        m.d.comb += [
            offer.request.p.squeue.eq(facts.squeue),
            # A queue with nothing but pages in use offers next to nothing.
            offer.request.p.excess.eq(
                Mux(~best.valid, 0, Mux(best.kind == 0, best.priority, 1)),
            ),
        ]

        def go(squeue):
            return [move.valid.eq(1), move.squeue.eq(squeue)]

        with m.FSM():
            with m.State("DECIDE"):
                with m.Switch(self.search.moment):
                    with m.Case(Moment.BEGIN):
                        m.d.sync += [phase.eq(Phase.OFFERED), sweeps.eq(0), worthy.eq(0)]
                    with m.Case(Moment.JUDGE):
                        with m.If(facts.kelp & facts.eligible):
                            m.d.comb += verdict.eq(Verdict.SWEEP)
                        with m.Elif(phase == Phase.OFFERED):
                            m.d.comb += self.clear.eq(1)
                            m.next = "OFFER"
                        with m.Elif(phase == Phase.ASKED):
                            # The queue that asks has nothing: what was found before it goes.
                            m.d.comb += [verdict.eq(Verdict.TAKE), *go(chosen)]
                        with m.Else():
                            m.d.comb += verdict.eq(Verdict.NEXT)
                    with m.Case(Moment.SWEPT):
                        kept = other & (~best.valid | (best.kind == 2))
                        with m.If((phase == Phase.OFFERED) | (phase == Phase.ASKED) & kept):
                            m.next = "OFFER"
                        with m.Else():
                            m.d.comb += verdict.eq(Verdict.TAKE)
                    with m.Case(Moment.EMPTY):
                        m.d.sync += phase.eq(Phase.FAILED)
                        m.next = "OFFER"
                    with m.Case(Moment.GIVEN):
                        m.d.sync += phase.eq(Phase.GIVEN)
                        m.next = "OFFER"
                    with m.Case(Moment.NEXT):
                        m.d.sync += phase.eq(Phase.SEARCH)
            with m.State("OFFER"):
                m.d.comb += offer.request.valid.eq(1)
                with m.If(offer.request.ready):
                    m.next = "OFFERING"
            with m.State("OFFERING"):
                with m.If(offer.done):
                    m.next = "OFFERED"
            with m.State("OFFERED"):
                m.next = "DECIDE"
                with m.Switch(phase):
                    with m.Case(Phase.OFFERED):
                        m.d.sync += [sweeps.eq(sweeps + 1), worthy.eq(worthy + has_page)]
                        with m.If(facts.evict):
                            m.next = "AGAIN"
                        with m.Else():
                            m.d.comb += verdict.eq(Verdict.REST)
                    with m.Case(Phase.ASKED):
                        # It keeps what it is about to write: the queue before it gives.
                        m.d.comb += [verdict.eq(Verdict.LOOK), *go(chosen)]
                        m.d.sync += phase.eq(Phase.SEARCH)
                    with m.Case(Phase.GIVEN):
                        m.d.comb += verdict.eq(Verdict.DONE)
                    with m.Default():
                        m.d.comb += verdict.eq(Verdict.NEXT)
            with m.State("AGAIN"):
                # The tree may have named this queue for an offer that was no longer true: then
                # another one offers more, up to a limit.
                m.next = "DECIDE"
                m.d.sync += [chosen.eq(facts.squeue), other.eq(best.valid)]
                with m.If(
                    (worthy != SWEEPS)
                    & (sweeps != SWEEPS_MOST)
                    & (facts.root != facts.squeue)
                    & facts.offered
                ):
                    m.d.comb += [verdict.eq(Verdict.LOOK), *go(facts.root)]
                with m.Elif(has_page | (facts.asking == facts.squeue)):
                    m.d.comb += [verdict.eq(Verdict.TAKE), *go(facts.squeue)]
                with m.Else():
                    # Nothing but pages in use: then the queue that asks gives.
                    m.d.comb += [verdict.eq(Verdict.LOOK), *go(facts.asking)]
                    m.d.sync += phase.eq(Phase.ASKED)
