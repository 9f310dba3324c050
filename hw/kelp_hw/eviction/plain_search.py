# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Policy 0: a queue over its budget gives its best page. Combinational: an answer in the cycle in
which the evictor asks."""

from __future__ import annotations

from amaranth.hdl import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from kelp_spec.config import Config

from .signatures import Moment, Search, Verdict

__all__ = ["PlainSearch"]


class PlainSearch(wiring.Component):
    """What the evictor does next with a queue of policy 0 (spec §7, docs/design.md §6).

    A list that is still good is used up; else the queue is swept, if it has a page; else the next
    queue is tried.

    Latency: `LATENCY` cycles. Interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Members
    -------
    search : in, Search
        It never waits and never moves to another queue by itself.
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        super().__init__({"search": In(Search(config))})

    def elaborate(self, platform):
        m = Module()
        facts, verdict = self.search.facts, self.search.verdict
        with m.Switch(self.search.moment):
            with m.Case(Moment.JUDGE):
                m.d.comb += verdict.eq(
                    Mux(
                        facts.usable,
                        Verdict.TAKE,
                        Mux(facts.eligible, Verdict.SWEEP, Verdict.NEXT),
                    )
                )
            with m.Case(Moment.SWEPT):
                m.d.comb += verdict.eq(Verdict.TAKE)
            with m.Case(Moment.EMPTY):
                # A list of an earlier sweep is used up: the same queue may have more.
                m.d.comb += verdict.eq(Mux(facts.fresh, Verdict.NEXT, Verdict.LOOK))
            with m.Case(Moment.GIVEN):
                m.d.comb += verdict.eq(Verdict.DONE)
        return m
