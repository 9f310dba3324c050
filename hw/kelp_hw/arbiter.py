# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""M0: which request and which background op enter the tracker pipeline in a cycle (docs/design.md §1)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Op

from .layouts import Layouts

__all__ = ["BACKGROUND", "KINDS", "Arbiter", "credits_layout"]

#: Background streams, first to last, and the ops that each may carry.
KINDS = {
    "miss": (Op.GRANT, Op.FILL, Op.REPLAY, Op.FLIP),
    "control": (Op.STEP, Op.OPEN, Op.CLOSE, Op.PEEK),
    "hint": (Op.MASS, Op.PIN, Op.UNPIN, Op.STEP),
    "evict": (Op.SCAN, Op.CLAIM, Op.RELEASE, Op.FREE, Op.SCRUB, Op.PEEK, Op.RECOVER, Op.CLOSED),
    "prefetch": (Op.PREFETCH,),
}
BACKGROUND = tuple(KINDS)

_SESSION_OPS = (Op.STEP, Op.OPEN, Op.CLOSE, Op.CLOSED)
_FRAME_OPS = (Op.FILL, Op.REPLAY, Op.FLIP, Op.CLAIM, Op.RELEASE, Op.FREE, Op.SCRUB, Op.RECOVER, Op.PEEK)
_QUEUE_OPS = (Op.FLIP, Op.CLAIM, Op.RELEASE, Op.SCRUB)
_SCORE_OPS = (Op.SCAN, Op.MASS)
_MISS_OPS = (Op.PREFETCH,)
_WORDLESS = (Op.GRANT, Op.FREE, *_SESSION_OPS)

#: The fields that ops of a stream use; the others are zero in the pipeline, which keeps the multiplexer small.
_ORIGIN = ("kv_line", "write", "partial", "poison", "has_write", "write_slot", "origin")
_FIELDS = {
    "miss": (*_ORIGIN, "session", "squeue", "page", "miss", "pool", "frame", "failed", "miss_kind", "lost", "source", "slot"),
    "control": ("session", "squeue", "page", "delta"),
    "hint": ("session", "squeue", "page", "mass", "delta"),
    "evict": ("session", "squeue", "page", "pool", "frame", "failed", "slot", "mass", "delta", "written"),
    "prefetch": ("session", "squeue", "page", "source"),
}
_REQUEST = (*_ORIGIN, "session", "squeue", "page", "refused", "no_memory")


def credits_layout() -> data.StructLayout:
    """Each: at least RESERVE places free, or (`miss_id`) one more free miss id than ops on their way that may take one."""
    return data.StructLayout(dict.fromkeys(("data", "miss", "miss_id", "score", "queue", "event"), 1))


