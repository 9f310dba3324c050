# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which pool needs a frame: in turn among those below the low-water mark. One cycle behind the
pools' counts, a choice in every cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Op, PageState

from ..layouts import POOL_BITS, is_pinned
from ..tracker.signatures import PoolCounts
from .signatures import EvictionLayouts, EvictionsUnderWay

__all__ = ["PoolNeed"]


class PoolNeed(wiring.Component):
    """Names the pool that the next search for a victim serves (spec §7).

    A pool is served while used > 0 and spare + under way < max(1, low_water): evictions run side by
    side, one for each miss entry that waits for a frame, and then for those that are kept free. One
    whose search found no victim rests until a page may have become one, also during that search.

    Latency: `LATENCY` cycles from the counts to `need`. Interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Members
    -------
    pools : in
    slots : in, EvictionsUnderWay
    low_water : in
        Frames; two cycles to `need`.
    i_result : in, always-ready stream of result
    need : out
        `pool` is the next one that needs a frame, after the last one served; `valid`: there is one.
    begin : in
        A search for a page of `need.pool` begins, which is `pool` from the next cycle on.
    pool : out
    given : in
        A page of `pool` was given.
    failed : in
        No page of `pool` can be given.
    unreported : out
        No search of `pool` has failed since a page of it was given.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        layouts = EvictionLayouts(config)
        super().__init__(
            {
                "pools": In(PoolCounts(config)),
                "slots": In(EvictionsUnderWay(config)),
                "low_water": In(16),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "need": Out(data.StructLayout({"valid": 1, "pool": POOL_BITS})),
                "begin": In(1),
                "pool": Out(POOL_BITS),
                "given": In(1),
                "failed": In(1),
                "unreported": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        pools, r = range(len(POOLS)), self.i_result.p
        need, resting, reported = Signal(len(POOLS)), Signal(len(POOLS)), Signal(len(POOLS))
        target, next_pool, appeared, wakes = Signal(16), Signal(POOL_BITS), Signal(), Signal()
        m.d.sync += target.eq(Mux(self.low_water == 0, 1, self.low_water))
        for p in pools:
            m.d.sync += need[p].eq(
                (self.pools.used[p] != 0)
                & (self.pools.spare[p] + self.slots.count[p] < target)
                & ~resting[p]
            )
        m.d.comb += self.need.valid.eq(need.any())
        for k in reversed(pools):
            candidate = Signal(POOL_BITS, name=f"turn{k}")
            m.d.comb += candidate.eq(next_pool + k)
            with m.If(need.bit_select(candidate, 1)):
                m.d.comb += self.need.pool.eq(candidate)

        m.d.comb += [
            self.unreported.eq(~reported.bit_select(self.pool, 1)),
            wakes.eq(
                self.i_result.valid
                & (
                    (r.changed & (r.word.state == PageState.RESIDENT) & ~is_pinned(r.word))
                    | (r.op.kind == Op.RELEASE)
                )
            ),
        ]
        with m.If(wakes):
            m.d.sync += [resting.eq(0), appeared.eq(1)]
        with m.If(self.begin):
            m.d.sync += [
                self.pool.eq(self.need.pool),
                next_pool.eq(self.need.pool + 1),
                appeared.eq(0),
            ]
        with m.If(self.given):
            m.d.sync += reported.bit_select(self.pool, 1).eq(0)
        with m.If(self.failed):
            m.d.sync += reported.bit_select(self.pool, 1).eq(1)
            with m.If(~appeared & ~wakes):
                m.d.sync += resting.bit_select(self.pool, 1).eq(1)
        return m
