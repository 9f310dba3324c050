# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Pages that are to leave: the front is asked for every sector of one, until the host holds nothing
of it (docs/coherence.md). One page at a time; one of which nothing is held takes 2 cycles a sector
and 4."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import sizes_of
from kelp_spec.config import Config

from ..layouts import queue_in_map
from ..lib.power_of_two import power_of_two
from .signatures import EvictionLayouts

__all__ = ["PageRecall"]


class PageRecall(wiring.Component):
    """Asks for the pages of evictions and of the closer in turn. An answer that something is held
    means that its recall goes on; the page is asked for again in its next turn.

    An eviction goes on when its frame is flushed and nothing of its page is held. It waits for the
    host no longer than `PATIENCE` cycles, or half as long again: then it fails, so that no eviction
    depends on what the host does. What the host is granted, or writes, after the page's CLAIM ends
    the eviction at M3; so it does not matter when its sectors were seen.

    The closer's page waits without end: its session is granted nothing any more, and a BIRsp that
    does not come has a time-out of its own.

    Latency: `LATENCY` cycles from `i_claim` to the first `o_ask`. Interval: 2 cycles a sector and
    4 a page (`INTERVAL` of a page of two sectors). No error cases.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_claim : in, always-ready stream
        A page whose eviction begins, and its slot.
    i_flushed : in, always-ready stream of slots
    o_flushed : out, always-ready stream
        A slot that may go on; `held`: its eviction is to fail.
    i_scrub : in, stream of page
        Taken when nothing of it is held.
    o_ask : out, stream of sectors; i_answer : in, always-ready stream
        To the front, which answers in order: whether something of the sector is held.
    idle : out
        No page is asked for.
    """

    LATENCY = 2
    INTERVAL = 8
    PATIENCE = 256

    def __init__(self, *, config: Config):
        self.config = config
        self.layouts, self.sizes = EvictionLayouts(config), sizes_of(config)
        self.page, slot = self.layouts.page, config.write_back_bits
        claimed = data.StructLayout({"slot": slot, "page": self.page})
        flushed = data.StructLayout({"slot": slot, "held": 1})
        super().__init__(
            {
                "i_claim": In(stream.Signature(claimed, always_ready=True)),
                "i_flushed": In(stream.Signature(slot, always_ready=True)),
                "o_flushed": Out(stream.Signature(flushed, always_ready=True)),
                "i_scrub": In(stream.Signature(self.page)),
                "o_ask": Out(stream.Signature(self.sizes.sector_address_bits(config))),
                "i_answer": In(stream.Signature(1, always_ready=True)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, sizes = self.config, self.sizes
        slots = range(c.write_backs)
        pages = [Signal(self.page, name=f"page_{k}") for k in slots]
        ages = [Signal(2, name=f"age_{k}") for k in slots]
        # Of each slot: its page is asked for; nothing of it is held, or it has waited long enough;
        # then something is; its frame is flushed.
        pending, clear, kept, flushed = (
            Signal(c.write_backs, name=name) for name in ("pending", "clear", "kept", "flushed")
        )

        # The page at hand: the closer's, or that of a slot, which take turns.
        slot, scrubs, scrubbed = Signal(c.write_back_bits), Signal(), Signal()
        at = Signal(self.page)
        per_page = c.page_lines // sizes.sector
        number, answered = Signal(range(per_page + 1)), Signal(range(per_page + 1))
        held, passes = Signal(), Signal()
        # the slot whose turn it is, from the last one on
        chosen = Signal(c.write_back_bits)
        for after in (False, True):
            for k in reversed(slots[1:] if after else slots):
                with m.If(pending[k] & ((slot < k) if after else 1)):
                    m.d.comb += chosen.eq(k)
        takes_scrub = self.i_scrub.valid & ~passes & (~scrubbed | ~pending.any())
        chosen_page = Signal(self.page)
        with m.Switch(chosen):
            for k in slots:
                with m.Case(k):
                    m.d.comb += chosen_page.eq(pages[k])
        m.d.comb += [
            self.o_ask.p.eq(self._sector(m, at, number)),
            self.i_scrub.ready.eq(passes),
            self.idle.eq(~pending.any() & ~flushed.any() & ~self.i_claim.valid),
        ]
        with m.If(passes):
            m.d.sync += passes.eq(0)
        ends, seen_held = Signal(), Signal()
        m.d.comb += seen_held.eq(held | self.i_answer.p)
        with m.FSM():
            with m.State("CHOOSE"):
                m.d.sync += [number.eq(0), answered.eq(0), held.eq(0)]
                with m.If(takes_scrub | pending.any()):
                    m.d.sync += [
                        scrubs.eq(takes_scrub),
                        scrubbed.eq(takes_scrub),
                        at.eq(Mux(takes_scrub, self.i_scrub.p, chosen_page)),
                    ]
                    with m.If(~takes_scrub):
                        m.d.sync += slot.eq(chosen)
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += self.o_ask.valid.eq(number != per_page)
                with m.If(self.o_ask.valid & self.o_ask.ready):
                    m.d.sync += number.eq(number + 1)
                with m.If(self.i_answer.valid):
                    m.d.sync += [answered.eq(answered + 1), held.eq(seen_held)]
                    with m.If(answered == per_page - 1):
                        m.d.comb += ends.eq(1)
                        m.next = "CHOOSE"
        with m.If(ends & scrubs):
            m.d.sync += passes.eq(~seen_held)
        m.d.sync += Assert(~passes | self.i_scrub.valid, "a page that is asked for stays")

        tick = Signal(range(power_of_two("PATIENCE", self.PATIENCE) // 2))
        m.d.sync += tick.eq(tick + 1)
        free = Signal(c.write_back_bits)
        for k in reversed(slots):
            with m.If(clear[k] & flushed[k]):
                m.d.comb += free.eq(k)
        m.d.comb += [
            self.o_flushed.valid.eq((clear & flushed).any()),
            self.o_flushed.p.slot.eq(free),
            self.o_flushed.p.held.eq(kept.bit_select(free, 1)),
        ]
        for k in slots:
            mine = ends & ~scrubs & (slot == k)
            gone = ~seen_held | (ages[k] == 3)
            with m.If((tick == 0) & pending[k] & (ages[k] != 3)):
                m.d.sync += ages[k].eq(ages[k] + 1)
            with m.If(mine & gone):
                m.d.sync += [pending[k].eq(0), clear[k].eq(1), kept[k].eq(seen_held)]
            with m.If(self.o_flushed.valid & (free == k)):
                m.d.sync += [clear[k].eq(0), flushed[k].eq(0)]
            with m.If(self.i_flushed.valid & (self.i_flushed.p == k)):
                m.d.sync += flushed[k].eq(1)
            with m.If(self.i_claim.valid & (self.i_claim.p.slot == k)):
                m.d.sync += [
                    pages[k].eq(self.i_claim.p.page),
                    pending[k].eq(1),
                    ages[k].eq(0),
                    Assert(~pending[k] & ~clear[k], "two evictions in a slot"),
                ]
        return m

    def _sector(self, m, page, number):
        """Sector `number` of a page, as the directory counts them."""
        c, sizes = self.config, self.sizes
        return Cat(
            number[: c.line_bits - sizes.sector_bits],
            page.page,
            queue_in_map(m, c, page.squeue),
        )