class Arbiter(wiring.Component):
    """Admits at most one request and one op a cycle, each only with the credits that cover its worst case. Combinational but for `claim`.

    A `hot` request needs only the frame stage, so an op that does not use that stage enters with it; every other request and every other op takes the
    cycle alone. A request goes first, unless background ops have had less than one in eight of the cycles in which they could have gone; what they had
    beyond that counts for up to `SURPLUS` cycles, so none waits longer than `PATIENCE` + `SURPLUS` for requests. Among the background streams the first
    in `BACKGROUND` that could go does. `hold` admits nothing.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_request, i_miss, i_control, i_hint, i_evict, i_prefetch : streams in
        The ops of a stream are of its `KINDS`.
    hot, hold, credits : in
    good : in
        The request goes to memory, as far as its own fields tell; only then it looks at a page word.
    o_hot : out
        The request enters by the hot lane.
    o_valid, o_op : out
        What enters the tracker lane.
    o_reads, o_takes, o_session, o_frame_peek, o_background : out
        The op looks at a page word; may take a miss id; changes a session; is a PEEK of a frame (one from the evictor); is no request.
    o_queue : out
        Queue within the session, of a request.
    """

    PATIENCE = 7
    SURPLUS = 16   #: first lines of 16 page-sequential streams pass in one burst

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = Layouts(config)
        super().__init__({
            "i_request": In(stream.Signature(layouts.request)),
            **{f"i_{name}": In(stream.Signature(layouts.op)) for name in BACKGROUND},
            "hot": In(1), "good": In(1), "hold": In(1), "credits": In(credits_layout()),
            "o_hot": Out(1), "o_valid": Out(1), "o_op": Out(layouts.op), "o_queue": Out(config.queue_bits),
            "o_reads": Out(1), "o_takes": Out(1), "o_session": Out(1), "o_frame_peek": Out(1), "o_background": Out(1),
        })
        # Background's claim to one slot in eight; proofs look at it (kelp_verif.arbiter_spec).
        self.claim = Signal(range(-self.SURPLUS, self.PATIENCE + 1))

    def elaborate(self, platform):
        m = Module()
        request, credits = self.i_request.p, self.credits

        def one_of(name, ops):
            """Whether the stream's op is one of these; of the two sets, the smaller one is looked for."""
            kind, found = getattr(self, f"i_{name}").p.kind, Signal()
            these, others = ([k for k in KINDS[name] if (k in ops) == wanted] for wanted in (True, False))
            with m.Switch(kind):
                with m.Case(*min(these, others, key=len)):
                    m.d.comb += found.eq(len(these) <= len(others))
                with m.Default():
                    m.d.comb += found.eq(len(these) > len(others))
            return found

        # Which background op would go, and whether it needs the frame stage.
        streams = [getattr(self, f"i_{name}") for name in BACKGROUND]
        able, uses_frame = Signal(len(streams)), Signal(len(streams))
        for i, s in enumerate(streams):
            name = BACKGROUND[i]
            m.d.comb += [
                uses_frame[i].eq(one_of(name, _FRAME_OPS)),
                able[i].eq(s.valid & credits.event & (credits.data | ~uses_frame[i]) & (credits.queue | ~one_of(name, _QUEUE_OPS)) &
                           (credits.score | ~one_of(name, _SCORE_OPS)) & (credits.miss_id & credits.miss | ~one_of(name, _MISS_OPS))),
            ]
        pick = Signal(len(streams))
        m.d.comb += pick.eq(Cat(able[i] & ~able[:i].any() for i in range(len(streams))))
        any_able, pick_frame = Signal(), Signal()
        m.d.comb += [any_able.eq(able.any() & ~self.hold), pick_frame.eq((pick & uses_frame).any())]

        # The claim rises with every cycle lost and falls by seven with one won, not below -SURPLUS: what was won in quiet cycles lets a burst of requests
        # through.
        claim = self.claim
        urgent = Signal()
        m.d.comb += urgent.eq(any_able & (claim == self.PATIENCE))
        all_credits = Signal()
        m.d.comb += all_credits.eq(credits.as_value().all())

        # A hot request yields only to an urgent op that needs the frame stage, a cold one to any urgent op.
        # `hot` comes late: everything else is ready when it arrives.
        cold_able, background, hot_able, able_if_cold, takes_frame = Signal(), Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            hot_able.eq(self.i_request.valid & credits.data & ~self.hold & ~(urgent & pick_frame)),
            able_if_cold.eq(self.i_request.valid & all_credits & ~self.hold & ~urgent),
            self.o_hot.eq(self.hot & hot_able),
            cold_able.eq(~self.hot & able_if_cold),
            background.eq(any_able & Mux(self.hot, ~(hot_able & pick_frame), ~able_if_cold)),
            takes_frame.eq(any_able & pick_frame & Mux(self.hot, ~hot_able, ~able_if_cold)),     # a background op with the frame stage
            self.i_request.ready.eq(self.o_hot | cold_able),
            Cat(s.ready for s in streams).eq(Mux(background, pick, 0)),
        ]
        with m.If(background):
            m.d.sync += claim.eq(Mux(claim < self.PATIENCE - self.SURPLUS, -self.SURPLUS, claim - self.PATIENCE))
        with m.Elif(any_able & ~urgent):
            m.d.sync += claim.eq(claim + 1)

        # The op that enters. Its request part belongs to the request of the cycle, if there is one, also when that is hot and goes beside the op.
        op = self.o_op
        # Which background op is known before whether it goes.
        for field in op.shape().members:
            if field in _ORIGIN:
                terms = [(~takes_frame, request), (takes_frame & pick[0], self.i_miss.p)]
            else:
                behind = _select([(pick[i], s.p) for i, s in enumerate(streams) if field in _FIELDS[BACKGROUND[i]]], field)
                terms = [(~cold_able, {field: behind}), *([(cold_able, request)] if field in _REQUEST else [])]
            if field != "kind":
                m.d.comb += Value.cast(op[field]).eq(_select(terms, field))
        behind = _select([(p, s.p.kind) for p, s in zip(pick, streams, strict=True)])
        m.d.comb += op.kind.eq(Mux(cold_able, Mux(request.write, Op.WRITE, Op.READ), behind))

        wordless, session_op, takes = (Signal(len(streams)) for _ in range(3))
        for i, name in enumerate(BACKGROUND):
            m.d.comb += [wordless[i].eq(one_of(name, _WORDLESS)), session_op[i].eq(one_of(name, _SESSION_OPS)), takes[i].eq(one_of(name, _MISS_OPS))]
        started = Signal()   # before the first clock edge inputs mean nothing
        m.d.sync += started.eq(1)
        for name, s in zip(BACKGROUND, streams, strict=True):
            m.d.sync += Assert(~started | ~s.valid | Cat(s.p.kind == kind for kind in KINDS[name]).any())
        m.d.comb += [
            self.o_valid.eq(cold_able | background),
            self.o_queue.eq(request.queue),
            self.o_reads.eq(Mux(background, ~(pick & wordless).any(), cold_able & self.good)),
            self.o_background.eq(background),
            self.o_takes.eq(Mux(background, (pick & takes).any(), cold_able)),
            self.o_session.eq(background & (pick & session_op).any()),
            self.o_frame_peek.eq(background & pick[BACKGROUND.index("evict")]),
        ]
        m.d.sync += [
            Assert((pick & (pick - 1)) == 0),
            Assert(~(self.o_hot & self.o_valid & (cold_able | pick_frame))),
            Assert(takes_frame == (background & pick_frame)),
        ]
        return m


def _select(terms, field=None) -> Value:
    """OR of the values whose condition, one at most, is set. ANDs, because a zero chosen by a multiplexer becomes a register's reset, a long wire away."""
    selected = Const(0)
    for condition, value in terms:
        chosen = Value.cast(value if field is None else value[field])
        selected = selected | (chosen & condition.replicate(len(chosen)))
    return selected
