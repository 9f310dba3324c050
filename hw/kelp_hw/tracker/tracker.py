# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The tracker pipeline: every change of what the device is happens here, at M3, in one order
(docs/design.md §1, §3). One request a cycle; its frame op leaves after 4 cycles, its result after 5
cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Event, Op, Outcome, ops_of

from ..layouts import Layouts
from ..lib.broadcast import broadcast
from ..lib.protected import BlockFault, gather_blocks
from ..pipeline import M0_TO_M3
from .arbiter import Arbiter, choose
from .decide import Decide, allocating, frame_of
from .foresight import Foresight
from .hot_pages import HotPages
from .miss_ids import MissIds
from .page_words import PageWords
from .pools import Pools
from .queue_formats import QueueFormats
from .sessions import SessionCheck, Sessions
from .signatures import BackgroundOps, Pause, PoolLevels, PoolSettings, credits_layout

__all__ = ["Tracker"]


class Tracker(wiring.Component):
    """Takes requests and background ops, decides one op (and one hot request before it) per cycle,
    and tells every engine (spec §4).

    Latency: the pipeline M0, MA, M1, M2, M3 never stalls. `o_frame_op` follows a request's
    handshake by `LATENCY` cycles (M3, combinational); `o_result`, `o_hot`, `o_score` of the same
    cycle's ops by `RESULT_LATENCY`. One request in each cycle (`INTERVAL`), in 7 of 8 cycles when
    background ops need the port all the time; with page-sequential requests every background op
    that does not use the frame stage finds a cycle (docs/design.md §1). Ops that change a session
    enter alone, five cycles before the next.

    Nothing is accepted before `ready`, which rises when every page word is ABSENT. Refused requests
    become ANSWER frame ops; `o_result.op.refused` says why. A page word with one flipped bit is
    corrected, one with two becomes LOST.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_request : in, stream of request
    ahead : in
        What `i_request.p` will be in the next cycle, unless it holds a request that is not taken.
    ops : in, BackgroundOps
        An op's `session` is needed for REPLAY, SCAN, RELEASE, PREFETCH, MASS, PIN, UNPIN, STEP,
        OPEN, CLOSE, CLOSED. A PEEK from `evict` is of a frame, one from `control` of a page word. A
        stream that does not tell what is behind its op has an op in every other cycle at most.
    i_miss_free : in, stream of free miss ids
        At first all of them, then each when its entry is done with.
    credits : in
        Free places downstream (:func:`.signatures.credits_layout`). M0 has them a cycle later.
    hold : in, Pause
        Empties the pipeline and keeps it empty.
    config_write : in, always-ready stream
        {squeue, queue_config}: the queue's formats and pool, before OPEN.
    descriptor : in
        The session's registers for OPEN, held until its result.
    pool_settings : in, PoolSettings
        Limits of each pool.
    fatal : in
        Requests that are at M2 are refused as FATAL; those of the hot lane are not, nor those that
        wait on a page.
    ecc_flip : in
        For verification: XORed into every code word written. Zero otherwise.
    fault : out, BlockFault
        Of queue formats and free frames.
    o_result : out, always-ready stream of result
        Every op that took the tracker lane, in the order of M3.
    o_frame_op : out, always-ready stream of frame_op
    o_frame_op_hot : out
        `o_frame_op` is of the hot lane: it comes before the op whose result follows a cycle later.
    o_score : out, always-ready stream of score_event
    o_hot : out, always-ready stream of hot
        Every request that took the hot lane.
    sessions : out
        Registers of every session.
    pools : out, PoolLevels
        Free and used frames of each pool.
    ready : out
        Every page word is ABSENT.
    idle : out
        No op is inside.
    """

    LATENCY = M0_TO_M3
    RESULT_LATENCY = LATENCY + 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        if not isinstance(config, Config):
            raise TypeError(f"config = {config!r} is refused; legal: a kelp_spec.Config")
        self.config = config
        layouts = self.layouts = Layouts(config)
        self.words = PageWords(config=config)
        super().__init__(
            {
                "i_request": In(stream.Signature(layouts.request)),
                "ahead": In(layouts.ahead),
                "ops": In(BackgroundOps(config)),
                "i_miss_free": In(stream.Signature(config.miss_bits)),
                "credits": In(credits_layout(ids=False)),
                "hold": In(Pause()),
                "config_write": In(stream.Signature(layouts.config_write, always_ready=True)),
                "descriptor": In(layouts.session),
                "pool_settings": In(PoolSettings(config)),
                "fatal": In(1),
                "ecc_flip": In(self.words.code.code_bits),
                "fault": Out(BlockFault),
                "o_result": Out(stream.Signature(layouts.result, always_ready=True)),
                "o_frame_op": Out(stream.Signature(layouts.frame_op, always_ready=True)),
                "o_frame_op_hot": Out(1),
                "o_score": Out(stream.Signature(layouts.score_event, always_ready=True)),
                "o_hot": Out(stream.Signature(layouts.hot, always_ready=True)),
                "sessions": Out(data.ArrayLayout(layouts.session, config.sessions)),
                "pools": Out(PoolLevels(config)),
                "ready": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.arbiter = arbiter = Arbiter(config=c)
        m.submodules.words = words = self.words
        m.submodules.hot_pages = hot_pages = HotPages(config=c)
        m.submodules.foresight = foresight = Foresight(config=c)
        m.submodules.sessions = sessions = Sessions(config=c)
        m.submodules.pools = pools = Pools(config=c)
        m.submodules.miss_ids = miss_ids = MissIds(config=c)
        m.submodules.decide = decide = Decide(config=c)
        m.submodules.queues = queues = QueueFormats(config=c)
        asks2 = Signal()  # at M2 is a request that is not refused
        wiring.connect(m, wiring.flipped(self.config_write), queues.write)
        gather_blocks(m, self.fault, queues.fault, pools.fault)

        def session(index):
            return sessions.sessions[index] if c.sessions > 1 else sessions.sessions[0]

        # - M0: admission --------------------------------------------------------------------------
        for name in ("i_request", "ops"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(arbiter, name))
        wiring.connect(m, wiring.flipped(self.pool_settings), pools.settings)
        wiring.connect(m, pools.levels, wiring.flipped(self.pools))
        wiring.connect(m, wiring.flipped(self.i_miss_free), miss_ids.i)
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.arbiter, s.words, s.hot_pages, s.foresight = arbiter, words, hot_pages, foresight
        s.sessions, s.pools, s.miss_ids, s.decide = sessions, pools, miss_ids, decide
        s.queues, s.asks2, s.session = queues, asks2, session
        self._foresee(m, s)
        self._admit(m, s)
        self._address(m, s)
        self._check(m, s)
        self._decide(m, s)
        self._frame_op(m, s)
        self._tell(m, s)
        self._vacant(m, s)
        return m

    def _foresee(self, m: Module, s: SimpleNamespace) -> None:
        """What each stage knows, and what a request meets that enters now: M0's foresight."""
        c, layouts, request = self.config, self.layouts, self.i_request.p
        foresight, arbiter, hot_pages, sessions = s.foresight, s.arbiter, s.hot_pages, s.sessions
        # What a stage knows of its op besides the op itself.
        about = data.StructLayout(
            {
                "valid": 1,
                "hot": 1,
                "reads": 1,
                "blocks": 1,
                "takes": 1,
                "session": 1,
                "frame_peek": 1,
                "background": 1,
                "queue": c.queue_bits,
                "hot_page": layouts.page,
                "hot_session": c.session_bits,
            }
        )
        stages = ma, m1, m2, m3 = [Signal(about, name=name) for name in ("ma", "m1", "m2", "m3")]
        ops = opa, op1, op2, op3 = [
            Signal(layouts.op, name=f"op{name}") for name in ("a", "1", "2", "3")
        ]

        # A hot page may lose its place by an op in the pipeline that looks at its word: by any
        # background op, and by a request that finds the word beyond repair; so does one on a hot
        # page that may not take the hot lane. A request that follows another op on its page within
        # four cycles is given that op's word and finds nothing new.
        same, blocks = Signal(4), Signal(4)
        m.d.comb += [
            same.eq(foresight.same & Cat(a.valid & a.reads for a in stages)),
            blocks.eq(Cat(a.blocks for a in stages)),
            foresight.ahead.eq(self.ahead),
            foresight.moves.eq(~self.i_request.valid | self.i_request.ready),
            foresight.valid.eq(self.i_request.valid),
            *(
                foresight.request[f].eq(request[f])
                for f in ("session", "squeue", "page", "kv_line")
            ),
            foresight.request.ld_id.eq(request.origin.ld_id),
            foresight.request.memory.eq((request.refused == 0) & ~request.no_memory),
            *(foresight.ops[k][f].eq(o[f]) for k, o in enumerate(ops) for f in ("squeue", "page")),
            *(foresight.background[f].eq(arbiter.o.op.behind[f]) for f in ("squeue", "page")),
            foresight.was_background.eq(ma.background),
            foresight.pages.eq(hot_pages.pages),
            foresight.entering.eq(hot_pages.entering),
            foresight.sessions.eq(sessions.sessions),
        ]
        s.stages, s.ma, s.m1, s.m2, s.m3, s.ops, s.opa = stages, ma, m1, m2, m3, ops, opa
        s.op1, s.op2, s.op3, s.same, s.blocks = op1, op2, op3, same, blocks

    def _admit(self, m: Module, s: SimpleNamespace) -> None:
        """M0: admission."""
        request = self.i_request.p
        arbiter, stages, foresight, hot_pages = s.arbiter, s.stages, s.foresight, s.hot_pages
        same, blocks, miss_ids, ma = s.same, s.blocks, s.miss_ids, s.ma
        # `hold`: an op that changes a session is on its way
        on_their_way, hold = Signal(3), Signal(init=1)
        credits = arbiter.credits
        m.d.comb += on_their_way.eq(sum(((a.valid & a.takes) for a in stages), start=0))
        m.d.comb += [
            arbiter.good.eq(foresight.good),
            hot_pages.same.eq(foresight.hit),
            # poison is an event, which takes a result
            arbiter.hot.eq(hot_pages.hit & arbiter.good & ~request.poison & ~(same & blocks).any()),
            arbiter.hold.eq(hold),
            *([arbiter.refuses.eq(self.fatal)] if self.config.protect else []),
            *(
                arbiter.credits_ahead[name].eq(self.credits[name])
                for name in self.credits.shape().members
            ),
            # One id for each op on its way that may take one, and for the one that enters in this
            # cycle, which only does where there was a credit.
            arbiter.credits_ahead.miss_id.eq(
                Mux(
                    credits.miss_id,
                    miss_ids.level > on_their_way + 1,
                    miss_ids.level > on_their_way,
                )
            ),
        ]
        # The last of these cycles is for `foresight`, which looks at the session a cycle early.
        m.d.sync += hold.eq(
            ~self.ready
            | self.hold.pause
            | (arbiter.o.valid & arbiter.o.session)
            | Cat(a.valid & a.session for a in stages).any()
        )
        held = Signal()
        m.d.sync += held.eq(hold & self.hold.pause)
        m.d.comb += self.hold.paused.eq(held & self.idle)
        entered = Signal.like(arbiter.o.op)
        m.d.sync += [
            credits.eq(arbiter.credits_ahead),
            entered.eq(arbiter.o.op),
            ma.valid.eq(arbiter.o.valid),
            ma.hot.eq(arbiter.o.hot),
            ma.reads.eq(arbiter.o.reads),
            ma.takes.eq(arbiter.o.takes),
            ma.blocks.eq(arbiter.o.background | hot_pages.hit),
            ma.background.eq(arbiter.o.background),
            ma.session.eq(arbiter.o.session),
            ma.frame_peek.eq(arbiter.o.frame_peek),
            ma.queue.eq(arbiter.o.queue),
        ]
        s.entered = entered

    def _address(self, m: Module, s: SimpleNamespace) -> None:
        """MA: op chosen by a register, memories addressed, hot entry comes out."""
        request = self.i_request.p
        entered, opa, ma, words, queues, asks2 = s.entered, s.opa, s.ma, s.words, s.queues, s.asks2
        m2, stages, ops, foresight = s.m2, s.stages, s.ops, s.foresight
        m.d.comb += [
            *(Value.cast(opa[field]).eq(value) for field, value in choose(entered).items()),
            ma.hot_page.squeue.eq(entered.request.squeue),
            ma.hot_page.page.eq(entered.request.page),
            ma.hot_session.eq(entered.request.session),
        ]
        m.d.comb += [
            words.look.p.squeue.eq(opa.squeue),
            words.look.p.page.eq(opa.page),
            words.look.valid.eq(ma.valid & ma.reads),
            queues.read_squeue.eq(opa.squeue),
            # What is refused uses none of it, nor does a PEEK: one of a frame names no queue, the
            # other may name one that was never configured.
            queues.used.eq(asks2 | (m2.valid & m2.background & m2.reads & (s.op2.kind != Op.PEEK))),
        ]

        for k, (stage, op) in enumerate(zip(stages, ops, strict=True)):
            with m.If(self.i_request.valid & stage.valid):
                m.d.sync += Assert(
                    foresight.same[k] == ((op.squeue == request.squeue) & (op.page == request.page))
                )

    def _check(self, m: Module, s: SimpleNamespace) -> None:
        """M1: page word, queue configuration come out; M2: corrected, session checked."""
        layouts, c = self.layouts, self.config
        hot_pages, queues, op2, m2, asks2 = s.hot_pages, s.queues, s.op2, s.m2, s.asks2
        session, m1, op1, pools, opa, ma, op3 = s.session, s.m1, s.op1, s.pools, s.opa, s.ma, s.op3
        m3 = s.m3
        hot1, hot2, hot3 = (Signal(hot_pages.entry_layout, name=f"hot{i}") for i in (1, 2, 3))
        queue2, session2 = Signal(queues.shape), Signal(layouts.session)
        shape_layout = data.StructLayout(
            {name: layouts.session[name].shape for name in ("used_lines", "k_only", "host_type")}
        )
        # of the session whose request goes to the frame stage
        shape1, shape2, shape3 = (Signal(shape_layout, name=f"shape{i}") for i in (1, 2, 3))
        m.submodules.check = check = SessionCheck(config=c)
        m.d.comb += [
            check.session.eq(session2),
            check.refused.eq(Mux(self.fatal, Event.FATAL, op2.refused)),
            check.ld_id.eq(op2.origin.ld_id),
            check.queue.eq(m2.queue),
            check.page.eq(op2.page),
            check.kv_line.eq(op2.kv_line),
        ]
        queue3, session3, event3 = (
            Signal(queues.shape),
            Signal(layouts.session),
            Signal.like(check.event),
        )
        ops = ops_of(c)
        kinds3, asks3 = Signal(len(ops)), Signal()
        frames2 = frame_of(op2.kind, asks2, allocating(c, op2))
        frames3 = {name: Signal(name=f"{name}3") for name in frames2}
        usable3, grants3 = Signal(), Signal()
        # whether the frame op's frame is known without the word, and which it is
        named3, frame3 = Signal(), Signal(c.frame_bits)
        m.d.comb += asks2.eq(
            m2.valid
            & ((op2.kind == Op.READ) | (op2.kind == Op.WRITE))
            & (check.event == Event.NONE)
            & ~op2.no_memory
        )
        shaping = session(Mux(m1.hot, m1.hot_session, op1.session))
        m.d.comb += [shape1[name].eq(shaping[name]) for name in shape_layout.members]
        own_pool2 = (op2.kind == Op.GRANT) | (op2.kind == Op.FREE)
        m.d.comb += pools.ask.ahead.eq(Mux(own_pool2, op2.pool, queue2.pool))
        m.d.sync += [
            op1.eq(opa),
            m1.eq(ma),
            op2.eq(op1),
            m2.eq(m1),
            op3.eq(op2),
            m3.eq(m2),
            hot1.eq(hot_pages.entry),
            hot2.eq(hot1),
            hot3.eq(hot2),
            queue2.eq(queues.o),
            queue3.eq(queue2),
            queue3.pool.eq(pools.ask.ahead),
            session2.eq(session(op1.session)),
            session3.eq(session2),
            shape2.eq(shape1),
            shape3.eq(shape2),
            event3.eq(check.event),
            *(kinds3[k].eq(m2.valid & (op2.kind == k)) for k in ops),
            usable3.eq(session2.open & ~session2.closing),
            grants3.eq(m2.valid & (op2.kind == Op.GRANT) & ~op2.failed),
            named3.eq(m2.hot | frames2["own_frame"]),
            frame3.eq(Mux(m2.hot, hot2.frame, op2.frame)),
            asks3.eq(asks2),
            *(frames3[name].eq(value) for name, value in frames2.items()),
        ]
        s.hot3, s.shape_layout, s.shape3, s.queue3 = hot3, shape_layout, shape3, queue3
        s.session3, s.event3, s.kinds3, s.asks3 = session3, event3, kinds3, asks3
        s.frames3, s.usable3, s.grants3, s.named3 = frames3, usable3, grants3, named3
        s.frame3 = frame3

    def _decide(self, m: Module, s: SimpleNamespace) -> None:
        """M3: the decision."""
        decide, op3, words, frames3, kinds3 = s.decide, s.op3, s.words, s.frames3, s.kinds3
        asks3, grants3, m3, event3, session3 = s.asks3, s.grants3, s.m3, s.event3, s.session3
        usable3, queue3, pools, miss_ids, op2 = s.usable3, s.queue3, s.pools, s.miss_ids, s.op2
        sessions, hot_pages, stages = s.sessions, s.hot_pages, s.stages
        x, strobes, result = decide.context, decide.strobes, decide.result
        m.d.comb += [
            decide.op.eq(op3),
            decide.word.eq(words.word),
            words.new.eq(result.word),
            words.write.eq(strobes.write),
            words.flip.eq(self.ecc_flip),
            *(x[name].eq(value) for name, value in frames3.items()),
            x.kinds.eq(kinds3),
            x.asks.eq(asks3),
            x.grants.eq(grants3),
            x.states.eq(words.states),
            x.valid.eq(m3.valid),
            x.event.eq(event3),
            x.is_open.eq(session3.open),
            x.usable.eq(usable3),
            x.step.eq(session3.step),
            x.format_k.eq(queue3.format_k),
            x.format_v.eq(queue3.format_v),
            x.pool.eq(queue3.pool),
            x.policy.eq(queue3.policy),
            x.frame_peek.eq(m3.frame_peek),
            x.can_pop.eq(pools.ask.can_pop),
            x.can_take.eq(pools.ask.can_take),
            x.can_prefetch.eq(pools.ask.can_prefetch),
            x.can_pin.eq(pools.ask.can_pin),
            x.frame.eq(pools.ask.frame),
            x.miss.eq(miss_ids.id),
            x.empty.eq(miss_ids.empty),
            x.corrected.eq(words.corrected),
            x.uncorrected.eq(words.uncorrected),
            pools.ask.select.eq(queue3.pool),
            pools.change.push_frame.eq(op3.frame),
            miss_ids.park_id.eq(words.word.place),
            miss_ids.look.eq(op2.miss),
            miss_ids.select.eq(op3.miss),
            sessions.select.eq(op3.session),
            sessions.delta.eq(op3.delta),
            sessions.descriptor.eq(self.descriptor),
            hot_pages.ahead.squeue.eq(op2.squeue),
            hot_pages.ahead.page.eq(op2.page),
            hot_pages.page.squeue.eq(op3.squeue),
            hot_pages.page.page.eq(op3.page),
            hot_pages.session.eq(op3.session),
            hot_pages.new.frame.eq(result.word.place),
            hot_pages.new.format_k.eq(result.word.format_k),
            hot_pages.new.format_v.eq(result.word.format_v),
            hot_pages.new.pool.eq(queue3.pool),
            *(
                getattr(block, name).eq(strobes[name])
                for block, names in (
                    (pools.change, ("pop", "push", "wait", "unwait", "want", "pin", "unpin")),
                    (miss_ids, ("take", "parked", "park", "unpark")),
                    (sessions, ("open", "close", "closed", "step")),
                    (hot_pages, ("keep", "drop", "drop_session")),
                )
                for name in names
            ),
            self.sessions.eq(sessions.sessions),
            self.ready.eq(words.ready),
            self.idle.eq(
                ~Cat(a.valid | a.hot for a in stages).any()
                & ~self.o_result.valid
                & ~self.o_hot.valid
            ),
        ]
        s.result = result

    def _frame_op(self, m: Module, s: SimpleNamespace) -> None:
        """The frame stage: the hot request's op, or the tracker lane's, never both."""
        m3, decide, named3, frame3 = s.m3, s.decide, s.named3, s.frame3
        shape_layout, shape3, op3, hot3 = s.shape_layout, s.shape3, s.op3, s.hot3
        # The frame stage: the hot request's op, or the tracker lane's, never both.
        frame_op = self.o_frame_op.p
        m.d.comb += [
            self.o_frame_op.valid.eq(m3.hot | decide.frame_op.valid),
            self.o_frame_op_hot.eq(m3.hot),
            frame_op.eq(decide.frame_op.p),
            frame_op.frame.eq(Mux(named3, frame3, decide.found_frame)),
            *(frame_op[name].eq(shape3[name]) for name in shape_layout.members),
        ]
        with m.If(m3.hot):
            m.d.comb += [
                frame_op.kind.eq(Mux(op3.write, Op.WRITE, Op.READ)),
                frame_op.outcome.eq(Outcome.HIT),
                frame_op.answer.eq(0),
                frame_op.squeue.eq(m3.hot_page.squeue),
                frame_op.page.eq(m3.hot_page.page),
                frame_op.format_k.eq(hot3.format_k),
                frame_op.format_v.eq(hot3.format_v),
                frame_op.use.eq(1),
                frame_op.init.eq(0),
                frame_op.write.eq(op3.write),
                frame_op.has_write.eq(op3.has_write),
                frame_op.pool.eq(hot3.pool),
                frame_op.source.eq(0),
                frame_op.slot.eq(0),
            ]
        m.d.sync += Assert(~(m3.hot & decide.frame_op.valid))

    def _tell(self, m: Module, s: SimpleNamespace) -> None:
        """F1: the other engines."""
        result, m3, op3, decide = s.result, s.m3, s.op3, s.decide
        m.d.sync += [
            self.o_result.p.eq(result),
            self.o_result.valid.eq(m3.valid),
            self.o_hot.p.session.eq(m3.hot_session),
            self.o_hot.p.squeue.eq(m3.hot_page.squeue),
            self.o_hot.p.page.eq(m3.hot_page.page),
            self.o_hot.p.kv_line.eq(op3.kv_line),
            self.o_hot.p.write.eq(op3.write),
            self.o_hot.valid.eq(m3.hot),
        ]
        broadcast(m, decide.score, self.o_score, registered=True)

    def _vacant(self, m: Module, s: SimpleNamespace) -> None:
        """When no session is open nothing is taken: no frame, no place in the line for one, no pin.
        But for what a lost word took along: its frame is searched for, whoever is there."""
        pools, vacant, lost = s.pools, Signal(), Signal()
        m.d.comb += vacant.eq(~Cat(each.open for each in self.sessions).any())
        with m.If((s.m3.valid & s.words.uncorrected) | self.fatal):
            m.d.sync += lost.eq(1)
        taken = Cat(*pools.taken, *pools.waiting, *pools.pins)
        m.d.sync += Assert(
            ~vacant | lost | ~taken.any(), "a frame or a pin that no session has is taken"
        )
