# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SelectControl beside its own states: what the engine asks for, the pages that it chooses held one
after another, and the answers, while the next SELECT is prepared."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Mux, Signal
from amaranth.lib import data

from kelp_spec.metadata import Op, Outcome
from kelp_spec.policy2 import COST
from kelp_spec.select import (
    ANSWER_FIELDS,
    CHOSEN_FIELDS,
    HOLD_MOST,
    Refusal,
    SelectStatus,
    SlotState,
)

from .control_tables import learn

__all__ = ["choose", "feed"]

_CHOSEN = data.StructLayout(dict(CHOSEN_FIELDS))


def feed(control, m, s):
    """The engine's request, when the SELECT is ready for it, and what it asks for: summaries from
    the store, keys from the reader. Pages that are not there are counted, and perhaps asked of the
    prefetcher."""
    p, bell = control.parts, s.bell
    engine, keys, request = p.engine, p.reader.o, p.engine.i.p
    absent = Signal()
    asks, of = (scored(m, engine, bank) for bank in (engine.o_key.p.bank, keys.p.at.bank))

    estimates = control.config.select_estimates

    def session(context):
        return context.block >> p.window.map.group_bits

    def squeue(context):
        return session(context) * control.config.queues + context.queue

    #: a line of the page was not there
    gone = absent | ~keys.p.there
    #: keys wait for the SELECT's slots
    waits = s.walks & (engine.o_key.p.bank == s.bank)
    #: the page before is not asked for yet; with estimates no key asks for its page
    stalls = Const(0) if estimates else control.o_fetch.valid
    most = (1 << len(request.target)) - 1
    own = request.context
    m.d.comb += [
        request.scale.m.eq(bell.m),
        request.scale.sh.eq(bell.sh),
        request.newest.eq(bell.newest),
        request.page_lines.eq(s.used_lines),
        request.most.eq(bell.most),
        request.target.eq(Mux(bell.target > most, most, bell.target)),
        *(own[name].eq(bell[name]) for name in ("sequence", "queue", "layer", "newest")),
        *(own[name].eq(bell[name]) for name in ("fetch", "speculative")),
        own.hold.eq(_time(bell.hold)),
        own.block.eq(s.block),
        own.token_lines.eq(bell.lines - 1),
        own.newest_lines.eq(s.newest_lines),
        own.used_lines.eq(s.used_lines),
        own.newest_tokens.eq(bell.tokens),
        own.used_tokens.eq(s.used_tokens),
        own.host_type.eq(s.host_type),
        own.generation.eq(s.generation),
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
        engine.i_key.p.id.eq(Cat(keys.p.at.page, keys.p.at.page_end, keys.p.at.bank, gone)),
        keys.ready.eq(Mux(s.building, s.build_ready, engine.i_key.ready & ~stalls)),
    ]
    with m.If(~s.building):
        page = engine.o_key.p.page
        m.d.comb += [
            p.reader.session.eq(session(asks)),
            p.reader.squeue.eq(squeue(asks)),
            p.reader.host_type.eq(asks.host_type),
            p.reader.token_lines.eq(asks.token_lines),
            p.reader.bank.eq(engine.o_key.p.bank),
            s.asks.page.eq(page),
            s.asks.count.eq(Mux(page == asks.newest, asks.newest_lines, asks.used_lines)),
            s.asks.near.eq(engine.o_key.p.near),
            p.reader.i.valid.eq(engine.o_key.valid & ~waits),
            engine.o_key.ready.eq(p.reader.i.ready & ~waits),
        ]
    with m.If(control.o_fetch.ready):
        m.d.sync += control.o_fetch.valid.eq(0)
    if estimates:
        _estimate(control, m, s, squeue)
    _count_absent(control, m, s, absent, gone, of, squeue)
    yield
    with m.State("NAME"):
        m.d.comb += engine.i.valid.eq(1)
        with m.If(engine.i.ready):
            m.next = "NAMED"
    with m.State("NAMED"):
        with m.If(~s.walks):
            m.d.sync += [s.bank.eq(~s.bank), s.block.eq(s.block + 1)]
            m.next = "SCAN"


