# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The best pages of a sweep, sorted."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from .eviction_layouts import EvictionLayouts

__all__ = ["CandidateList"]


class CandidateList(wiring.Component):
    """Keeps the `config.candidates` best of the pages inserted since `clear`: lower class first, then higher priority, then the page inserted first
    (a sweep inserts in ascending order, so the lower page; spec §5, docs/design.md §6).

    One insertion or one `take` per cycle, effective in the next; `clear` wins over both. Inserting and taking at once is not allowed.

    Parameters
    ----------
    config : Config

    Members
    -------
    clear, take : in
        `take` removes `best`.
    i, i_valid : in, candidate
    best, best_valid : out, candidate
    """

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__({
            "clear": In(1), "take": In(1), "i": In(layouts.candidate), "i_valid": In(1),
            "best": Out(layouts.candidate), "best_valid": Out(1),
        })
        # State that proofs look at (kelp_verif.order_specs).
        self.places = [Signal(layouts.candidate, name=f"place{k}", reset_less=True) for k in range(config.candidates)]
        self.valid = Signal(config.candidates)

    def elaborate(self, platform):
        m = Module()
        keep = self.config.candidates
        places, valid = self.places, self.valid

        def key(candidate):
            return Cat(~candidate.priority, candidate.kind)

        # Before which places the new candidate goes: a run at the end, since the list is sorted.
        before = Signal(keep)
        m.d.comb += [before[k].eq(~valid[k] | (key(self.i) < key(places[k]))) for k in range(keep)]
        with m.If(self.i_valid):
            m.d.sync += valid.eq(Cat(1, valid))
            for k in range(keep):
                with m.If(before[k]):
                    m.d.sync += places[k].eq(self.i)
                    if k:
                        with m.If(before[k - 1]):
                            m.d.sync += places[k].eq(places[k - 1])
        with m.Elif(self.take):
            m.d.sync += valid.eq(valid >> 1)
            m.d.sync += [places[k].eq(places[k + 1]) for k in range(keep - 1)]
        with m.If(self.clear):
            m.d.sync += valid.eq(0)

        m.d.comb += [self.best.eq(places[0]), self.best_valid.eq(valid[0])]
        m.d.sync += Assert(~(self.i_valid & self.take))
        for k in range(keep - 1):
            m.d.sync += Assert(~valid[k + 1] | (valid[k] & (key(places[k]) <= key(places[k + 1]))), "the list is not sorted")
        return m
