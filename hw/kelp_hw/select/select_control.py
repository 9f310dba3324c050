# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One SELECT after another: its doorbell checked, its queries loaded, slots given back, pages
summarised, the choice made and held, the answer written (docs/select.md). One SELECT in about as
many cycles as the longest of its parts takes."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from kelp_spec.config import Config
from kelp_spec.select import CODED_LINES, HOLD_MOST, Refusal, SelectMap

from ..choice.select_engine import KeySizes, SelectEngine
from ..layouts import TIME_BITS, DroppedPages, Layouts
from ..scores.table_scores import TableScores
from .control_bell import check, query, turn
from .control_choice import choose, feed
from .control_slots import Then, give_back
from .control_summaries import summarise
from .control_wait import wait
from .gather_window import GatherWindow
from .page_reader import PageReader
from .select_window import SelectWindow, bell_layout
from .summary_store import SummaryStore

__all__ = ["SelectControl", "SelectParts", "engine_of"]


def _context_of(config: Config) -> data.StructLayout:
    """What of a SELECT is still asked for when it is in the engine."""
    c = config
    waiting = {"waits": 1, "wait_above": 32, "patience": range(HOLD_MOST + 1), "taken": 2}
    waiting |= {"fetch_from": 32} | ({"tables": 1} if c.select_tables else {})
    return data.StructLayout(
        {
            "block": c.session_bits + SelectMap(c).group_bits,
            "sequence": 32,
            "queue": c.queue_bits,
            "layer": 16,
            "newest": c.page_bits,
            "newest_lines": c.half_line_bits + 1,
            "used_lines": c.half_line_bits + 1,
            "newest_tokens": c.half_line_bits + 1,
            "used_tokens": c.half_line_bits + 1,
            "token_lines": range(c.select_lines),
            "host_type": 1,
            "hold": range(HOLD_MOST + 1),
            "fetch": 1,
            "speculative": 1,
            "generation": c.generation_bits,
        }
        | (waiting if c.select_estimates else {})
    )


def engine_of(*, config: Config) -> SelectEngine:
    """A configuration's engine."""
    return SelectEngine(
        heads=config.select_heads,
        # The reader's quantiser gives no more of a line in a cycle.
        sizes=KeySizes(
            config.select_lines, config.select_rows, config.select_lanes, config.codec_lanes
        ),
        pages=config.pages,
        quota=config.select_quota,
        most=config.select - 2,
        protect=config.protect,
        context=_context_of(config),
        estimates=config.select_estimates,
    )


class SelectParts:
    """What does the work: the `window` of the SELECT region, the `gather` window, the `store` of
    summaries, the `reader` of pages, the `engine`, and the `tables`, or None."""

    def __init__(self, config: Config):
        c = config
        self.window, self.gather = SelectWindow(config=c), GatherWindow(config=c)
        self.store, self.reader = SummaryStore(config=c), PageReader(config=c)
        self.engine = engine_of(config=c)
        self.tables = TableScores(config=c) if c.select_tables else None


