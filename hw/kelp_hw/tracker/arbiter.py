# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""M0: which request and which background op enter the tracker pipeline in a cycle (docs/design.md
§1). Combinational: one request a cycle and, beside a hot one, an op."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Op

from ..layouts import Layouts
from .signatures import (
    BACKGROUND,
    ORIGIN,
    REQUEST,
    SELECT_KINDS,
    Admission,
    BackgroundOps,
    credits_layout,
    kinds,
)

__all__ = ["Arbiter", "choose"]

_SESSION_OPS = (Op.STEP, Op.OPEN, Op.CLOSE, Op.CLOSED)
_FRAME_OPS = (
    Op.FILL,
    Op.REPLAY,
    Op.FLIP,
    Op.CLAIM,
    Op.RELEASE,
    Op.FREE,
    Op.SCRUB,
    Op.RECOVER,
    Op.PEEK,
    Op.LOOK,
)
_QUEUE_OPS = (Op.FLIP, Op.CLAIM, Op.RELEASE, Op.SCRUB)
_SCORE_OPS = (Op.SCAN, Op.MASS, Op.SCRUB)
_MISS_OPS = (Op.PREFETCH,)
_WORDLESS = (Op.GRANT, Op.FREE, *_SESSION_OPS)

#: The fields that ops of a stream use; the others are zero in the pipeline, which keeps the
#: multiplexer small.
_FIELDS = {
    "miss": (
        *ORIGIN,
        "session",
        "squeue",
        "page",
        "miss",
        "pool",
        "frame",
        "failed",
        "miss_kind",
        "lost",
        "source",
        "slot",
    ),
    "control": ("session", "squeue", "page", "delta"),
    "hint": ("session", "squeue", "page", "mass", "delta"),
    "evict": (
        "session",
        "squeue",
        "page",
        "pool",
        "frame",
        "failed",
        "slot",
        "mass",
        "delta",
        "written",
    ),
    "prefetch": ("session", "squeue", "page", "source"),
}


#: Those of a LOOK beside a hint's.
_LOOK_FIELDS = ("kv_line", "origin")


def choose(entering: data.View) -> dict:
    """The op from its two parts, by field. Its request part is the request's of the cycle, if there
    is one, also of a hot one that goes beside it."""
    request, behind, cold, takes_frame = (
        entering.request,
        entering.behind,
        entering.cold,
        entering.takes_frame,
    )
    fields = {"kind": Mux(cold, Mux(request.write, Op.WRITE, Op.READ), behind.kind)}
    for field in behind.shape().members:
        if field in ORIGIN:
            fields[field] = Mux(takes_frame, Value.cast(behind[field]), Value.cast(request[field]))
        elif field in REQUEST:
            fields[field] = Mux(cold, request[field], behind[field])
        elif field != "kind":
            fields[field] = behind[field] & (~cold).replicate(len(behind[field]))
    return fields | {
        field: request[field] & cold.replicate(len(request[field]))
        for field in ("refused", "no_memory")
    }


