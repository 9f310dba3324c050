# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The best pages of a sweep, sorted. One insertion or one take a cycle; an inserted page is seen
after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from .signatures import EvictionLayouts

__all__ = ["CandidateList"]


class CandidateList(wiring.Component):
    """Keeps the `config.candidates` best of the pages inserted since `clear`: lower class first,
    then higher priority, then the page inserted first (a sweep inserts in ascending order, so the
    lower page; spec §5, docs/design.md §6).

    Latency: `LATENCY` cycles from an insertion to `best`, one from a `take`. Interval: `INTERVAL`,
    one insertion or one `take` per cycle; `clear` wins over both. Taking while inserting or while
    one is coming is not allowed.

    Parameters
    ----------
    config : Config

    Members
    -------
    clear, take : in
        Empties the list; removes `best`.
    i : in, always-ready stream of candidate
    best : out, held_candidate
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        super().__init__(
            {
                "clear": In(1),
                "take": In(1),
                "i": In(stream.Signature(layouts.candidate, always_ready=True)),
                "best": Out(layouts.held_candidate),
            }
        )
        # State that proofs look at (kelp_verif.formal.order_specs).
        self.places = [
            Signal(layouts.candidate, name=f"place{k}", reset_less=True)
            for k in range(config.candidates)
        ]
        self.valid = Signal(config.candidates)
        # what was at `i` in the cycle before
        self.coming, self.coming_valid = Signal(layouts.candidate), Signal()
        # before which places `coming` goes: a run at the end, since the list is sorted
        self.before = Signal(config.candidates)

    def elaborate(self, platform):
        m = Module()
        keep = self.config.candidates
        places, valid = self.places, self.valid

        def key(candidate):
            return Cat(~candidate.priority, candidate.kind)

        # The new candidate is compared with the list as it will be when the one that is coming has
        # its place.
        comes, before = self.coming_valid, self.before
        first, later = Signal(keep), Signal()
        m.d.comb += [
            *(first[k].eq(~valid[k] | (key(self.i.p) < key(places[k]))) for k in range(keep)),
            later.eq(key(self.i.p) < key(self.coming)),
        ]
        moved = Cat(later, *(Mux(before[k - 1], first[k - 1], later) for k in range(1, keep)))
        m.d.sync += [
            self.coming.eq(self.i.p),
            comes.eq(self.i.valid & ~self.clear),
            before.eq(Mux(comes, (before & moved) | (~before & first), first)),
        ]
        with m.If(comes):
            m.d.sync += valid.eq(Cat(1, valid))
            for k in range(keep):
                with m.If(before[k]):
                    m.d.sync += places[k].eq(self.coming)
                    if k:
                        with m.If(before[k - 1]):
                            m.d.sync += places[k].eq(places[k - 1])
        with m.Elif(self.take):
            m.d.sync += valid.eq(valid >> 1)
            m.d.sync += [places[k].eq(places[k + 1]) for k in range(keep - 1)]
        with m.If(self.clear):
            m.d.sync += valid.eq(0)

        m.d.comb += [
            *(self.best[name].eq(places[0][name]) for name in places[0].shape().members),
            self.best.valid.eq(valid[0]),
        ]
        m.d.sync += Assert(~((self.i.valid | comes) & self.take))
        for k in range(keep - 1):
            m.d.sync += Assert(
                ~valid[k + 1] | (valid[k] & (key(places[k]) <= key(places[k + 1]))),
                "the list is not sorted",
            )
        return m