class SelectControl(wiring.Component):
    """Serves the doorbells of the window, block after block, with the engine, and keeps the slots
    of the GATHER window. It alone says in which order the parts work.

    While the engine scores and chooses for a SELECT, the next one is checked, its slots are given
    back, and its pages are summarised and named. It waits where the one before it is of the same
    session and queue, or of another layer of it; where a page has to be summarised and keys of the
    one before are still read; and where it chooses nothing, so that answers come in the order of
    service.

    A SELECT that is refused changes nothing but its answer, and is an event; one that is
    `speculative` leaves slots alone, and chooses nothing. One that waits for pages keeps its slots,
    and chooses again when they have landed, or will not, or its time is over. Slots are given back
    when a SELECT of their session is of another layer, or of the same queue, or says so; when the
    time is over that the last SELECT gave them; and when their session ends.

    Latency: docs/select.md, "Passes and rates". Three SELECTs at a time. Errors: those of
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
    dropped : in, DroppedPages
        With `Config.select_estimates`.
    ended : in
        Bit s: session s has begun to close, or was opened.
    o_op : out, stream of op
        HOLD and UNHOLD.
    o_fetch : out, stream of pages
        Those that are wanted and have the mass, or without estimates those that were scored and not
        resident, where the doorbell says `fetch` or `speculative`.
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
            | ({"dropped": In(DroppedPages(c))} if c.select_estimates else {})
        )

    def elaborate(self, platform):
        m = Module()
        c, p = self.config, self.parts
        s = SimpleNamespace()
        s.block = Signal(p.window.block_bits)
        s.session = Signal(c.session_bits)
        s.bell = Signal(bell_layout(c))
        s.taken = Signal(2)  # which of its block's that were taken it is, with estimates
        s.held = Signal(Layouts(c).session)  # the session's registers, as they are
        s.squeue = Signal(c.squeue_bits)
        s.refusal = Signal(Refusal)
        #: sessions that ended: what is found out for them goes to nobody. They are until nothing of
        #: them is under way, and their slots are given back
        s.gone = Signal(c.sessions)
        s.ended = lambda session: ((s.gone | self.ended) >> session)[0]
        s.absent = Signal(16)
        s.generation = Signal(c.generation_bits)
        #: the engine's place of the SELECT at the door
        s.bank = Signal()
        #: a SELECT that chooses nothing is to be answered, and is; nothing else is under way
        s.tells, s.told, s.alone = Signal(), Signal(), Signal()
        #: the choice writes slots in this cycle; sessions that have slots, or none, from now on
        s.writes, s.lives, s.dies = Signal(), Signal(c.sessions), Signal(c.sessions)
        s.hold, s.unhold = (stream.Signature(Layouts(c).op).create() for _ in range(2))
        #: a page that is wanted is to be fetched, and is taken
        s.wants, s.wants_ready, s.early = Signal(), Signal(), Signal()
        s.host_type = Signal()
        s.used_lines = Signal(c.half_line_bits + 1)
        s.asks, s.building, s.build_ready = p.reader.i.p, Signal(), Signal()
        m.d.comb += [
            s.session.eq(s.block >> p.window.map.group_bits),
            p.window.block.eq(s.block),
            s.squeue.eq(s.session * c.queues + s.bell.queue),
            p.store.squeue.eq(s.squeue),
            p.store.token_lines.eq(s.bell.lines - 1),
            p.store.rows.eq((s.used_lines - 1)[: len(s.used_lines)] >> exact_log2(CODED_LINES)),
            p.reader.query_host_type.eq(s.host_type),
        ]
        with m.If(s.building):
            m.d.comb += [
                p.reader.session.eq(s.session),
                p.reader.squeue.eq(s.squeue),
                p.reader.host_type.eq(s.host_type),
                p.reader.token_lines.eq(s.bell.lines - 1),
            ]
        s.steps = [self.sessions[k].step for k in range(c.sessions)]
        for k in range(c.sessions):
            with m.If(s.session == k):
                m.d.comb += s.held.eq(self.sessions[k])
        m.d.sync += s.gone.eq(s.gone | self.ended)
        s.ripe = Signal(init=1)  # the block's doorbell may be served
        names = ("above", "begins", "wants", "parks")
        s.wait = SimpleNamespace(**{name: Signal(name=name) for name in names}, taken=Signal(2))
        # Each part builds what its states stand on, then, when it goes on, the states.
        parts = [
            self._scan(m, s),
            *(part(self, m, s) for part in (check, query, turn, give_back, summarise, feed)),
        ]
        for part in parts:
            next(part)
        with m.FSM() as fsm:
            for part in parts:
                next(part, None)
        if c.select_estimates:
            wait(self, m, s)
        choose(self, m, s)
        self._ops(m, s)
        m.d.sync += s.live.eq((s.live & ~s.dies) | s.lives)
        m.d.comb += self.idle.eq(
            fsm.ongoing("SCAN")
            & s.alone
            & ~p.window.pending.any()
            & ~s.gone.any()
            & ~self.ended.any()
            & ~self.o_fetch.valid
        )
        return m

    def _ops(self, m, s):
        """HOLD and UNHOLD; what is offered stays until it is taken."""
        holds, held, stands = Signal(), Signal(), Signal()
        m.d.comb += [
            holds.eq(Mux(stands, held, s.hold.valid)),
            self.o_op.valid.eq(Mux(holds, s.hold.valid, s.unhold.valid)),
            self.o_op.p.eq(Mux(holds, s.hold.p.as_value(), s.unhold.p.as_value())),
            s.hold.ready.eq(self.o_op.ready & holds),
            s.unhold.ready.eq(self.o_op.ready & ~holds),
        ]
        m.d.sync += [held.eq(holds), stands.eq(self.o_op.valid & ~self.o_op.ready)]

    def _scan(self, m, s):
        """Whose turn it is: a session that has ended, or whose time is over, or a doorbell."""
        c, p = self.config, self.parts
        # Of each session's slots: whether there are any, of which layer, since when and for how
        # long; and between which queues they lie.
        s.live = Signal(c.sessions)
        s.layer = [Signal(16, name=f"layer_{k}") for k in range(c.sessions)]
        s.since = [Signal(TIME_BITS, name=f"since_{k}") for k in range(c.sessions)]
        s.hold_time = [Signal(range(HOLD_MOST + 1), name=f"hold_{k}") for k in range(c.sessions)]
        s.low = [Signal(c.queue_bits, name=f"low_{k}") for k in range(c.sessions)]
        s.high = [Signal(c.queue_bits, name=f"high_{k}") for k in range(c.sessions)]

        def of_session(values, session=s.session):
            found = Signal.like(values[0])
            for k in range(c.sessions):
                with m.If(session == k):
                    m.d.comb += found.eq(values[k])
            return found

        s.of_session = of_session
        since, hold = of_session(s.since), of_session(s.hold_time)
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
        s.walks, s.then = Signal(), Signal(Then)  # they are given back; what waits for it
        gone = (s.gone >> s.session)[0]
        yield
        with m.State("SCAN"):
            m.d.sync += [s.refusal.eq(Refusal.NONE), s.generation.eq(0)]
            with m.If(~(p.store.ready & p.gather.ready)):
                pass
            with m.Elif(gone | over):
                with m.If(s.alone):
                    m.d.sync += [
                        s.gone.eq((s.gone & ~(1 << s.session)) | self.ended),
                        s.queue.eq(s.own_low),
                        s.last_queue.eq(s.own_high),
                        s.all.eq(1),
                        s.then.eq(Then.SCAN),
                    ]
                    with m.If(s.own):
                        m.d.sync += s.walks.eq(1)
                        m.next = "GIVE_BACK"
            with m.Elif((p.window.pending >> s.block)[0] & s.ripe):
                m.d.comb += p.window.take.eq(1)
                m.next = "BELL"
            with m.Else():
                m.d.sync += s.block.eq(s.block + 1)
