# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What M0 knows of its request from registers: worked out while the request is on its way there
(docs/design.md §1). One request a cycle, judged after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..layouts import Layouts

__all__ = ["Foresight"]


class Foresight(wiring.Component):
    """Compares a request with the hot pages, the ops in the pipeline and its session in the cycle
    before it is at M0, and keeps that up to date while it stays (docs/design.md §1).

    Latency: `LATENCY` cycle from `ahead` to `same`, `hit` and `good`; a request in each cycle
    (`INTERVAL`). No error cases.

    Parameters
    ----------
    config : Config

    Members
    -------
    ahead, moves : in
        With `moves`, M0's next request is the one ahead.
    valid, request : in
        M0's request.
    ops : in
        Pages of the ops in MA, M1, M2 and M3.
    background, was_background : in
        Page of the background op that M0 takes in this cycle, if it takes one; the op in MA is the
        one that was here in the last.
    pages, entering : in
        Hot pages, and which of them the page of the op in M3 replaces at the end of this cycle.
    sessions : in
        Registers of every session.
    same, hit : out
        Which ops, and which hot pages, have the page of M0's request; those that are valid (of hot
        pages also the others).
    good : out
        The request goes to memory, as far as its own fields and the session as it was in the cycle
        before tell.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = Layouts(config)
        n = config.hot_pages
        super().__init__(
            {
                "ahead": In(layouts.ahead),
                "moves": In(1),
                "valid": In(1),
                "request": In(layouts.coming),
                "ops": In(data.ArrayLayout(layouts.page, 4)),
                "background": In(layouts.page),
                "was_background": In(1),
                "pages": In(data.ArrayLayout(layouts.page, n)),
                "entering": In(n),
                "sessions": In(data.ArrayLayout(layouts.session, config.sessions)),
                "same": Out(4),
                "hit": Out(n),
                "good": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, n = self.config, self.config.hot_pages

        def place(of):
            return Cat(of.page, of.squeue)

        def good(of):
            mine = Signal.like(self.sessions[0], name=f"session_of_{len(goods)}")
            m.d.comb += mine.as_value().eq(
                Array(self.sessions[s].as_value() for s in range(c.sessions))[of.session]
                if c.sessions > 1
                else self.sessions[0]
            )
            goods.append(
                of.memory
                & (of.ld_id == mine.ld_id)
                & (of.kv_line[: c.half_line_bits] < mine.used_lines)
                & ~(of.kv_line[c.half_line_bits] & mine.k_only)
            )
            return goods[-1]

        goods = []
        # Of the candidates, the comparisons are made before it is known which comes.
        fresh = Signal(4 + n + 3)
        with_ops, with_hot = fresh[:4], fresh[4 : 4 + n]
        entering = place(self.background), place(self.request)
        places = [*(place(p) for p in self.ops), *(place(p) for p in self.pages), *entering]
        of_candidates = [
            Cat(*(p == place(x) for p in places), good(x))
            for x in (self.ahead.candidates[k] for k in range(2))
        ]
        m.d.comb += fresh.eq(Mux(self.ahead.which, of_candidates[1], of_candidates[0]))

        # The ops go on by one stage, whether the request does or not. Critical path: which op
        # enters in this cycle; the request is compared with both. It is the present one only if
        # that does not stay.
        behind, with_background, with_request, hit = Signal(3), Signal(), Signal(), self.hit
        m.d.comb += self.same.eq(
            Cat(Mux(self.was_background, with_background, with_request), behind)
        )
        m.d.sync += [
            behind.eq(Mux(self.moves, with_ops, self.same)),
            with_background.eq(Mux(self.moves, fresh[4 + n], entering[0] == entering[1])),
            with_request.eq(fresh[5 + n]),
            hit.eq(
                (Mux(self.moves, with_hot, hit) & ~self.entering)
                | (Mux(self.moves, with_ops[3], self.same[3]).replicate(n) & self.entering)
            ),
            self.good.eq(Mux(self.moves, fresh[-1], good(self.request))),
        ]
        came = Signal(self.request.shape())  # so `good` is of the request that is at M0
        with m.If(self.moves):
            m.d.sync += came.eq(
                Mux(self.ahead.which, *(self.ahead.candidates[k].as_value() for k in (1, 0)))
            )
        with m.If(self.valid):
            m.d.sync += Assert(
                came.as_value() == self.request.as_value(), "a request comes that was not ahead"
            )
            m.d.sync += Assert(hit == Cat(place(p) == place(self.request) for p in self.pages))
        return m
