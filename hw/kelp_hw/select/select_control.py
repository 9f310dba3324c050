# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One SELECT after another: its doorbell checked, its queries loaded, slots given back, pages
summarised, the choice made and held, the answer written (docs/select.md). One SELECT in about as
many cycles as its parts take."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.enum import Enum
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Event, Op, Outcome
from kelp_spec.select import (
    ANSWER_FIELDS,
    CHOSEN_FIELDS,
    HOLD_MOST,
    Refusal,
    SelectStatus,
    SlotState,
)

from ..layouts import TIME_BITS, Layouts
from .block_form import unpack
from .gather_window import GatherWindow
from .page_reader import PageReader
from .select_engine import SelectEngine
from .select_window import SelectWindow, bell_layout
from .summary_build import SummaryBuild
from .summary_store import SummaryStore

__all__ = ["SelectControl", "SelectParts", "engine_of"]


class _Then(Enum):
    """What follows when slots are given back."""

    SCAN = 0
    ANSWER = 1
    SUMMARISE = 2


_CHOSEN = data.StructLayout(dict(CHOSEN_FIELDS))
_ANSWER = data.StructLayout(dict(ANSWER_FIELDS))


def engine_of(*, config: Config) -> SelectEngine:
    """A configuration's engine."""
    return SelectEngine(
        heads=config.select_heads,
        lines=config.select_lines,
        pages=config.pages,
        quota=config.select_quota,
        most=config.select - 2,
    )


class SelectParts:
    """What does the work: the `window` of the SELECT region, the `gather` window, the `store` of
    summaries, the `reader` of pages, and the `engine`."""

    def __init__(self, config: Config):
        c = config
        self.window, self.gather = SelectWindow(config=c), GatherWindow(config=c)
        self.store, self.reader = SummaryStore(config=c), PageReader(config=c)
        self.engine = engine_of(config=c)