def _count_absent(control, m, s, absent, gone, of, squeue):
    """Of each bank, how many pages were not there; without estimates such a page is asked for.
    `absent`, `gone`: a line of the page was not there before this one, or with it; `of`: its
    SELECT."""
    estimates = control.config.select_estimates
    engine, keys = control.parts.engine, control.parts.reader.o
    found = [Signal(16, name=f"found_{b}") for b in range(2)]
    scores = keys.valid & keys.ready & ~s.building
    wants_ready = ~control.o_fetch.valid
    m.d.comb += s.wants_ready.eq(wants_ready if estimates else wants_ready & ~scores)
    with m.If(scores):
        m.d.sync += absent.eq(gone & ~keys.p.at.page_end)
        with m.If(keys.p.at.page_end & gone):
            if not estimates:
                m.d.sync += [
                    control.o_fetch.valid.eq(of.speculative | of.fetch),
                    control.o_fetch.p.squeue.eq(squeue(of)),
                    control.o_fetch.p.page.eq(keys.p.at.page),
                ]
            for b in range(2):
                with m.If(keys.p.at.bank == b):
                    m.d.sync += found[b].eq(found[b] + 1)
    for b in range(2):
        with m.If(engine.leaves & (engine.left == b)):
            m.d.sync += [s.absent.eq(found[b]), found[b].eq(0)]


def _estimate(control, m, s, squeue):
    """For how much a SELECT waits, and pages that are wanted to the prefetcher."""
    engine, to = control.parts.engine, control.o_fetch
    own, bell = engine.i.p.context, s.bell
    m.d.comb += [
        *(own[name].eq(bell[name]) for name in ("waits", "wait_above", "fetch_from")),
        *((own.tables.eq(bell.tables),) if control.config.select_tables else ()),
        own.patience.eq(_time(bell.patience)),
        own.taken.eq(s.taken),
    ]
    wants, page = s.wants, engine.o.p.id
    if control.config.select_tables:
        wants, page = s.wants | s.early, Mux(s.early, control.parts.tables.o_early.p.page, page)
    with m.If(wants & s.wants_ready):
        m.d.sync += [
            to.valid.eq(1),
            to.p.squeue.eq(squeue(engine.chosen)),
            to.p.page.eq(page),
        ]


def _time(log):
    """log2 of a number of cycles, as a doorbell says it."""
    return Mux((log == 0) | (log > HOLD_MOST), HOLD_MOST, log)


def scored(m, engine, bank):
    """What the SELECT in stage two is of whose keys have that bank."""
    found = Signal(engine.chosen.shape())
    m.d.comb += found.eq(Mux(bank, engine.scored[1].as_value(), engine.scored[0].as_value()))
    return found


