# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""States of SelectControl in which the engine chooses, and each page is held as it comes."""

from __future__ import annotations

from amaranth.hdl import Cat, Mux, Signal

from kelp_spec.metadata import Op, Outcome
from kelp_spec.select import HOLD_MOST, SlotState

__all__ = ["choose"]


def feed(control, m, s, choosing):
    """The engine's request, and what it asks for: summaries from the store, keys from the
    reader. Pages that are not there are counted, and perhaps asked of the prefetcher."""
    p, bell = control.parts, s.bell
    engine, keys, request = p.engine, p.reader.o, p.engine.i.p
    absent = Signal()
    #: the engine has the request
    taken = Signal()
    #: the page before is not asked for yet
    stalls = control.o_fetch.valid
    most = (1 << len(request.target)) - 1
    m.d.comb += [
        request.scale.m.eq(bell.m),
        request.scale.sh.eq(bell.sh),
        engine.i.valid.eq(choosing & ~taken),
        request.newest.eq(bell.newest),
        request.most.eq(bell.most),
        request.target.eq(Mux(bell.target > most, most, bell.target)),
        p.store.i.valid.eq(engine.o_summary.valid),
        p.store.i.p.eq(engine.o_summary.p),
        engine.o_summary.ready.eq(p.store.i.ready),
        engine.i_summary.valid.eq(p.store.o.valid),
        engine.i_summary.p.eq(p.store.o.p),
        p.store.o.ready.eq(engine.i_summary.ready),
        engine.i_key.valid.eq(keys.valid & ~s.building & ~stalls),
        engine.i_key.p.payload.eq(keys.p.payload),
        engine.i_key.p.scale.eq(keys.p.scale),
        engine.i_key.p.line.eq(keys.p.at.line),
        engine.i_key.p.last.eq(keys.p.at.token_end),
        engine.i_key.p.id.eq(Cat(keys.p.at.page, keys.p.at.page_end)),
        keys.ready.eq(Mux(s.building, s.build_ready, engine.i_key.ready & ~stalls)),
    ]
    with m.If(~s.building):
        m.d.comb += [
            s.asks.page.eq(engine.o_key.p),
            s.asks.count.eq(Mux(engine.o_key.p == bell.newest, s.newest_lines, s.used_lines)),
            p.reader.i.valid.eq(engine.o_key.valid),
            engine.o_key.ready.eq(p.reader.i.ready),
        ]
    m.d.sync += taken.eq(choosing & (taken | engine.i.ready))
    with m.If(control.o_fetch.ready):
        m.d.sync += control.o_fetch.valid.eq(0)
    with m.If(keys.valid & keys.ready & ~s.building):
        m.d.sync += absent.eq((absent | ~keys.p.there) & ~keys.p.at.page_end)
        with m.If(keys.p.at.page_end & (absent | ~keys.p.there)):
            m.d.sync += [
                s.absent.eq(s.absent + 1),
                control.o_fetch.valid.eq(bell.fetch | bell.speculative),
                control.o_fetch.p.squeue.eq(s.squeue),
                control.o_fetch.p.page.eq(keys.p.at.page),
            ]


def choose(control, m, s):
    """The engine's choice, each page held as it comes."""
    c, p, bell = control.config, control.parts, s.bell
    engine, gather, chosen = p.engine, p.gather, p.engine.o.p
    choosing, answered = Signal(), Signal()
    state = Signal(SlotState)
    result = control.i_result
    feed(control, m, s, choosing)
    m.d.comb += [
        s.page.eq(chosen.id),
        answered.eq(result.valid & (result.p.op.kind == Op.HOLD)),
        state.eq(
            Mux(
                result.p.outcome == Outcome.DONE,
                SlotState.HELD,
                Mux(result.p.outcome == Outcome.VOID, SlotState.ABSENT, SlotState.NO_ROOM),
            )
        ),
        s.held_now.eq(state == SlotState.HELD),
    ]
    yield
    with m.State("CHOOSE"):
        m.d.comb += choosing.eq(1)
        m.d.sync += s.slot.eq(s.count)
        with m.If(engine.o.valid):
            m.next = "HOLD"
            with m.If(chosen.none):
                m.d.comb += engine.o.ready.eq(1)
                m.next = "RECORD"
            with m.If(bell.speculative):
                m.d.comb += engine.o.ready.eq(1)
                m.next = "CHOOSE"
                with m.If(chosen.none):
                    m.next = "ANSWER"
    with m.State("HOLD"):
        m.d.comb += [choosing.eq(1), control.o_op.valid.eq(1)]
        with m.If(control.o_op.ready):
            m.next = "DECIDED"
    with m.State("DECIDED"):
        m.d.comb += choosing.eq(1)
        with m.If(answered):
            m.d.comb += [s.writes_slot.eq(1), engine.o.ready.eq(1)]
            m.d.sync += s.count.eq(s.count + 1)
            with m.Switch(s.count):
                for k in range(c.select):
                    with m.Case(k):
                        m.d.sync += [
                            s.chosen[k].page.eq(chosen.id),
                            s.chosen[k].mass.eq(chosen.mass),
                            s.chosen[k].state.eq(state),
                        ]
            m.next = "CHOOSE"
    with m.State("RECORD"):
        m.d.comb += [
            gather.write_queue.eq(1),
            gather.new_queue.count.eq(s.count),
            gather.new_queue.generation.eq(s.generation),
        ]
        m.d.sync += [s.slot.eq(0), s.live.eq(s.live | (1 << s.session))]
        for k in range(c.sessions):
            with m.If(s.session == k):
                lower = ~s.own | (s.queue < s.low[k])
                higher = ~s.own | (s.queue > s.high[k])
                m.d.sync += [
                    s.layer[k].eq(bell.layer),
                    s.since[k].eq(control.now),
                    s.hold[k].eq(
                        Mux((bell.hold == 0) | (bell.hold > HOLD_MOST), HOLD_MOST, bell.hold)
                    ),
                    s.low[k].eq(Mux(lower, s.queue, s.low[k])),
                    s.high[k].eq(Mux(higher, s.queue, s.high[k])),
                ]
        m.next = "ANSWER"
