# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Hot pages: recently used resident pages held in registers (docs/design.md §1, two lanes). One
look-up and one change a cycle: `hit` is combinational, `entry` follows after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import Format

from ..layouts import POOL_BITS, Layouts, code_shape

__all__ = ["HotPages"]


class HotPages(wiring.Component):
    """Pages that are resident and already touched in their session's step, with their frame, pool
    and formats; `config.hot_pages` of them (docs/design.md §1, two lanes).

    Latency: `HIT_LATENCY` (0) from `same` to `hit`, `LATENCY` (1) to `entry`; a look-up and a
    change in each cycle (`INTERVAL`). No error cases.

    Looked up at M0 by `same` (`hit` in the same cycle, `entry` in the next), changed at M3: `keep`
    enters the op's page if it is not there, in place of the entry that has been there longest;
    `drop` removes it; `drop_session` removes a session's pages.

    Parameters
    ----------
    config : Config

    Members
    -------
    pages : out
        The pages of this cycle, valid or not.
    entering : out
        Those that `page` replaces in the next.
    same : in
        Which of `pages` are looked for.
    hit : out, same cycle
        One of them is valid.
    entry : out, one cycle later
        Its frame, pool and formats.
    ahead : in, page
        What `page` will be in the next cycle.
    page, session : in
        The page of the op at M3, and its session.
    keep : in
        `page` enters, if it is not there.
    new : in
        Frame, pool and formats of `page`, with `keep`.
    drop : in
        `page` leaves.
    drop_session : in
        The pages of `session` leave.
    """

    LATENCY = 1
    HIT_LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = Layouts(config)
        self.page_layout = layouts.page
        self.entry_layout = data.StructLayout(
            {
                "frame": config.frame_bits,
                "pool": POOL_BITS,
                "format_k": code_shape(Format),
                "format_v": code_shape(Format),
            }
        )
        super().__init__(
            {
                "pages": Out(data.ArrayLayout(layouts.page, config.hot_pages)),
                "entering": Out(config.hot_pages),
                "same": In(config.hot_pages),
                "hit": Out(1),
                "entry": Out(self.entry_layout),
                "ahead": In(layouts.page),
                "page": In(layouts.page),
                "session": In(config.session_bits),
                "keep": In(1),
                "new": In(self.entry_layout),
                "drop": In(1),
                "drop_session": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n = self.config.hot_pages
        valid = Signal(n)
        pages = [self.pages[i] for i in range(n)]
        sessions = [Signal(self.config.session_bits, name=f"session_{i}") for i in range(n)]
        entries = [Signal(self.entry_layout, name=f"entry_{i}") for i in range(n)]

        looked, found = Signal(n), Signal(n)
        m.d.comb += self.hit.eq((valid & self.same).any())
        m.d.sync += looked.eq(valid & self.same)
        chosen = 0
        for i in range(n):
            chosen = chosen | Mux(looked[i], entries[i].as_value(), 0)
        m.d.comb += self.entry.eq(chosen)

        # Critical path: what becomes of M3's page. Where that page is now has been found a cycle
        # earlier, with what the op before it does allowed for.
        oldest, entering, left = Signal(n, init=1), self.entering, Signal(n)  # one bit each
        enter = Signal()
        m.d.comb += [
            enter.eq(self.keep & ~found.any()),
            entering.eq(Mux(enter, oldest, 0)),
            left.eq(
                valid
                & ~Mux(self.drop, found, 0)
                & ~Mux(self.drop_session, Cat(s == self.session for s in sessions), 0)
            ),
        ]
        same_again = self.page.as_value() == self.ahead.as_value()
        m.d.sync += [
            valid.eq(left | entering),
            found.eq(
                Cat(
                    Mux(
                        entering[i],
                        same_again,
                        left[i] & (pages[i].as_value() == self.ahead.as_value()),
                    )
                    for i in range(n)
                )
            ),
        ]
        # A look-up of the cycle in which its entry is replaced reads the entry's data a cycle
        # later: they are replaced a cycle later, too.
        place, new = Signal(n), Signal(self.entry_layout)
        m.d.sync += [place.eq(entering), new.eq(self.new)]
        with m.If(enter):
            m.d.sync += oldest.eq(oldest.rotate_left(1))
        for i in range(n):
            with m.If(entering[i]):
                m.d.sync += [pages[i].eq(self.page), sessions[i].eq(self.session)]
            with m.If(place[i]):
                m.d.sync += entries[i].eq(new)
        m.d.sync += [
            Assert(
                ~(self.keep | self.drop)
                | (
                    found
                    == Cat(
                        valid[i] & (pages[i].as_value() == self.page.as_value()) for i in range(n)
                    )
                )
            ),
            Assert(self.keep + self.drop + self.drop_session <= 1),
            Assert((looked & (looked - 1)) == 0),
        ]
        return m