def choose(control, m, s):
    """The choice: its pages are held, one behind the other, and noted as M3 decides, and those
    that it wants named; then the answer, or that to a SELECT that chooses nothing."""
    c, p = control.config, control.parts
    engine, gather, window, of, page = p.engine, p.gather, p.window, p.engine.chosen, p.engine.o.p
    session = of.block >> window.map.group_bits
    count = range(c.select + 1)
    held, decided = Signal(count), Signal(count)  # pages that go to M3, and those that came back
    pages = Signal(data.ArrayLayout(_CHOSEN, 8 * (window.map.answer_lines - 1)))
    named, entries = Signal(count) if c.select_estimates else None, list(pages)[: c.select]
    lists = [held, decided, pages, *([] if named is None else [named])]
    result, op, told = control.i_result, s.hold.p, Signal()
    answered, records, state = Signal(), Signal(), Signal(SlotState)
    m.d.comb += [
        op.kind.eq(Op.HOLD),
        op.session.eq(session),
        op.squeue.eq(session * c.queues + of.queue),
        op.page.eq(page.id),
        answered.eq(result.valid & (result.p.op.kind == Op.HOLD)),
        state.eq(
            Mux(
                result.p.outcome == Outcome.DONE,
                SlotState.HELD,
                Mux(result.p.outcome == Outcome.VOID, SlotState.ABSENT, SlotState.NO_ROOM),
            )
        ),
        s.writes.eq(answered | records),
    ]
    with m.If(s.writes):
        m.d.comb += [
            gather.squeue.eq(Cat(of.queue, session)),
            gather.slot.eq(decided),
            gather.new_slot.page.eq(result.p.op.page),
            gather.new_slot.held.eq(state == SlotState.HELD),
            gather.write_slot.eq(answered),
            gather.new_queue.count.eq(held),
            gather.new_queue.generation.eq(of.generation),
            gather.write_queue.eq(records),
        ]
    with m.If(answered):
        m.d.sync += decided.eq(decided + 1)
        with m.Switch(decided):
            for k, entry in enumerate(entries):
                with m.Case(k):
                    m.d.sync += entry.state.eq(state)
    written = answer(control, m, s, pages, held, named, told)
    tables = learn(control, m, s, session) if c.select_tables else None
    learns = 1 if tables is None else tables.ready
    with m.FSM(name="choice") as fsm:
        with m.State("HOLD"):
            with m.If(~engine.o.valid):
                m.d.sync += told.eq(s.tells)
                with m.If(s.tells):
                    m.next = "ANSWER"
            with m.Elif(page.none):
                with m.If(of.speculative):
                    m.next = "ANSWER" if tables is None else "GUESS"
                with m.Elif(decided == held):
                    m.next = "RECORD"
            if c.select_estimates:
                with m.Elif(page.wanted):
                    _want(m, s, engine, tables)
                    _name(m, of, page, engine.o.ready, entries, held, named)
            with m.Elif(of.speculative):
                m.d.comb += engine.o.ready.eq(learns)
                if tables is not None:
                    m.d.comb += tables.marks.eq(1)
            with m.Else():
                m.d.comb += [s.hold.valid.eq(learns), engine.o.ready.eq(s.hold.ready & learns)]
                if tables is not None:
                    m.d.comb += tables.marks.eq(s.hold.ready)
                with m.If(s.hold.ready & learns):
                    m.d.sync += held.eq(held + 1)
                    with m.Switch(held):
                        for k, entry in enumerate(entries):
                            with m.Case(k):
                                m.d.sync += _told(entry, of, page)
        with m.State("RECORD"):
            m.d.comb += records.eq(1)
            record(control, m, s, of, session)
            m.next = "ANSWER" if tables is None else "TURN"
            if c.select_estimates:
                with m.If(s.wait.begins):
                    m.next = "PARK"
        if c.select_estimates:
            with m.State("PARK"):
                m.d.comb += [s.wait.parks.eq(1), engine.o.ready.eq(1)]
                m.d.sync += [each.eq(0) for each in lists]
                m.next = "HOLD"
        if tables is not None:
            _learnt(m, s, tables, of.tables, s.ended(session))
        with m.State("ANSWER"):
            m.d.comb += window.answer_en.eq(~s.ended(window.answer_block >> window.map.group_bits))
            m.d.sync += written.eq(written + 1)
            with m.If(written == window.map.answer_lines - 1):
                m.d.comb += [s.told.eq(told), engine.o.ready.eq(~told)]
                m.d.sync += [each.eq(0) for each in (written, *lists)]
                m.next = "HOLD"
    quiet = 1 if tables is None else tables.idle
    m.d.comb += s.alone.eq(~engine.scores.any() & ~engine.chooses & fsm.ongoing("HOLD") & quiet)


def _told(chosen, of, page):
    """What the answer to a SELECT says of a page as it is chosen, or wanted."""
    tokens = Mux(page.id == of.newest, of.newest_tokens, of.used_tokens)
    return [chosen.page.eq(page.id), chosen.tokens.eq(tokens), chosen.mass.eq(page.mass)]


def _want(m, s, engine, tables):
    """A page is wanted: it is fetched, or not, and learnt of."""
    of, page, learns = engine.chosen, engine.o.p, 1 if tables is None else tables.ready
    weighs = page.always | (page.mass >= of.fetch_from)
    guess = of.speculative if tables is None else of.speculative & ~of.tables
    fetches = ((of.fetch & ~of.speculative | guess) & weighs) | s.wait.above
    goes = ~fetches | s.wants_ready
    m.d.comb += [
        s.wants.eq(fetches & learns),
        engine.o.ready.eq(goes & learns),
        s.wait.wants.eq(engine.o.ready),
    ]
    if tables is not None:
        m.d.comb += tables.marks.eq(goes)