class Arbiter(wiring.Component):
    """M0: admits at most one request and one op a cycle, each only with the credits that cover its
    worst case (docs/design.md §1).

    Latency: none from the handshake to `o` (`LATENCY` 0, combinational); a request in each cycle
    (`INTERVAL`), and beside a hot one an op.

    Which background op goes, if one does, is chosen a cycle ahead: among the ops that stand at
    their streams then and stay, and what is `behind` the one that goes then. So an op waits for at
    least one cycle, unless its stream showed it on `behind`; such a stream has one op a cycle.

    A `hot` request needs only the frame stage, so an op that does not use that stage enters with
    it; every other request and every other op takes the cycle alone. A request goes first, unless
    background ops have had less than one in eight of the cycles in which they could have gone; what
    they had beyond that counts for up to `SURPLUS` cycles, so none waits longer than `PATIENCE` +
    `SURPLUS` for requests. Among the background streams the first in `BACKGROUND` that could go
    does, but hints and evictions take turns, and control with both: one hint at most goes before an
    eviction that could, and one control op before each of the two. A tenant may cause control ops
    without pause: steps that its accesses advance.
    Ops of a choice take turns with gathered requests of their own session; beside others they have
    one cycle in `BESIDE_CHOICE` + 1, and those that go while no request stands do not count. `hold`
    admits nothing.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_request : in, stream of request
    ops : in, BackgroundOps
        The engines' ops, and what is behind them.
    hot : in
        The request finds its page among the hot ones.
    hold : in
        Nothing is admitted.
    credits : in
        Free places downstream, as registers have them: see :func:`credits_layout`.
    credits_ahead : in
        What `credits` will be in the next cycle; of it `data`, `score` and `queue` are asked.
    good : in
        The request goes to memory, as far as its own fields tell; only then it looks at a page
        word.
    refuses : in
        With `config.protect`: M3 refuses what enters from now on, for good, so that a cold request
        needs no credit of a miss. What is behind it, a register access, does not wait for a miss
        buffer whose memory has failed.
    o : out, Admission
        What enters.
    """

    LATENCY = 0
    INTERVAL = 1
    PATIENCE = 7
    BESIDE_CHOICE = 10  #: hits are to have 0.9 of the cycles beside a choice, or more
    SURPLUS = 16  #: first lines of 16 page-sequential streams pass in one burst

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = Layouts(config)
        # An event log that always takes events leaves nothing of its credit.
        super().__init__(
            {
                "i_request": In(stream.Signature(layouts.request)),
                "ops": In(BackgroundOps(config)),
                "hot": In(1),
                "good": In(1),
                "hold": In(1),
                **({"refuses": In(1)} if config.protect else {}),
                "credits": In(credits_layout(), init={"event": 1}),
                "credits_ahead": In(credits_layout()),
                "o": Out(Admission(config)),
            }
        )
        # Background's claim to one slot in eight; proofs look at it
        # (kelp_verif.formal.arbiter_spec).
        self.claim = Signal(range(-self.SURPLUS, self.PATIENCE + 1))
        #: Which background op would go, one bit at most, and whether it needs the frame stage.
        self.pick, self.pick_frame = Signal(len(BACKGROUND)), Signal()
        #: Of hints and evictions, a hint went last; of these and control, a control op.
        self.hinted, self.controlled = Signal(), Signal()

    def elaborate(self, platform):
        m = Module()
        request, credits, ahead = self.i_request.p, self.credits, self.credits_ahead
        streams = [getattr(self.ops, name) for name in BACKGROUND]
        pick, pick_frame = self.pick, self.pick_frame
        control, hint, evict = (BACKGROUND.index(name) for name in ("control", "hint", "evict"))
        kinds_of = kinds(self.config)

        def one_of(name, kind, ops):
            """Whether the stream's op is one of these; of the two sets, the smaller one is looked
            for."""
            found = Signal()
            these, others = (
                [k for k in kinds_of[name] if (k in ops) == wanted] for wanted in (True, False)
            )
            with m.Switch(kind):
                with m.Case(*min(these, others, key=len)):
                    m.d.comb += found.eq(len(these) <= len(others))
                with m.Default():
                    m.d.comb += found.eq(len(these) > len(others))
            return found

        def able(name, valid, kind):
            """Whether an op that stands at the stream in the next cycle has its credits then, and
            whether it uses the frame stage."""
            uses = [one_of(name, kind, ops) for ops in (_FRAME_OPS, _QUEUE_OPS, _SCORE_OPS)]
            return valid & (Cat(ahead.data, ahead.queue, ahead.score) | ~Cat(uses)).all(), uses[0]

        def first(ops, hinted, controlled):
            """The first that is able, and whether that one uses the frame stage. Hints yield to
            evictions where they went last, and control ops to both."""
            here = [able for able, _ in ops]
            here[control] = here[control] & ~(controlled & (here[hint] | here[evict]))
            here[hint] = here[hint] & ~(hinted & here[evict])
            chosen = Cat(able & ~Cat(here[:i]).any() for i, able in enumerate(here))
            return Cat(chosen, (chosen & Cat(uses_frame for _, uses_frame in ops)).any())

        # The next pick is made for both cases, before it is known whether the present one goes.
        # Only PREFETCH needs what `miss` and `miss_id` stand for, and is last: it is picked
        # without, and waits here without keeping anyone waiting.
        standing = [
            able(name, s.valid, s.p.kind) for name, s in zip(BACKGROUND, streams, strict=True)
        ]
        behind = [
            able(name, self.ops.behind[i].valid, self.ops.behind[i].kind)
            for i, name in enumerate(BACKGROUND)
        ]
        after = [
            tuple(
                Mux(pick[i], of_next, of_now)
                for of_next, of_now in zip(behind[i], standing[i], strict=True)
            )
            for i in range(len(BACKGROUND))
        ]
        if_stays, if_goes, background, then = (
            Signal(len(BACKGROUND) + 1),
            Signal(len(BACKGROUND) + 1),
            Signal(),
            Signal(2),
        )
        turns = Cat(self.hinted, self.controlled)
        m.d.comb += [
            then[0].eq(pick[hint] | (self.hinted & ~pick[evict])),
            then[1].eq(pick[control] | (self.controlled & ~(pick[hint] | pick[evict]))),
            if_stays.eq(first(standing, *turns)),
            if_goes.eq(first(after, *then)),
        ]
        m.d.sync += Cat(pick, pick_frame).eq(Mux(background, if_goes, if_stays))
        with m.If(background):
            m.d.sync += turns.eq(then)
        any_able, prefetch = Signal(), pick[BACKGROUND.index("prefetch")]
        m.d.comb += any_able.eq(
            pick.any() & credits.event & (credits.miss & credits.miss_id | ~prefetch) & ~self.hold
        )
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.request, s.credits, s.streams, s.pick = request, credits, streams, pick
        s.pick_frame, s.one_of, s.background, s.any_able = pick_frame, one_of, background, any_able
        self._turn(m, s)
        return m

    def _turn(self, m: Module, s: SimpleNamespace) -> None:
        """Whose turn it is: a request's or a background op's."""
        any_able, credits, pick_frame = s.any_able, s.credits, s.pick_frame
        background, streams, pick, request = s.background, s.streams, s.pick, s.request
        one_of = s.one_of
        # The claim rises with every cycle lost and falls by seven with one won, not below -SURPLUS:
        # what was won in quiet cycles lets a burst of requests through.
        claim = self.claim
        urgent = Signal()
        m.d.comb += urgent.eq(any_able & (claim == self.PATIENCE))
        all_credits = Signal()
        needed = credits
        if self.config.protect:
            needed = Signal.like(credits)
            m.d.comb += [
                needed.eq(credits),
                needed.miss.eq(credits.miss | self.refuses),
                needed.miss_id.eq(credits.miss_id | self.refuses),
            ]
        m.d.comb += all_credits.eq(needed.as_value().all())

        # A hot request yields only to an urgent op that needs the frame stage, a cold one to any
        # urgent op. Critical path: `hot`, so everything else is worked out for both its values.
        cold_able, hot_able, able_if_cold, takes_frame = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            hot_able.eq(self.i_request.valid & credits.data & ~self.hold & ~(urgent & pick_frame)),
            able_if_cold.eq(self.i_request.valid & all_credits & ~self.hold & ~urgent),
            self.o.hot.eq(self.hot & hot_able),
            cold_able.eq(~self.hot & able_if_cold),
            background.eq(any_able & Mux(self.hot, ~(hot_able & pick_frame), ~able_if_cold)),
            # a background op with the frame stage
            takes_frame.eq(any_able & pick_frame & Mux(self.hot, ~hot_able, ~able_if_cold)),
            self.i_request.ready.eq(self.o.hot | cold_able),
            Cat(s.ready for s in streams).eq(Mux(background, pick, 0)),
        ]
        spent = Mux(claim < self.PATIENCE - self.SURPLUS, -self.SURPLUS, claim - self.PATIENCE)
        if self.config.select:
            spent = self._of_choice(m, s, spent)
        with m.If(background):
            m.d.sync += claim.eq(spent)
        with m.Elif(any_able & ~urgent):
            m.d.sync += claim.eq(claim + 1)

        # The op that enters: both parts, whichever stream it is of.
        entering = self.o.op
        m.d.comb += [entering.cold.eq(cold_able), entering.takes_frame.eq(takes_frame)]
        fields = _FIELDS
        if self.config.select:
            fields = fields | {"hint": (*fields["hint"], *_LOOK_FIELDS)}
        m.d.comb += [
            Value.cast(entering.request[field]).eq(Value.cast(request[field]))
            for field in entering.request.shape().members
        ]
        for field in entering.behind.shape().members:
            terms = [
                (pick[i], s.p[field])
                for i, s in enumerate(streams)
                if field == "kind" or field in fields[BACKGROUND[i]]
            ]
            m.d.comb += Value.cast(entering.behind[field]).eq(_select(terms))

        wordless, session_op, takes = (Signal(len(streams)) for _ in range(3))
        for i, (name, s) in enumerate(zip(BACKGROUND, streams, strict=True)):
            m.d.comb += [
                found[i].eq(one_of(name, s.p.kind, ops))
                for found, ops in (
                    (wordless, _WORDLESS),
                    (session_op, _SESSION_OPS),
                    (takes, _MISS_OPS),
                )
            ]
        started = Signal()  # before the first clock edge inputs mean nothing
        m.d.sync += started.eq(1)
        for name, s in zip(BACKGROUND, streams, strict=True):
            m.d.sync += Assert(
                ~started
                | ~s.valid
                | Cat(s.p.kind == kind for kind in kinds(self.config)[name]).any()
            )
        m.d.comb += [
            self.o.valid.eq(cold_able | background),
            self.o.queue.eq(request.queue),
            self.o.reads.eq(Mux(background, ~(pick & wordless).any(), cold_able & self.good)),
            self.o.background.eq(background),
            self.o.takes.eq(Mux(background, (pick & takes).any(), cold_able)),
            self.o.session.eq(background & (pick & session_op).any()),
            self.o.frame_peek.eq(background & pick[BACKGROUND.index("evict")]),
        ]
        m.d.sync += [
            Assert((pick & (pick - 1)) == 0),
            Assert(~(self.o.hot & self.o.valid & (cold_able | pick_frame))),
            Assert(takes_frame == (background & pick_frame)),
        ]

    def _of_choice(self, m: Module, s: SimpleNamespace, spent: Value) -> Value:
        """The claim when an op goes, `spent` unless that op is of a choice."""
        hint, request = BACKGROUND.index("hint"), s.request
        op, lone, turns = s.streams[hint].p, Signal(), Signal()
        of_choice = s.pick[hint] & s.one_of("hint", op.kind, SELECT_KINDS)
        m.d.comb += [
            lone.eq(of_choice & ~self.i_request.valid),
            turns.eq(request.gathered & (request.session == op.session)),
        ]

        def less(cycles):
            floor = -self.SURPLUS
            return Mux(self.claim < floor + cycles, floor, self.claim - cycles)

        taken = Mux(turns, less(1), less(self.BESIDE_CHOICE))
        return Mux(lone, self.claim, Mux(of_choice, taken, spent))


def _select(terms) -> Value:
    """OR of the values whose condition, one at most, is set. ANDs, because a zero chosen by a
    multiplexer becomes a register's reset, a long wire away."""
    selected = Const(0)
    for condition, value in terms:
        chosen = Value.cast(value)
        selected = selected | (chosen & condition.replicate(len(chosen)))
    return selected
