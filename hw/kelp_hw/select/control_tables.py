# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a choice teaches the tables of its queue, beside SelectControl's states
(docs/select_tables.md): pages that it takes or wants are marked as they come, then the queue's
turn is over; of a guess their masses, then the tables say what is fetched."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Mux, Signal
from amaranth.lib import data

from kelp_spec.metadata import SCORE_BITS, STEP_BITS, Op, Outcome

from ..lib.skid import Skid

__all__ = ["learn"]


def learn(control, m, s, session):
    """Between the states of `choose`: it asks that the engine's item be marked (`marks`) where that
    is `ready`; that a turn be over (`ends`) or a guess be told (`guesses`) until it is `done`; and
    takes what is to be fetched (`early`, until there is `none` any more) with `takes`, while of the
    credit that there was something is `left`. What is offered stays; what was taken for a session
    that has ended is erased, as by an OPEN."""
    c, tables, engine = control.config, control.parts.tables, control.parts.engine
    of, page = engine.chosen, engine.o.p
    names = ("marks", "ready", "ends", "guesses", "done", "early", "none", "takes", "idle")
    t = SimpleNamespace(**{name: Signal(name=f"tables_{name}") for name in names})
    squeue = session * c.queues + of.queue
    t.left = Signal(tables.credit[0].shape())
    with m.If(t.guesses & t.done):
        m.d.sync += t.left.eq(s.of_session([*tables.credit], session))
    step = Signal(STEP_BITS)
    with m.If(~t.ends):
        m.d.sync += step.eq(s.of_session(s.steps, session))
    # `ready` of the tables comes and goes; what is offered here stays.
    m.submodules.marks = marks = Skid(
        data.StructLayout(
            {
                "session": c.session_bits,
                "squeue": c.squeue_bits,
                "page": c.page_bits,
                "mass": SCORE_BITS,
                "absent": 1,
                "guess": 1,
            }
        )
    )
    mark, lost = marks.o.p, s.ended(marks.o.p.session)
    erases = _erase(control, m, tables)
    stands, drops, takes = Signal(), Signal(), Signal()  # it was offered before, so it stays
    m.d.comb += [
        drops.eq(lost & ~stands),
        takes.eq(Mux(mark.guess, tables.i_mass.ready, tables.i_read.ready)),
    ]
    stood = Signal()
    m.d.sync += [
        stands.eq(marks.o.valid & ~drops & ~takes),
        stood.eq((tables.i_read.valid | tables.i_mass.valid) & ~takes),
        Assert(~stood | tables.i_read.valid | tables.i_mass.valid, "a mark was taken back"),
    ]
    with m.If(marks.o.valid & takes & lost & stands):
        m.d.sync += erases.bit_select(mark.session, 1).eq(1)
    with m.If((t.ends | t.guesses) & t.done & s.ended(session)):
        m.d.sync += erases.bit_select(session, 1).eq(1)
    m.d.comb += [
        t.ready.eq(marks.i.ready),
        t.idle.eq(marks.idle & ~erases.any()),
        marks.i.valid.eq(t.marks & marks.i.ready),
        marks.i.p.session.eq(session),
        marks.i.p.squeue.eq(squeue),
        marks.i.p.page.eq(page.id),
        marks.i.p.mass.eq(Mux((page.mass >> SCORE_BITS).any(), ~0, page.mass)),
        marks.i.p.absent.eq(page.wanted),
        marks.i.p.guess.eq(of.speculative),
        *(tables.i_read.p[name].eq(mark[name]) for name in ("squeue", "page")),
        *(tables.i_mass.p[name].eq(mark[name]) for name in ("squeue", "page", "mass", "absent")),
        tables.i_read.valid.eq(marks.o.valid & ~mark.guess & ~drops),
        tables.i_mass.valid.eq(marks.o.valid & mark.guess & ~drops),
        marks.o.ready.eq(drops | takes),
        *(walk.p.squeue.eq(squeue) for walk in (tables.i_turn, tables.i_guess)),
        *(walk.p.session.eq(session) for walk in (tables.i_turn, tables.i_guess)),
        *(walk.p.newest.eq(of.newest) for walk in (tables.i_turn, tables.i_guess)),
        tables.i_turn.p.step.eq(step),
        tables.i_turn.valid.eq(t.ends),
        tables.i_guess.valid.eq(t.guesses),
        t.done.eq(Mux(t.ends, tables.i_turn.ready, tables.i_guess.ready)),
        t.early.eq(tables.o_early.valid & ~tables.o_early.p.none),
        t.none.eq(tables.o_early.valid & tables.o_early.p.none),
        tables.o_early.ready.eq(t.takes),
    ]
    return t


def _erase(control, m, tables):
    """Sessions to be erased from the tables, beside those that are opened: one in each cycle in
    which none is."""
    c, result = control.config, control.i_result
    erases, opened = Signal(c.sessions), Signal()
    m.d.comb += [
        opened.eq(
            result.valid & (result.p.op.kind == Op.OPEN) & (result.p.outcome == Outcome.DONE)
        ),
        tables.i_open.valid.eq(opened | erases.any()),
        tables.i_open.p.eq(result.p.op.session),
    ]
    with m.If(~opened):
        for k in reversed(range(c.sessions)):
            with m.If(erases[k]):
                m.d.comb += tables.i_open.p.eq(k)
        m.d.sync += erases.eq(erases & (erases - 1))
    return erases