def _name(m, of, page, passes, entries, held, named):
    """A page that is wanted takes the last place that no other wanted one has. It is free: those
    chosen so far are better than it, and with it no more than places. A worse one that is chosen
    later may take its place, so in the end there are those wanted first. The first and the newest
    page are chosen anyhow, but by a guess."""
    last = len(entries) - 1
    with m.If(passes & (of.speculative | ~page.always)):
        m.d.sync += [
            named.eq(named + 1),
            Assert(held + named <= last, "a page that is wanted has no place"),
        ]
        with m.Switch(named):
            for k, entry in enumerate(entries):
                with m.Case(last - k):
                    m.d.sync += [*_told(entry, of, page), entry.state.eq(SlotState.WANTED)]


def _learnt(m, s, tables, fetches, ended):
    """A turn is over; or a guess is told, and what the tables say of it perhaps fetched."""
    for state, asks, then in (("TURN", tables.ends, "ANSWER"), ("GUESS", tables.guesses, "EARLY")):
        begun = Signal(name=f"{state.lower()}_begun")  # what is offered stays
        with m.State(state):
            m.d.comb += asks.eq(begun)
            m.d.sync += begun.eq(tables.idle & ~ended)
            with m.If(begun):
                m.d.sync += begun.eq(~tables.done)
                with m.If(tables.done):
                    m.next = then
            with m.Elif(tables.idle & ended):
                m.next = "ANSWER"
    with m.State("EARLY"):
        affords = fetches & (tables.left > 0)
        m.d.comb += [
            s.early.eq(tables.early & affords),
            tables.takes.eq(tables.none | ~affords | s.wants_ready),
        ]
        with m.If(s.early & s.wants_ready):
            m.d.sync += tables.left.eq(tables.left - COST)
        with m.If(tables.none):
            m.next = "ANSWER"


def record(control, m, s, of, session):
    """The session has slots now, of a layer, between two queues, from now on and for so long."""
    own = (s.live >> session)[0]
    low, high = (s.of_session(each, session) for each in (s.low, s.high))
    m.d.comb += s.lives.eq(1 << session)
    for k in range(control.config.sessions):
        with m.If(session == k):
            m.d.sync += [
                s.layer[k].eq(of.layer),
                s.since[k].eq(control.now),
                s.hold_time[k].eq(of.hold),
                s.low[k].eq(Mux(~own | (of.queue < low), of.queue, low)),
                s.high[k].eq(Mux(~own | (of.queue > high), of.queue, high)),
            ]


def answer(control, m, s, pages, held, named, told):
    """The answer's lines, the first one last: how many are written. `told`: of the SELECT at the
    door, which chooses nothing, nor wants."""
    p, of = control.parts, control.parts.engine.chosen
    window, lines = p.window, p.window.map.answer_lines
    fields = dict(ANSWER_FIELDS)
    if named is None:
        del fields["wanted"]
    written, header = Signal(range(lines)), Signal(data.StructLayout(fields))
    refused = told & (s.refusal != Refusal.NONE)
    m.d.comb += [
        header.sequence.eq(Mux(told, s.bell.sequence, of.sequence)),
        header.status.eq(Mux(refused, SelectStatus.REFUSED, SelectStatus.DONE)),
        header.refusal.eq(Mux(told, s.refusal, Refusal.NONE)),
        header.count.eq(held),
        header.absent.eq(Mux(told, 0, s.absent)),
        header.generation.eq(Mux(held == 0, 0, of.generation)),
        header.missing.eq(
            Mux(told, 0, p.engine.o.p.missing) if control.config.select_estimates else 0
        ),
        *(() if named is None else (header.wanted.eq(named),)),
        window.answer_block.eq(Mux(told, s.block, of.block)),
        window.answer_line.eq(lines - 1 - written),
    ]
    with m.If(window.answer_line == 0):
        m.d.comb += window.answer.eq(header)
    for k in range(1, lines):
        with m.If(window.answer_line == k):
            m.d.comb += window.answer.eq(Cat(pages[8 * (k - 1) + n] for n in range(8)))
    return written