class SelectControl(wiring.Component):
    """Serves the doorbells of the window, block after block, with the engine, and keeps the slots
    of the GATHER window. It alone says in which order the parts work.

    A SELECT that is refused changes nothing but its answer, and is an event. Slots are given back
    when a SELECT of their session is of another layer, or of the same queue, or says so; when the
    time is over that the last SELECT gave them; and when their session ends.

    Latency: docs/select.md, "Passes and rates". One SELECT at a time. Errors: those of
    `kelp_spec.select.Refusal`.

    Parameters
    ----------
    config : Config
    parts : SelectParts
        They are submodules of its caller.

    Members
    -------
    now : in
    sessions : in
    i_result : in, always-ready stream of result
    ended : in
        Bit s: session s has begun to close, or was opened.
    o_op : out, stream of op
        HOLD and UNHOLD.
    o_fetch : out, stream of pages
        Those that were scored and not resident, where the doorbell says `fetch`.
    o_event : out, always-ready stream of event
    idle : out
        No doorbell waits, and nothing is under way.
    """

    def __init__(self, *, config: Config, parts: SelectParts | None = None):
        self.config = c = config
        self.parts = parts or SelectParts(config)
        layouts = Layouts(c)
        super().__init__(
            {
                "now": In(TIME_BITS),
                "sessions": In(data.ArrayLayout(layouts.session, c.sessions)),
                "i_result": In(stream.Signature(layouts.result, always_ready=True)),
                "ended": In(c.sessions),
                "o_op": Out(stream.Signature(layouts.op)),
                "o_fetch": Out(stream.Signature(layouts.page)),
                "o_event": Out(stream.Signature(layouts.event, always_ready=True)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, p = self.config, self.parts
        s = SimpleNamespace()
        s.block = Signal(p.window.block_bits)
        s.session = Signal(c.session_bits)
        s.bell = Signal(bell_layout())
        s.held = Signal(Layouts(c).session)  # the session's registers, as they are
        s.squeue = Signal(c.squeue_bits)
        s.refusal = Signal(Refusal)
        s.gone = Signal(c.sessions)
        #: the session ended under way: what is found out goes to nobody
        s.void = Signal()
        s.count = Signal(range(c.select + 1))
        s.absent = Signal(16)
        s.generation = Signal(c.generation_bits)
        s.chosen = Signal(data.ArrayLayout(_CHOSEN, 8 * (p.window.map.answer_lines - 1)))
        s.host_type = Signal()
        s.used_lines = Signal(c.half_line_bits + 1)
        s.asks = p.reader.i.p
        m.d.comb += [
            s.session.eq(s.block >> p.window.map.group_bits),
            p.window.block.eq(s.block),
            s.squeue.eq(s.session * c.queues + s.bell.queue),
            p.store.squeue.eq(s.squeue),
            p.store.token_lines.eq(s.bell.lines - 1),
            p.reader.session.eq(s.session),
            p.reader.squeue.eq(s.squeue),
            p.reader.host_type.eq(s.host_type),
            p.reader.token_lines.eq(s.bell.lines - 1),
        ]
        for k in range(c.sessions):
            with m.If(s.session == k):
                m.d.comb += s.held.eq(self.sessions[k])
        m.d.sync += s.gone.eq(s.gone | self.ended)
        with m.If((self.ended >> s.session)[0]):
            m.d.sync += s.void.eq(1)
        # Each part builds what its states stand on, then, when it goes on, the states.
        parts = [
            part(m, s)
            for part in (
                self._scan,
                self._check,
                self._query,
                self._give_back,
                self._summarise,
                self._choose,
                self._answer,
            )
        ]
        for part in parts:
            next(part)
        with m.FSM() as fsm:
            for part in parts:
                next(part, None)
        m.d.comb += self.idle.eq(
            fsm.ongoing("SCAN")
            & ~p.window.pending.any()
            & ~s.gone.any()
            & ~self.ended.any()
            & ~self.o_fetch.valid
        )
        return m

    def _scan(self, m, s):
        """Whose turn it is: a session that has ended, or whose time is over, or a doorbell."""
        c, p = self.config, self.parts
        # Of each session's slots: whether there are any, of which layer, since when and for how
        # long; and between which queues they lie.
        s.live = Signal(c.sessions)
        s.layer = [Signal(16, name=f"layer_{k}") for k in range(c.sessions)]
        s.since = [Signal(TIME_BITS, name=f"since_{k}") for k in range(c.sessions)]
        s.hold = [Signal(range(HOLD_MOST + 1), name=f"hold_{k}") for k in range(c.sessions)]
        s.low = [Signal(c.queue_bits, name=f"low_{k}") for k in range(c.sessions)]
        s.high = [Signal(c.queue_bits, name=f"high_{k}") for k in range(c.sessions)]

        def of_session(values):
            found = Signal.like(values[0])
            for k in range(c.sessions):
                with m.If(s.session == k):
                    m.d.comb += found.eq(values[k])
            return found

        s.of_session = of_session
        since, hold = of_session(s.since), of_session(s.hold)
        s.own = Signal()  # the session has slots
        s.own_layer, s.own_low, s.own_high = map(of_session, (s.layer, s.low, s.high))
        age, over = Signal(TIME_BITS), Signal()
        m.d.comb += [
            s.own.eq((s.live >> s.session)[0]),
            age.eq(self.now - since),
            over.eq(s.own & (age >> hold).any()),
        ]
        #: queues whose slots are given back, and whether that is all of a session's
        s.queue, s.last_queue, s.all = Signal(c.queue_bits), Signal(c.queue_bits), Signal()
        s.then = Signal(_Then)  # what goes on behind it
        gone = (s.gone >> s.session)[0]
        yield
        with m.State("SCAN"):
            m.d.sync += [s.void.eq(0), s.refusal.eq(Refusal.NONE), s.count.eq(0), s.absent.eq(0)]
            m.d.sync += [s.chosen.eq(0), s.generation.eq(0)]
            with m.If(~p.store.ready | ~p.gather.ready):
                pass
            with m.Elif(gone | over):
                m.d.sync += [
                    s.gone.eq((s.gone & ~(1 << s.session)) | self.ended),
                    s.queue.eq(s.own_low),
                    s.last_queue.eq(s.own_high),
                    s.all.eq(1),
                    s.then.eq(_Then.SCAN),
                ]
                with m.If(s.own):
                    m.next = "WALK"
            with m.Elif((p.window.pending >> s.block)[0]):
                m.d.comb += p.window.take.eq(1)
                m.next = "BELL"
            with m.Else():
                m.d.sync += s.block.eq(s.block + 1)

    def _check(self, m, s):
        """The doorbell's fields, and whether a token's lines divide a page's."""
        c, p, bell, held = self.config, self.parts, s.bell, s.held
        lines = Signal(c.half_line_bits + 2)
        newest_lines = Signal(bell.tokens.shape().width + 6)
        s.newest_lines = Signal(c.half_line_bits + 1)
        m.d.comb += [newest_lines.eq(bell.tokens * bell.lines[:6]), s.newest_lines.eq(newest_lines)]
        yield
        with m.State("BELL"):
            m.d.sync += [bell.eq(p.window.bell), lines.eq(0), s.used_lines.eq(held.used_lines)]
            m.d.sync += s.host_type.eq(held.host_type)
            m.next = "CHECK"
        with m.State("CHECK"):
            m.next = "REFUSE"
            with m.If(bell.broken):
                m.d.sync += s.refusal.eq(Refusal.BELL)
            with m.Elif(bell.release):
                m.d.sync += [
                    s.queue.eq(s.own_low),
                    s.last_queue.eq(s.own_high),
                    s.all.eq(1),
                    s.then.eq(_Then.ANSWER),
                ]
                m.next = "ANSWER"
                with m.If(s.own):
                    m.next = "WALK"
            with m.Elif(bell.queue >= held.used_queues):
                m.d.sync += s.refusal.eq(Refusal.QUEUE)
            with m.Elif(bell.newest >= held.used_pages):
                m.d.sync += s.refusal.eq(Refusal.PAGE)
            with m.Elif((bell.lines == 0) | (bell.lines > c.select_lines)):
                m.d.sync += s.refusal.eq(Refusal.LINES)
            with m.Elif(lines < s.used_lines):
                m.d.sync += lines.eq(lines + bell.lines)
                m.next = "CHECK"
            with m.Elif(lines != s.used_lines):
                m.d.sync += s.refusal.eq(Refusal.LINES)
            with m.Elif((newest_lines == 0) | (newest_lines > s.used_lines)):
                m.d.sync += s.refusal.eq(Refusal.TOKENS)
            with m.Elif(bell.most > c.select - 2):
                m.d.sync += s.refusal.eq(Refusal.COUNT)
            with m.Else():
                m.next = "QUERY"
        with m.State("REFUSE"):
            m.d.comb += [
                self.o_event.valid.eq(1),
                self.o_event.p.code.eq(Event.SELECT_REFUSED),
                self.o_event.p.ld_id.eq(held.ld_id),
                self.o_event.p.squeue.eq(s.squeue),
                self.o_event.p.page.eq(bell.newest),
                self.o_event.p.argument.eq(s.refusal),
            ]
            m.next = "ANSWER"

    def _query(self, m, s):
        """The group's queries, line by line, into the engine."""
        c, p, bell = self.config, self.parts, s.bell
        head, line, asked = (
            Signal(range(c.select_heads)),
            Signal(range(c.select_lines)),
            Signal(),
        )
        sent, nan = Signal(), Signal()
        last_line = line == bell.lines - 1
        last = last_line & (head == c.select_heads - 1)
        got = p.reader.o_query
        got_last = (got.p.place.head == c.select_heads - 1) & (got.p.place.line == bell.lines - 1)
        stored = Signal(p.engine.layouts.stored_line)
        to = p.engine.i_query
        is_nan = Signal()
        m.d.comb += [
            stored.payload.eq(got.p.payload),
            stored.scale.eq(got.p.scale),
            p.window.query_line.eq(head * c.select_lines + line),
            p.reader.i_query.p.data.eq(p.window.query),
            p.reader.i_query.p.place.head.eq(head),
            p.reader.i_query.p.place.line.eq(line),
            got.ready.eq(1),
            to.valid.eq(got.valid),
            to.p.head.eq(got.p.place.head),
            to.p.line.eq(got.p.place.line),
        ]
        exponent = Signal.like(to.p.exponent)
        unpack(m, stored, to.p.element, exponent, is_nan)
        m.d.comb += to.p.exponent.eq(exponent)
        yield
        with m.State("QUERY"):
            # A row is there in the cycle after it is addressed.
            m.d.sync += asked.eq(1)
            m.d.comb += p.reader.i_query.valid.eq(asked & ~sent)
            with m.If(p.reader.i_query.valid & p.reader.i_query.ready):
                m.d.sync += [asked.eq(0), line.eq(Mux(last_line, 0, line + 1))]
                with m.If(last_line):
                    m.d.sync += head.eq(Mux(last, 0, head + 1))
                with m.If(last):
                    m.d.sync += sent.eq(1)
            with m.If(got.valid):
                m.d.sync += nan.eq(nan | is_nan)
                with m.If(got_last):
                    m.d.sync += [asked.eq(0), sent.eq(0), nan.eq(0)]
                    m.d.sync += [
                        s.then.eq(_Then.SUMMARISE),
                        s.all.eq(s.own & (bell.layer != s.own_layer)),
                        s.queue.eq(bell.queue),
                        s.last_queue.eq(bell.queue),
                    ]
                    with m.If(s.own & (bell.layer != s.own_layer)):
                        m.d.sync += [s.queue.eq(s.own_low), s.last_queue.eq(s.own_high)]
                    m.next = "WALK"
                    with m.If(nan | is_nan):
                        m.d.sync += s.refusal.eq(Refusal.QUERY_NAN)
                        m.next = "REFUSE"

    def _give_back(self, m, s):
        """Slots of the queues from `queue` to `last_queue`."""
        c, p = self.config, self.parts
        gather = p.gather
        s.slot, s.page = Signal(range(c.select + 1)), Signal(c.page_bits)
        s.writes_slot, s.held_now = Signal(), Signal()
        record = gather.found_queue
        op = self.o_op.p
        unholds = Signal()
        m.d.comb += [
            gather.squeue.eq(Cat(s.queue, s.session)),
            gather.slot.eq(s.slot),
            gather.new_slot.page.eq(s.page),
            gather.new_slot.held.eq(s.held_now),
            gather.write_slot.eq(s.writes_slot),
            op.kind.eq(Mux(unholds, Op.UNHOLD, Op.HOLD)),
            op.session.eq(s.session),
            op.squeue.eq(s.session * c.queues + s.queue),
            op.page.eq(Mux(unholds, gather.found_slot.page, s.page)),
        ]
        yield
        with m.State("WALK"):
            m.d.comb += gather.read.eq(1)
            m.next = "SLOT"
        with m.State("SLOT"):
            more = s.slot < record.count
            m.d.comb += [
                unholds.eq(1),
                self.o_op.valid.eq(more & gather.found_slot.held),
                gather.new_queue.generation.eq(record.generation + 1),
            ]
            m.d.sync += s.generation.eq(record.generation)
            with m.If(more):
                with m.If(self.o_op.ready | ~gather.found_slot.held):
                    m.d.sync += s.slot.eq(s.slot + 1)
                    m.next = "WALK"
            with m.Else():
                m.d.sync += s.slot.eq(0)
                with m.If(record.count != 0):
                    m.d.comb += gather.write_queue.eq(1)
                    m.d.sync += s.generation.eq(record.generation + 1)
                with m.If(s.queue != s.last_queue):
                    m.d.sync += s.queue.eq(s.queue + 1)
                    m.next = "WALK"
                with m.Else():
                    with m.If(s.all):
                        m.d.sync += s.live.eq(s.live & ~(1 << s.session))
                    m.next = "ANSWER"
                    with m.If(s.then == _Then.SCAN):
                        m.next = "SCAN"
                    with m.If(s.then == _Then.SUMMARISE):
                        m.next = "SUMMARISE"
                        with m.If(s.all):
                            # The queue of the SELECT may not have been among them.
                            m.d.sync += [
                                s.all.eq(0),
                                s.queue.eq(s.bell.queue),
                                s.last_queue.eq(s.bell.queue),
                            ]
                            m.next = "WALK"

    def _summarise(self, m, s):
        """Summaries of the pages that have none, a page after another."""
        c, p, newest = self.config, self.parts, s.bell.newest
        m.submodules.build = build = SummaryBuild(lines=c.select_lines, id_bits=c.page_bits)
        store, keys, clear = p.store, p.reader.o, p.store.i_clear
        s.building, s.build_ready = Signal(), Signal()
        at, asked, page = Signal(c.page_bits + 1, init=1), Signal(), Signal(c.page_bits)
        complete, touched = Signal(), Signal()
        looked = self.i_result
        m.d.comb += [
            s.build_ready.eq(build.i.ready),
            build.token_lines.eq(s.bell.lines - 1),
            build.i.valid.eq(keys.valid & s.building),
            build.i.p.payload.eq(keys.p.payload),
            build.i.p.scale.eq(keys.p.scale),
            build.i.p.line.eq(keys.p.at.line),
            build.i.p.last.eq(keys.p.at.page_end),
            build.i.p.id.eq(keys.p.at.page),
            build.o.ready.eq(1),
            store.i_line.valid.eq(build.o.valid),
            store.i_line.p.eq(build.o.p),
            store.look_page.eq(at),
            store.set_page.eq(page),
        ]
        # What M3 decided before it saw the page's first line is in the line.
        with m.If(clear.valid & (clear.p.squeue == s.squeue) & (clear.p.page == page)):
            m.d.sync += touched.eq(1)
        with m.If(looked.valid & (looked.p.op.kind == Op.LOOK) & (looked.p.op.kv_line == 0)):
            m.d.sync += touched.eq(0)
        with m.If(keys.valid & keys.ready):
            m.d.sync += complete.eq(complete & keys.p.there)
        yield
        with m.State("SUMMARISE"):
            m.d.comb += store.look.eq(1)
            m.d.sync += [
                asked.eq(at < newest),
                page.eq(at),
                at.eq(at + 1),
                complete.eq(1),
            ]
            with m.If(asked & ~store.holds):
                m.d.sync += [asked.eq(0), at.eq(page + 1), page.eq(page)]
                m.next = "BUILD"
            with m.Elif((at >= newest) & ~asked):
                m.d.sync += [at.eq(1), asked.eq(0)]
                m.next = "CHOOSE"
        with m.State("BUILD"):
            m.d.comb += [
                s.building.eq(1),
                s.asks.page.eq(page),
                s.asks.count.eq(s.used_lines),
                p.reader.i.valid.eq(1),
            ]
            with m.If(p.reader.i.ready):
                m.next = "BUILDING"
        with m.State("BUILDING"):
            m.d.comb += s.building.eq(1)
            with m.If(build.o.valid & build.o.p.last):
                m.next = "BUILT"
        with m.State("BUILT"):
            m.d.comb += store.set.eq(complete & ~touched)
            with m.If(store.set_done | ~complete | touched):
                m.next = "SUMMARISE"

    def _feed(self, m, s, choosing):
        """The engine's request, and what it asks for: summaries from the store, keys from the
        reader. Pages that are not there are counted, and perhaps asked of the prefetcher."""
        p, bell = self.parts, s.bell
        engine, keys, request = p.engine, p.reader.o, p.engine.i.p
        absent = Signal()
        #: the page before is not asked for yet
        stalls = self.o_fetch.valid
        most = (1 << len(request.target)) - 1
        m.d.comb += [
            engine.scale.m.eq(bell.m),
            engine.scale.sh.eq(bell.sh),
            engine.i.valid.eq(choosing),
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
        with m.If(self.o_fetch.ready):
            m.d.sync += self.o_fetch.valid.eq(0)
        with m.If(keys.valid & keys.ready & ~s.building):
            m.d.sync += absent.eq((absent | ~keys.p.there) & ~keys.p.at.page_end)
            with m.If(keys.p.at.page_end & (absent | ~keys.p.there)):
                m.d.sync += [
                    s.absent.eq(s.absent + 1),
                    self.o_fetch.valid.eq(bell.fetch),
                    self.o_fetch.p.squeue.eq(s.squeue),
                    self.o_fetch.p.page.eq(keys.p.at.page),
                ]

    def _choose(self, m, s):
        """The engine's choice, each page held as it comes."""
        c, p, bell = self.config, self.parts, s.bell
        engine, gather, chosen = p.engine, p.gather, p.engine.o.p
        choosing, answered = Signal(), Signal()
        state = Signal(SlotState)
        result = self.i_result
        self._feed(m, s, choosing)
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
        with m.State("HOLD"):
            m.d.comb += [choosing.eq(1), self.o_op.valid.eq(1)]
            with m.If(self.o_op.ready):
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
                        s.since[k].eq(self.now),
                        s.hold[k].eq(
                            Mux((bell.hold == 0) | (bell.hold > HOLD_MOST), HOLD_MOST, bell.hold)
                        ),
                        s.low[k].eq(Mux(lower, s.queue, s.low[k])),
                        s.high[k].eq(Mux(higher, s.queue, s.high[k])),
                    ]
            m.next = "ANSWER"

    def _answer(self, m, s):
        """The answer, its first line last."""
        p = self.parts
        window, lines = p.window, p.window.map.answer_lines
        written, header = Signal(range(lines)), Signal(_ANSWER)
        m.d.comb += [
            header.sequence.eq(s.bell.sequence),
            header.status.eq(
                Mux(s.refusal == Refusal.NONE, SelectStatus.DONE, SelectStatus.REFUSED)
            ),
            header.refusal.eq(s.refusal),
            header.count.eq(s.count),
            header.absent.eq(s.absent),
            header.generation.eq(Mux(s.count == 0, 0, s.generation)),
            window.answer_line.eq(lines - 1 - written),
        ]
        with m.If(window.answer_line == 0):
            m.d.comb += window.answer.eq(header)
        for k in range(1, lines):
            with m.If(window.answer_line == k):
                m.d.comb += window.answer.eq(Cat(s.chosen[8 * (k - 1) + n] for n in range(8)))
        yield
        with m.State("ANSWER"):
            m.d.comb += window.answer_en.eq(~s.void & (s.gone & (1 << s.session) == 0))
            m.d.sync += written.eq(written + 1)
            with m.If(written == lines - 1):
                m.d.sync += [written.eq(0), s.block.eq(s.block + 1)]
                m.next = "SCAN"
