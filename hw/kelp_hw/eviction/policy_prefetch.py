# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Prefetches of policy `kelp`: the pages that a sweep wants, one at a time, while there is credit
and room. Eight cycles a page, and the way of its op to M3."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Op, PrefetchSource

from ..layouts import POOL_BITS
from ..pipeline import RESULT_TO_NEED
from ..tracker.signatures import PoolCounts
from .signatures import EvictionLayouts

__all__ = ["PolicyPrefetch"]


class PolicyPrefetch(wiring.Component):
    """Fetches or drops the wanted pages of one queue (docs/policy.md).

    A page is fetched while there is credit and the queue's pool has more spare frames than `water`.
    It is dropped when there is no credit, or when no eviction that is needed or under way could
    make room.

    M0 admits a PREFETCH when a miss id is free. All of them may belong to misses that wait for a
    frame, so an eviction never waits for this block (docs/design.md §11).

    Latency: `LATENCY` cycles from `turn` to the op. Interval: `INTERVAL` cycles a page, and the
    cycles until M3 has decided its op.

    Parameters
    ----------
    config : Config

    Members
    -------
    queue : in, always-ready stream
        Session and squeue whose pages are wanted from now on.
    pool : in, always-ready stream
        Pool of the queue that was looked at last.
    wanted : in, stream of page
    turn : in
        The evictor has nothing else to do: a page may be taken up.
    room_comes : in
        A pool needs a frame, or an eviction is under way.
    busy : out
        From the cycle after a page was taken up until its op is decided and counted, or it is
        dropped; `queue` stays meanwhile.
    pools : in, PoolCounts; water : in
        Frames that prefetches leave free.
    in_credit : in
        As in `PolicyState`.
    i_result : in, always-ready stream of result
    o_prefetch : out, stream of op (PREFETCH)
    """

    LATENCY = 1
    SETTLE = RESULT_TO_NEED
    INTERVAL = 4 + SETTLE

    def __init__(self, *, config: Config):
        self.config = config
        layouts = EvictionLayouts(config)
        queue = data.StructLayout({"session": config.session_bits, "squeue": config.squeue_bits})
        super().__init__(
            {
                "queue": In(stream.Signature(queue, always_ready=True)),
                "pool": In(stream.Signature(POOL_BITS, always_ready=True)),
                "wanted": In(stream.Signature(config.page_bits)),
                "turn": In(1),
                "room_comes": In(1),
                "busy": Out(1),
                "pools": In(PoolCounts(config)),
                "water": In(16),
                "in_credit": In(1),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "o_prefetch": Out(stream.Signature(layouts.op)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        queue, pool, can_fetch = Signal.like(self.queue.p), Signal(POOL_BITS), Signal()
        spare = Array(self.pools.spare[p] for p in range(len(POOLS)))
        wait = Signal(range(self.SETTLE + 1))
        r, op = self.i_result, self.o_prefetch.p
        with m.If(self.queue.valid):
            m.d.sync += queue.eq(self.queue.p)
        with m.If(self.pool.valid):
            m.d.sync += pool.eq(self.pool.p)
        m.d.sync += can_fetch.eq(self.in_credit & (spare[pool] > self.water))
        m.d.comb += [
            op.kind.eq(Op.PREFETCH),
            op.session.eq(queue.session),
            op.squeue.eq(queue.squeue),
            op.page.eq(self.wanted.p),
            op.source.eq(PrefetchSource.POLICY),
            self.busy.eq(1),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.busy.eq(0)
                with m.If(self.turn & self.wanted.valid):
                    with m.If(can_fetch):
                        m.next = "FETCH"
                    with m.Elif(~self.in_credit | ~self.room_comes):
                        m.next = "DROP"
            with m.State("DROP"):
                # Critical path: a cycle between the decision and the FIFO of wanted pages.
                m.d.comb += self.wanted.ready.eq(1)
                m.next = "IDLE"
            with m.State("FETCH"):
                m.d.comb += [
                    self.o_prefetch.valid.eq(1),
                    self.wanted.ready.eq(self.o_prefetch.ready),
                ]
                with m.If(self.o_prefetch.ready):
                    m.next = "FETCHING"
            with m.State("FETCHING"):
                m.d.sync += wait.eq(self.SETTLE)
                with m.If(
                    r.valid
                    & (r.p.op.kind == Op.PREFETCH)
                    & (r.p.op.source == PrefetchSource.POLICY)
                ):
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                # Until an eviction for the frame that it took is known to be needed.
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.next = "IDLE"
        return m
