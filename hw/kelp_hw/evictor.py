# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Chooses victims: which pool needs a frame, which queue gives it, which page of the queue (spec §7, docs/design.md §6)."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config
from kelp_spec.metadata import Event, Op, Outcome, PageState

from .eviction_layouts import EvictionLayouts
from .layouts import POOL_BITS
from .pools import count_bits
from .queue_state import QueueState

__all__ = ["Evictor"]


class Evictor(wiring.Component):
    """One choice at a time, by the rules of docs/design.md §6; each is a function of M3's decisions so far.

    Time: a choice from the list takes about 60 cycles, of them 45 to let the queue state absorb the last eviction; a new queue costs a sweep besides.
    A queue that is passed over costs about 8 cycles.

    Parameters
    ----------
    config : Config

    Members
    -------
    pool_free, pool_used : in, per pool; low_water : in
        A pool is served while used > 0 and free + under way < max(1, low_water).
    hold : in
        No choice begins.
    sessions : in
    i_result, i_result_valid : in, result
    roots, requester, entered, done, refreshing, look_valid, look_squeue, look_done, look : the queue state
    squeue, watch, start, sweep_look, step, sweep_busy, best, best_valid, take, swept_step : the sweep
    free_slot, has_free, under_way, page, working : the eviction slots
    o_op : out, stream of op (CLAIM)
    o_event, o_event_valid : out
        NO_VICTIM, once until an eviction of the pool succeeds; `argument` is the pool, `squeue` the first that was tried.
    busy : out
        A choice is being made, or will be without further input.
    """

    SETTLE = 4   #: cycles in which a result and what it did to the pools reach this block

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        counts = data.ArrayLayout(count_bits(config), len(POOLS))
        super().__init__({
            "pool_free": In(counts), "pool_used": In(counts), "low_water": In(16), "hold": In(1),
            "sessions": In(data.ArrayLayout(layouts.session, config.sessions)), "i_result": In(layouts.result), "i_result_valid": In(1),
            "roots": In(data.ArrayLayout(layouts.root, len(POOLS))), "requester": In(data.ArrayLayout(config.squeue_bits, len(POOLS))),
            "entered": In(QueueState.count_bits(config)), "done": In(QueueState.count_bits(config)), "refreshing": In(1),
            "look_valid": Out(1), "look_squeue": Out(config.squeue_bits), "look_done": In(1), "look": In(layouts.look),
            "squeue": Out(config.squeue_bits), "watch": Out(1), "start": Out(1), "sweep_look": Out(layouts.look), "step": Out(layouts.session["step"].shape),
            "sweep_busy": In(1), "best": In(layouts.candidate), "best_valid": In(1), "take": Out(1), "swept_step": In(layouts.session["step"].shape),
            "free_slot": In(config.write_back_bits), "has_free": In(1), "under_way": In(data.ArrayLayout(range(config.write_backs + 1), len(POOLS))),
            "page": Out(config.page_bits), "working": In(1),
            "o_op": Out(stream.Signature(layouts.op)), "o_event": Out(layouts.event), "o_event_valid": Out(1), "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        c = self.config
        pools = range(len(POOLS))

        # --- which pool ---
        need, resting, reported = Signal(len(POOLS)), Signal(len(POOLS)), Signal(len(POOLS))
        target = Signal(16)
        m.d.sync += target.eq(Mux(self.low_water == 0, 1, self.low_water))
        for p in pools:
            m.d.sync += need[p].eq((self.pool_used[p] != 0) & (self.pool_free[p] + self.under_way[p] < target) & ~resting[p])
        next_pool, pool, turn = Signal(POOL_BITS), Signal(POOL_BITS), Signal(POOL_BITS)
        for k in reversed(pools):
            candidate = Signal(POOL_BITS, name=f"turn{k}")
            m.d.comb += candidate.eq(next_pool + k)
            with m.If(need.bit_select(candidate, 1)):
                m.d.comb += turn.eq(candidate)

        # A pool without a victim rests until one may have appeared; what appears during an attempt counts too.
        r, appeared = self.i_result, Signal()
        wakes = Signal()
        m.d.comb += wakes.eq(self.i_result_valid & (
            (r.changed & (r.word.state == PageState.RESIDENT) & ~r.word.pinned) | (r.op.kind == Op.RELEASE)))
        with m.If(wakes):
            m.d.sync += [resting.eq(0), appeared.eq(1)]

        # --- the queue at hand and its session ---
        squeue, first = Signal(c.squeue_bits), Signal(c.squeue_bits)
        session, closing, step = Signal(range(c.sessions)), Signal(), Signal.like(self.step)
        above = [squeue >= k * c.queues for k in range(1, c.sessions)]
        sessions = Array(self.sessions[k] for k in range(c.sessions))
        m.d.sync += [session.eq(sum(above, start=Const(0))), closing.eq(sessions[session].closing), step.eq(sessions[session].step)]
        roots, requester = Array(self.roots[p] for p in pools), Array(self.requester[p] for p in pools)

        # --- whose list it is ---
        list_squeue, list_session, outlived = Signal(c.squeue_bits), Signal(range(c.sessions)), Signal()
        with m.If(sessions[list_session].closing):
            m.d.sync += outlived.eq(1)
        old_list, usable, eligible = Signal(), Signal(), Signal()
        m.d.comb += [
            usable.eq(old_list & self.best_valid & ~outlived & ~closing & ((self.best.kind == 0) | (self.swept_step == step))),
            # Also of a session that is closing: its own fetches may wait for these frames.
            eligible.eq(self.look.listed & (self.look.pool == pool)),
            self.look_squeue.eq(squeue), self.squeue.eq(squeue), self.sweep_look.eq(self.look), self.page.eq(self.best.page),
            # The sweep is given the step of its own session as M3 has it now; `step` above is a cycle late.
            self.step.eq(sessions[session].step),
        ]
        op = self.o_op.payload
        claim_page, claim_step, claim_slot = Signal(c.page_bits), Signal.like(self.step), Signal.like(self.free_slot)
        m.d.comb += [op.kind.eq(Op.CLAIM), op.squeue.eq(squeue), op.page.eq(claim_page), op.delta.eq(claim_step), op.slot.eq(claim_slot)]

        wait, awaited, looked = Signal(range(self.SETTLE + 1)), Signal.like(self.entered), Signal()
        fresh, absorbed = Signal(), Signal.like(self.entered)
        m.d.comb += [absorbed.eq(self.done - awaited), self.busy.eq(1)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.busy.eq(need.any() & self.has_free & ~self.hold)
                m.d.sync += [wait.eq(self.SETTLE), looked.eq(0)]
                with m.If(need.any() & self.has_free & ~self.hold):
                    m.d.sync += [pool.eq(turn), next_pool.eq(turn + 1), appeared.eq(0)]
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                # All results up to now have become events; then all of these are absorbed.
                m.d.sync += [wait.eq(wait - 1), awaited.eq(self.entered)]
                with m.If(wait == 0):
                    m.next = "ABSORB"
            with m.State("ABSORB"):
                # `done` may have gone past: it is the sign of the difference that counts.
                with m.If(~absorbed[-1] & ~self.refreshing):
                    m.next = "CHOOSE"
                    with m.If(looked):
                        m.next = "LOOK"
            with m.State("CHOOSE"):
                chosen = Signal(c.squeue_bits)
                m.d.comb += chosen.eq(Mux(roots[pool].excess != 0, roots[pool].squeue, requester[pool]))
                m.d.sync += [squeue.eq(chosen), first.eq(chosen), old_list.eq(chosen == list_squeue), fresh.eq(0)]
                m.next = "LOOK"
            with m.State("LOOK"):
                # `session`, `closing` and `step` follow `squeue` by three cycles, the answer by four.
                m.d.comb += self.look_valid.eq(~self.look_done)
                with m.If(self.look_done):
                    m.next = "JUDGE"
                    with m.If(looked):
                        m.next = "START"
            with m.State("JUDGE"):
                with m.If(usable):
                    m.next = "TAKE"
                with m.Elif(eligible):
                    m.next = "WATCH"
                with m.Else():
                    m.next = "NEXT"
            with m.State("WATCH"):
                m.d.comb += self.watch.eq(1)
                m.d.sync += [wait.eq(self.SETTLE), looked.eq(1), list_squeue.eq(squeue), list_session.eq(session), fresh.eq(1), old_list.eq(0)]
                m.next = "SETTLE"
            with m.State("START"):
                m.d.comb += self.start.eq(1)
                m.d.sync += [looked.eq(0), outlived.eq(0)]
                m.next = "SWEEPING"
            with m.State("SWEEPING"):
                with m.If(~self.sweep_busy):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.sync += [claim_page.eq(self.best.page), claim_step.eq(self.best.last_step), claim_slot.eq(self.free_slot)]
                with m.If(~self.best_valid):
                    # A list of an earlier sweep is used up: the same queue may have more.
                    m.d.sync += old_list.eq(0)
                    m.next = "NEXT"
                    with m.If(~fresh):
                        m.next = "LOOK"
                with m.Else():
                    m.d.comb += self.take.eq(1)
                    with m.If(~self.working):
                        m.next = "CLAIM"
            with m.State("CLAIM"):
                m.d.comb += self.o_op.valid.eq(1)
                with m.If(self.o_op.ready):
                    m.next = "CLAIMING"
            with m.State("CLAIMING"):
                with m.If(self.i_result_valid & (r.op.kind == Op.CLAIM)):
                    m.d.sync += [Assert(r.op.squeue == squeue), Assert(r.op.page == claim_page)]
                    m.d.sync += wait.eq(self.SETTLE)
                    m.next = "TAKE"
                    with m.If(r.outcome == Outcome.DONE):
                        m.d.sync += reported.bit_select(pool, 1).eq(0)
                        m.next = "FOUND"
            with m.State("FOUND"):
                # Until `under_way` has reached `need`.
                m.d.sync += wait.eq(wait - 1)
                with m.If(wait == 0):
                    m.next = "IDLE"
            with m.State("NEXT"):
                following = Signal(c.squeue_bits)
                m.d.comb += following.eq(Mux(squeue == c.squeues - 1, 0, squeue + 1))
                m.d.sync += [squeue.eq(following), fresh.eq(0), old_list.eq(0), wait.eq(self.SETTLE)]
                m.next = "LOOK"
                with m.If(following == first):
                    m.d.comb += self.o_event_valid.eq(~reported.bit_select(pool, 1))
                    m.d.sync += reported.bit_select(pool, 1).eq(1)
                    with m.If(~appeared & ~wakes):
                        m.d.sync += resting.bit_select(pool, 1).eq(1)
                    m.next = "FOUND"
        m.d.comb += [self.o_event.code.eq(Event.NO_VICTIM), self.o_event.squeue.eq(first), self.o_event.argument.eq(pool)]
        return m
