# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What pages had of their heads' attention when they were scored last (docs/select.md, "Absent
pages"). One page a cycle in, and one out after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.select import MASS_BITS, SEEN_BITS, SEEN_NEVER, SEEN_SHIFT, WEIGHT_BITS

from ..layouts import Layouts
from ..lib.sram import Sram
from .signatures import SelectLayouts

__all__ = ["PageSeen"]

_PLACES = 8 - SEEN_SHIFT  #: of a logarithm, after the point
_MOST = (1 << SEEN_BITS - 1) - 1


class PageSeen(wiring.Component):
    """For each page of the device and each query head log2 of the mass that the page had when it
    was scored last, SEEN_BITS bits. A page that is asked for has that as its score; one that was
    never scored three quarters of the bound that comes with it. What is noted of a page is no more
    when it is cleared.

    Latency: `LATENCY` cycles from a page at `i` to its scores at `o`. One page in each cycle
    (`INTERVAL`); a mass waits while pages are cleared, and goes with its page. What is noted is
    seen by a page that comes a cycle after its mass. After reset `ready` rises when nothing is
    noted, `config.page_words` cycles later. No error cases; it only advises, and has no check bits.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_clear : in, always-ready stream of page
    i_mass : in, stream
        A page of a `squeue`, its mass, and whether it is noted.
    squeue : in
        Of the pages at `i`.
    i : in, always-ready stream of scores
        A page's bounds; `id` is the page.
    o : out, always-ready stream of scores
    ready : out
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = c = config
        layouts = SelectLayouts(heads=c.select_heads, id_bits=c.page_bits)
        scores = stream.Signature(layouts.scores, always_ready=True)
        self.noted = data.StructLayout({"squeue": c.squeue_bits, "mass": layouts.page_mass})
        super().__init__(
            {
                "i_clear": In(stream.Signature(Layouts(c).page, always_ready=True)),
                "i_mass": In(stream.Signature(self.noted)),
                "squeue": In(c.squeue_bits),
                "i": In(scores),
                "o": Out(scores),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        row = data.ArrayLayout(signed(SEEN_BITS), c.select_heads)
        m.submodules.rows = rows = Sram(depth=c.page_words, shape=row)
        scrub, clears, cleared = Signal(range(c.page_words)), Signal(), Signal(range(c.page_words))
        kept, note = Signal(), Signal(self.noted)
        free = self.ready & ~clears
        m.d.comb += [
            self.i_mass.ready.eq(~kept | free),
            rows.write_en.eq(~self.ready | clears | kept),
            rows.write_address.eq(Mux(clears, cleared, self._word(note.squeue, note.mass.id))),
        ]
        m.d.sync += [
            clears.eq(self.i_clear.valid),
            cleared.eq(self._word(self.i_clear.p.squeue, self.i_clear.p.page)),
        ]
        with m.If(clears & (cleared == self._word(note.squeue, note.mass.id))):
            m.d.sync += kept.eq(0)
        with m.If(self.i_mass.ready):
            m.d.sync += [kept.eq(self.i_mass.valid), note.eq(self.i_mass.p)]
        for k in range(c.select_heads):
            log = self._log(m, k, note.mass.e[k], note.mass.z[k])
            m.d.comb += rows.write_data[k].eq(Mux(free, log, SEEN_NEVER))
        with m.If(~self.ready):
            m.d.comb += rows.write_address.eq(scrub)
            m.d.sync += scrub.eq(scrub + 1)
            with m.If(scrub == c.page_words - 1):
                m.d.sync += self.ready.eq(1)

        asked, bounds = Signal(), Signal.like(self.i.p)
        m.d.comb += [
            rows.read_en.eq(self.i.valid),
            rows.read_address.eq(self._word(self.squeue, self.i.p.id)),
        ]
        m.d.sync += [
            asked.eq(self.i.valid),
            bounds.eq(self.i.p),
            self.o.valid.eq(asked),
            self.o.p.id.eq(bounds.id),
        ]
        for k in range(c.select_heads):
            seen, bound = rows.read_data[k], bounds.score[k]
            m.d.sync += self.o.p.score[k].eq(
                Mux(seen == SEEN_NEVER, bound + (bound << 1) >> 2, seen << SEEN_SHIFT)
            )
        return m

    def _word(self, squeue, page):
        return (squeue << self.config.page_bits) | page

    def _log(self, m, k, e, z):
        """log2 of z · 2^(e − 15), linear between powers of two, bounded."""
        top, fraction = Signal(range(MASS_BITS), name=f"top_{k}"), Signal(_PLACES, name=f"part_{k}")
        for place in range(MASS_BITS):  # the highest one counts
            with m.If(z[place]):
                below = z[max(0, place - _PLACES) : place]
                m.d.comb += [top.eq(place), fraction.eq(below << max(0, _PLACES - place))]
        log = Signal(signed(len(e) + _PLACES + 1), name=f"log_{k}")
        m.d.comb += log.eq(((e + top - (WEIGHT_BITS - 1)) << _PLACES) + fraction)
        return Mux(log > _MOST, _MOST, Mux(log < -_MOST, -_MOST, log))
