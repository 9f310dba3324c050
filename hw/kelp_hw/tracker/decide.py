# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""M3: what one op does, given its page word, its session and its pool (docs/design.md §3).
Combinational: one op a cycle."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.formats import Format
from kelp_spec.metadata import (
    STEP_BITS,
    Answer,
    Event,
    MissKind,
    Op,
    Outcome,
    PageState,
    ScoreEvent,
    ops_of,
)
from kelp_spec.policy import Policy

from ..layouts import POOL_BITS, Layouts, code_shape, is_pinned

__all__ = ["Decide", "allocating", "context_layout", "frame_of", "strobes_layout"]


def context_layout(config: Config) -> data.StructLayout:
    """What M3 knows of an op besides its word.

    `kinds`: bit k, the op is there and of kind k; `asks`: it is a request that is not refused and
    wants memory; `states`: bit s, its word's state is s, LOST when the word is uncorrectable;
    `own_frame`, `pool_frame`, `allocates`: the op names a frame itself, takes its pool's next one
    (:func:`frame_of`), or asks to write, and takes it if its page has none; `grants`: it is a GRANT
    that has not failed. These are known from registers, where `op` and `word` would have to be
    decoded first. `valid`; `event`: the op is a request and refused; `is_open`, `usable` (open and
    not closing), `step`: its session; `format_k`, `format_v`, `policy`: its queue's; `frame_peek`:
    PEEK is of a frame; `can_*`, `frame`: its pool (`kelp_hw.tracker.pools`); `miss`, `empty`: the
    next free miss id, and whether no request is parked on `op.miss` (`kelp_hw.tracker.miss_ids`);
    `corrected`, `uncorrected`: of the word.
    """
    return data.StructLayout(
        {
            "valid": 1,
            "event": code_shape(Event),
            "is_open": 1,
            "usable": 1,
            "step": STEP_BITS,
            "format_k": code_shape(Format),
            "format_v": code_shape(Format),
            "pool": POOL_BITS,
            "policy": code_shape(Policy),
            "frame_peek": 1,
            "can_pop": 1,
            "can_take": 1,
            "can_prefetch": 1,
            "can_pin": 1,
            "frame": config.frame_bits,
            "miss": config.miss_bits,
            "empty": 1,
            "corrected": 1,
            "uncorrected": 1,
            "kinds": len(ops_of(config)),
            "asks": 1,
            "states": len(PageState),
            **dict.fromkeys(("own_frame", "pool_frame", "allocates", "grants"), 1),
        }
    )


def strobes_layout() -> data.StructLayout:
    """What an op does to the registers at M3: pools, miss ids, sessions, hot pages; `write`: the
    page word is written."""
    return data.StructLayout(
        dict.fromkeys(
            (
                "write",
                "pop",
                "push",
                "wait",
                "unwait",
                "want",
                "pin",
                "unpin",
                "take",
                "parked",
                "park",
                "unpark",
                "open",
                "close",
                "closed",
                "step",
                "keep",
                "drop",
                "drop_session",
            ),
            1,
        )
    )


#: Ops that name a frame themselves, and ops that take their pool's next one; a write that allocates
#: takes it, too, and all others mean the word's.
_OP_FRAME = (Op.FILL, Op.REPLAY, Op.FLIP, Op.RELEASE, Op.FREE, Op.PEEK, Op.RECOVER)
_POOL_FRAME = (Op.GRANT, Op.PREFETCH)


def allocating(config: Config, op) -> Value:
    """Whether a request gives its page a frame where it has none: a write does, and, with
    `Config.coherence`, a read for ownership, which is a READ with `partial`."""
    return op.write | op.partial if config.coherence else op.write


def frame_of(kind, asks, write) -> dict:
    """`own_frame`, `pool_frame` and `allocates` of an op's kind, of what :func:`context_layout`
    calls `asks`, and of whether it is `allocating`."""
    own, pool = (Cat(kind == k for k in kinds).any() for kinds in (_OP_FRAME, _POOL_FRAME))
    return {"own_frame": own, "pool_frame": pool, "allocates": asks & write}


@dataclass(frozen=True)
class _Known:
    """What is known of an op's word, and what becomes of it."""

    state: dict  #: PageState → bit
    here: Value  #: the page has a frame
    nowhere: Value  #: no frame, no flash page
    under: Value  #: its word waits under the op's miss entry
    touched: Value  #: not yet accessed in the session's step
    changed: Signal  #: the word is written
    old: data.View  #: the word as the op found it
    new: data.View  #: and leaves it


def _bit(word, bit: int) -> Value:
    """Who protects a word's page: 0, the host; 1, a slot, where there are slots."""
    if len(word.pinned) > 1:
        return word.pinned[bit]
    return Const(0) if bit else word.pinned


class Decide(wiring.Component):
    """The op table of docs/design.md §3 (spec §4). Combinational (`LATENCY` 0), an op in each cycle
    (`INTERVAL`).

    `result.op` is the op with `refused` replaced by the Event of a refusal (READ, WRITE, PIN,
    OPEN). `result.old` is the word as the op found it: LOST with everything else zero when it was
    uncorrectable. `result.first`: the op is an access. `result.frame`: the frame that the op took,
    gave back, or uses. `found_frame` is that of an op that names none itself. `frame_op_valid` is
    set for every request and for every op that takes the cycle at M0, whatever its outcome.
    `score_valid`: see docs/design.md §7.

    `failed` GRANT, REPLAY and FLIP belong to an entry that gets no frame: GRANT ends its wait,
    REPLAY answers poison or Cmp, FLIP makes the page COLD again, or LOST when a write was dropped.

    PIN and UNPIN of an ABSENT or LOST page, of a page pinned or unpinned already, and in a session
    that is not usable change nothing. A pin counts until UNPIN, SCRUB or the loss of the word.

    With `config.select` a slot is a second bit of `pinned`: HOLD sets it for a RESIDENT page,
    UNHOLD clears it, and a page that both protect counts once. LOOK reads a line of a RESIDENT page
    and changes nothing. Of any other page, and in a session that is not usable, all three are VOID.

    Parameters
    ----------
    config : Config

    Members
    -------
    op : in
        The op at M3.
    word : in
        Its page word, as it was read.
    context : in
        See :func:`context_layout`.
    result : out
        What becomes of the op; defined when `context.valid`.
    found_frame : out
        Frame of an op that names none itself.
    strobes : out
        See :func:`strobes_layout`.
    frame_op : out, always-ready stream of frame_op
        Lacks what depends on the session's shape (`used_lines`, `k_only`, `host_type`).
    score : out, always-ready stream of score_event
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        self.layouts = layouts = Layouts(config)
        super().__init__(
            {
                "op": In(layouts.op),
                "word": In(layouts.page_word),
                "context": In(context_layout(config)),
                "result": Out(layouts.result),
                "found_frame": Out(config.frame_bits),
                "strobes": Out(strobes_layout()),
                "frame_op": Out(stream.Signature(layouts.frame_op, always_ready=True)),
                "score": Out(stream.Signature(layouts.score_event, always_ready=True)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        op, x = self.op, self.context

        # An uncorrectable word counts as LOST, its other fields as zero. Only the new word is made
        # from `old`; all else goes by `states`, because of a LOST word it reads the state alone.
        read, old, new = self.word, Signal(self.layouts.page_word), Signal(self.layouts.page_word)
        m.d.comb += old.eq(read)
        with m.If(x.uncorrected):
            m.d.comb += [old.eq(0), old.state.eq(PageState.LOST)]
        state = {s: x.states[s] for s in PageState}
        here = state[PageState.RESIDENT] | state[PageState.WRITING_BACK]
        nowhere = state[PageState.ABSENT] | state[PageState.LOST]
        changed, touched, demand, under = Signal(), Signal(), Signal(), Signal()
        # A FETCHING word's place is a miss id, and no more.
        m.d.comb += under.eq(state[PageState.FETCHING] & (read.place[: len(op.miss)] == op.miss))
        m.d.comb += [
            touched.eq(read.last_step != x.step),
            demand.eq((op.kind == Op.READ) | (op.kind == Op.WRITE) | (op.kind == Op.REPLAY)),
        ]

        k = _Known(state, here, nowhere, under, touched, changed, old, new)
        self._pass_on(m, k, demand)
        self._strobes(m, state, here, nowhere, under)
        # Critical path: the frame addresses the frame table in this cycle, so it is chosen without
        # the outcome.
        m.d.comb += [
            self.found_frame.eq(Mux(x.pool_frame | (x.allocates & nowhere), x.frame, read.place)),
            self.result.frame.eq(Mux(x.own_frame, op.frame, self.found_frame)),
        ]

        with m.If(x.valid):
            with m.Switch(op.kind):
                self._requests(m, k)
                self._miss_ops(m, k)
                self._eviction_ops(m, k)
                self._hints(m, k)
                if self.config.select:
                    self._slots(m, k)
                self._session_ops(m)
                self._repairs(m, k)
        self._check(m, k)
        return m

    def _pass_on(self, m, k, demand):
        """What is the same for every kind of op, or stands where an op says nothing else."""
        op, x, result, frame_op, score, strobes, read = (
            self.op,
            self.context,
            self.result,
            self.frame_op.p,
            self.score.p,
            self.strobes,
            self.word,
        )
        m.d.comb += [
            k.new.eq(k.old),
            result.op.eq(op),
            result.old.eq(k.old),
            result.word.eq(k.new),
            result.changed.eq(k.changed | x.uncorrected),
            result.corrected.eq(x.corrected),
            result.uncorrected.eq(x.uncorrected),
            result.pool.eq(x.pool),
            result.policy.eq(x.policy),
            result.miss.eq(op.miss),
            frame_op.kind.eq(op.kind),
            frame_op.outcome.eq(result.outcome),
            frame_op.frame.eq(result.frame),
            frame_op.pool.eq(x.pool),
            frame_op.squeue.eq(op.squeue),
            frame_op.page.eq(op.page),
            frame_op.kv_line.eq(op.kv_line),
            # A page whose word was lost while it was fetched no longer knows its formats; they are
            # still the queue's.
            frame_op.format_k.eq(Mux(k.nowhere, x.format_k, read.format_k)),
            frame_op.format_v.eq(Mux(k.nowhere, x.format_v, read.format_v)),
            frame_op.write.eq(op.write & demand),
            frame_op.has_write.eq(op.has_write & demand),
            frame_op.write_slot.eq(op.write_slot),
            frame_op.partial.eq(op.partial),
            frame_op.poison.eq(op.poison),
            frame_op.origin.eq(op.origin),
            frame_op.source.eq(op.source),
            frame_op.miss.eq(op.miss),
            frame_op.slot.eq(op.slot),
            score.squeue.eq(op.squeue),
            score.page.eq(op.page),
            score.gap.eq(x.step - read.last_step),
            score.mass.eq(op.mass),
            score.slot.eq(op.slot),
            score.session.eq(op.session),
            score.step.eq(x.step),
            score.scan.eq(k.old),
            strobes.write.eq(x.valid & (k.changed | x.corrected | x.uncorrected)),
        ]

    def _outcome(self, value):
        return self.result.outcome.eq(value)

    def _scored(self, kind):
        return [self.score.p.kind.eq(kind), self.score.valid.eq(1)]

    def _fetch(self, k):
        """The page waits under a new miss entry."""
        x = self.context
        return [
            k.changed.eq(1),
            k.new.state.eq(PageState.FETCHING),
            k.new.place.eq(x.miss),
            self.result.miss.eq(x.miss),
            self._outcome(Outcome.MISSED),
        ]

    def _requests(self, m, k):
        """READ and WRITE."""
        op, x, result, frame_op = self.op, self.context, self.result, self.frame_op.p
        with m.Case(Op.READ, Op.WRITE):
            m.d.comb += self.frame_op.valid.eq(1)
            with m.If(x.event != Event.NONE):
                m.d.comb += [
                    self._outcome(Outcome.REFUSED),
                    result.op.refused.eq(x.event),
                    frame_op.answer.eq(
                        Mux(
                            op.write | op.no_memory | (x.event == Event.UNKNOWN_OPCODE),
                            Answer.CMP,
                            Answer.NXM,
                        )
                    ),
                ]
            with m.Elif(op.no_memory):
                m.d.comb += frame_op.answer.eq(Answer.CMP)
            with m.Else():
                self._demand(m, k)

    def _miss_ops(self, m, k):
        """Ops of the miss buffer."""
        op, x, result, frame_op = self.op, self.context, self.result, self.frame_op.p
        with m.Case(Op.GRANT):
            m.d.comb += result.pool.eq(op.pool)
            with m.If(~op.failed & ~x.can_pop):
                m.d.comb += self._outcome(Outcome.RETRY)
        with m.Case(Op.FILL):
            m.d.comb += [
                self.frame_op.valid.eq(1),
                frame_op.use.eq(1),
                frame_op.init.eq(1),
                frame_op.lost.eq(op.lost),
                frame_op.failed.eq(op.failed),
            ]
        with m.Case(Op.REPLAY):
            m.d.comb += [self.frame_op.valid.eq(1), frame_op.use.eq(~op.failed)]
            with m.If(op.failed):
                m.d.comb += frame_op.answer.eq(Mux(op.write, Answer.CMP, Answer.POISON))
        with m.Case(Op.FLIP):
            m.d.comb += [self.frame_op.valid.eq(1)]
            with m.If(~x.empty):
                m.d.comb += self._outcome(Outcome.RETRY)
            with m.Elif(~k.under):
                m.d.comb += [
                    self._outcome(Mux(op.failed, Outcome.VOID, Outcome.ORPHAN)),
                    frame_op.use.eq(~op.failed),
                ]
            with m.Elif(~op.failed):
                m.d.comb += [
                    k.changed.eq(1),
                    k.new.state.eq(PageState.RESIDENT),
                    k.new.place.eq(op.frame),
                ]
            with m.Elif(op.lost | (op.miss_kind == MissKind.ALLOCATE)):
                m.d.comb += [k.changed.eq(1), k.new.eq(0), k.new.state.eq(PageState.LOST)]
            with m.Else():
                m.d.comb += [k.changed.eq(1), k.new.state.eq(PageState.COLD), k.new.place.eq(0)]

    def _eviction_ops(self, m, k):
        """Ops of a sweep and of a write-back."""
        op, x, result, frame_op, read = (
            self.op,
            self.context,
            self.result,
            self.frame_op.p,
            self.word,
        )
        with m.Case(Op.SCAN):
            m.d.comb += self._scored(ScoreEvent.SCAN)
        with m.Case(Op.CLAIM):
            m.d.comb += self.frame_op.valid.eq(1)
            with m.If(
                k.state[PageState.RESIDENT] & ~is_pinned(read) & (read.last_step == op.delta)
            ):
                m.d.comb += [
                    k.changed.eq(1),
                    k.new.state.eq(PageState.WRITING_BACK),
                    frame_op.use.eq(1),
                ]
            with m.Else():
                m.d.comb += self._outcome(Outcome.VOID)
        with m.Case(Op.RELEASE):
            m.d.comb += [
                self.frame_op.valid.eq(1),
                frame_op.use.eq(1),
                frame_op.failed.eq(op.failed),
            ]
            with m.If(~k.state[PageState.WRITING_BACK]):
                m.d.comb += self._outcome(Outcome.VOID)
            with m.Elif(op.failed):
                m.d.comb += [k.changed.eq(1), k.new.state.eq(PageState.RESIDENT)]
            with m.Else():
                # The step stays in the word, so that a miss soon after can be counted against
                # this eviction.
                m.d.comb += [
                    k.changed.eq(1),
                    k.new.state.eq(PageState.COLD),
                    k.new.place.eq(x.step),
                ]
        with m.Case(Op.FREE):
            m.d.comb += [
                result.pool.eq(op.pool),
                frame_op.pool.eq(op.pool),
                self.frame_op.valid.eq(1),
                frame_op.use.eq(1),
            ]

    def _hints(self, m, k):
        """What a hint or the prefetcher asks for."""
        x, result, read = self.context, self.result, self.word
        with m.Case(Op.PREFETCH):
            with m.If(x.usable & k.state[PageState.COLD] & x.can_prefetch):
                m.d.comb += self._fetch(k)
            with m.Else():
                m.d.comb += self._outcome(Outcome.DROPPED)
        with m.Case(Op.MASS):
            with m.If(x.usable & ~k.nowhere):
                m.d.comb += self._scored(ScoreEvent.MASS)
            with m.Else():
                m.d.comb += self._outcome(Outcome.VOID)
        with m.Case(Op.PIN):
            with m.If(~x.usable | k.nowhere):
                m.d.comb += self._outcome(Outcome.VOID)
            with m.Elif(~_bit(read, 0)):
                with m.If(x.can_pin | read.pinned[1] if self.config.select else x.can_pin):
                    m.d.comb += [k.changed.eq(1), _bit(k.new, 0).eq(1)]
                with m.Else():
                    m.d.comb += [
                        self._outcome(Outcome.REFUSED),
                        result.op.refused.eq(Event.PIN_REFUSED),
                    ]
        with m.Case(Op.UNPIN):
            with m.If(~x.usable | k.nowhere):
                m.d.comb += self._outcome(Outcome.VOID)
            with m.Elif(_bit(read, 0)):
                m.d.comb += [k.changed.eq(1), _bit(k.new, 0).eq(0)]

    def _slots(self, m, k):
        """What a choice of pages asks for."""
        x, read, frame_op = self.context, self.word, self.frame_op.p
        resident = x.usable & k.state[PageState.RESIDENT]
        with m.Case(Op.LOOK):
            m.d.comb += [self.frame_op.valid.eq(1), frame_op.use.eq(resident)]
            with m.If(~resident):
                m.d.comb += self._outcome(Outcome.VOID)
        with m.Case(Op.HOLD):
            with m.If(~resident):
                m.d.comb += self._outcome(Outcome.VOID)
            with m.Elif(~is_pinned(read) & ~x.can_pin):
                m.d.comb += self._outcome(Outcome.REFUSED)
            with m.Else():
                m.d.comb += [k.changed.eq(~_bit(read, 1)), _bit(k.new, 1).eq(1)]
        with m.Case(Op.UNHOLD):
            with m.If(~x.usable | k.nowhere | ~_bit(read, 1)):
                m.d.comb += self._outcome(Outcome.VOID)
            with m.Else():
                m.d.comb += [k.changed.eq(1), _bit(k.new, 1).eq(0)]

    def _session_ops(self, m):
        """Ops that change a session."""
        x, result = self.context, self.result
        with m.Case(Op.STEP):
            m.d.comb += self._outcome(Mux(x.is_open, Outcome.DONE, Outcome.VOID))
        with m.Case(Op.OPEN):
            with m.If(x.is_open):
                m.d.comb += [
                    self._outcome(Outcome.REFUSED),
                    result.op.refused.eq(Event.OPEN_REFUSED),
                ]
        with m.Case(Op.CLOSE):
            m.d.comb += self._outcome(Mux(x.is_open, Outcome.DONE, Outcome.VOID))

    def _repairs(self, m, k):
        """Ops of the closer and of the owner walk."""
        op, x, frame_op, read = self.op, self.context, self.frame_op.p, self.word
        with m.Case(Op.SCRUB):
            m.d.comb += [self.frame_op.valid.eq(1), *self._scored(ScoreEvent.SCRUB)]
            with m.If(k.state[PageState.FETCHING] | k.state[PageState.WRITING_BACK]):
                m.d.comb += self._outcome(Outcome.RETRY)
            with m.Elif(~k.state[PageState.ABSENT]):
                m.d.comb += [
                    k.changed.eq(1),
                    k.new.eq(0),
                    frame_op.use.eq(k.state[PageState.RESIDENT]),
                ]
        with m.Case(Op.PEEK):
            m.d.comb += [self.frame_op.valid.eq(1), frame_op.use.eq(x.frame_peek)]
        with m.Case(Op.RECOVER):
            m.d.comb += [self.frame_op.valid.eq(1)]
            with m.If(k.state[PageState.FETCHING]):
                m.d.comb += self._outcome(Outcome.RETRY)
            with m.Elif(k.here & (read.place == op.frame)):
                m.d.comb += self._outcome(Outcome.VOID)
            with m.Else():
                m.d.comb += [self._outcome(Outcome.ORPHAN), frame_op.use.eq(1)]

    def _check(self, m, k):
        """What the driver of `context` promises, and what no op may do."""
        op, x, strobes = self.op, self.context, self.strobes
        m.d.sync += [
            Assert(strobes.pop + strobes.push <= 1),
            Assert(~(x.valid & x.corrected & x.uncorrected)),
            Assert(~x.valid | (Cat(k.old.state == s for s in PageState) == x.states)),
            Assert(x.kinds == Mux(x.valid, 1 << op.kind, 0)),
            Assert(x.grants == (x.kinds[Op.GRANT] & ~op.failed)),
            *(
                Assert(~x.valid | (x[name] == value))
                for name, value in frame_of(op.kind, x.asks, allocating(self.config, op)).items()
            ),
            Assert(
                x.asks
                == (
                    x.valid
                    & ((op.kind == Op.READ) | (op.kind == Op.WRITE))
                    & (x.event == Event.NONE)
                    & ~op.no_memory
                )
            ),
        ]

    def _strobes(self, m, state, here, nowhere, under):
        """The strobes of the registers at M3, each as one sum of products beside the op table: it
        has to reach them, and change them, in the same cycle."""
        op, x, strobes, read = self.op, self.context, self.strobes, self.word
        is_op, demand = {kind: x.kinds[kind] for kind in ops_of(self.config)}, x.asks
        pins, unpins = is_op[Op.PIN], is_op[Op.UNPIN]
        if self.config.select:
            # One protection counts, whoever asks for it: of a page that had none, and of the last.
            pins = pins | (is_op[Op.HOLD] & state[PageState.RESIDENT])
            unpins = (unpins & ~_bit(read, 1)) | (is_op[Op.UNHOLD] & (read.pinned == 0b10))
        fits, prefetch, scrub = Signal(), Signal(), Signal()
        cold, fetching, writing_back = (
            state[PageState.COLD],
            state[PageState.FETCHING],
            state[PageState.WRITING_BACK],
        )
        usable = x.usable & ~nowhere
        m.d.comb += [
            fits.eq(x.allocates & nowhere & x.can_take),
            prefetch.eq(is_op[Op.PREFETCH] & x.usable & cold & x.can_prefetch),
            scrub.eq(is_op[Op.SCRUB] & ~(fetching | writing_back | state[PageState.ABSENT])),
            strobes.pop.eq((x.grants & x.can_pop) | fits | prefetch),
            strobes.push.eq((is_op[Op.RELEASE] & writing_back & ~op.failed) | is_op[Op.FREE]),
            strobes.wait.eq((demand & cold) | (x.allocates & nowhere & ~x.can_take)),
            strobes.unwait.eq(is_op[Op.GRANT] & (op.failed | x.can_pop)),
            # What is free in the next cycle does not depend on whether a frame was free for an op
            # that wants one: it is taken, or waited for.
            strobes.want.eq(
                (x.grants & x.can_pop) | (x.allocates & nowhere) | prefetch | (demand & cold)
            ),
            strobes.take.eq(strobes.wait | prefetch),
            strobes.parked.eq(strobes.wait),
            strobes.park.eq(demand & fetching),
            strobes.unpark.eq(is_op[Op.REPLAY]),
            strobes.pin.eq(pins & usable & ~is_pinned(read) & x.can_pin),
            # A word that is gone takes its pin along, as far as that can still be read, and its
            # place among the hot pages.
            strobes.unpin.eq(
                is_pinned(read)
                & (
                    (x.valid & x.uncorrected)
                    | (unpins & usable)
                    | scrub
                    | (
                        is_op[Op.FLIP]
                        & x.empty
                        & under
                        & op.failed
                        & (op.lost | (op.miss_kind == MissKind.ALLOCATE))
                    )
                )
            ),
            # A page may leave the hot ones for nothing, and need not come there with its first
            # write: its next request keeps it. So neither waits for more of the word than its
            # state.
            strobes.keep.eq((demand & here) | (x.allocates & state[PageState.ABSENT] & x.can_take)),
            strobes.drop.eq(is_op[Op.CLAIM] | is_op[Op.SCRUB] | (x.valid & x.uncorrected)),
            strobes.drop_session.eq(is_op[Op.STEP] | is_op[Op.CLOSE]),
            strobes.step.eq(is_op[Op.STEP] & x.is_open),
            strobes.open.eq(is_op[Op.OPEN] & ~x.is_open),
            strobes.close.eq(is_op[Op.CLOSE] & x.is_open),
            strobes.closed.eq(is_op[Op.CLOSED]),
        ]

    def _demand(self, m, k):
        """A request that is not refused, by the state of its page."""
        op, x, result, frame_op = self.op, self.context, self.result, self.frame_op.p
        with m.If(k.here | k.state[PageState.FETCHING] | k.state[PageState.COLD]):
            m.d.comb += [result.first.eq(k.touched), k.new.last_step.eq(x.step)]
            with m.If(k.touched):
                m.d.comb += self._scored(ScoreEvent.TOUCH)
        with m.If(k.here):
            m.d.comb += [
                self._outcome(Outcome.HIT),
                frame_op.use.eq(1),
                k.changed.eq(k.touched | k.state[PageState.WRITING_BACK]),
                k.new.state.eq(PageState.RESIDENT),
            ]
        with m.Elif(k.state[PageState.FETCHING]):
            m.d.comb += [
                self._outcome(Outcome.PARKED),
                k.changed.eq(k.touched),
                result.miss.eq(self.word.place),
            ]
        with m.Elif(k.state[PageState.COLD]):
            m.d.comb += self._fetch(k)
        with m.Elif(allocating(self.config, op)):
            m.d.comb += [
                k.changed.eq(1),
                result.first.eq(1),
                self._scored(ScoreEvent.INIT),
                k.new.format_k.eq(x.format_k),
                k.new.format_v.eq(x.format_v),
                k.new.last_step.eq(x.step),
            ]
            with m.If(x.can_take):
                m.d.comb += [
                    self._outcome(Outcome.ALLOCATED),
                    k.new.state.eq(PageState.RESIDENT),
                    k.new.place.eq(x.frame),
                    frame_op.use.eq(1),
                    frame_op.init.eq(1),
                    frame_op.lost.eq(k.state[PageState.LOST]),
                ]
            with m.Else():
                m.d.comb += self._fetch(k)
        with m.Elif(k.state[PageState.LOST]):
            m.d.comb += [self._outcome(Outcome.POISON), frame_op.answer.eq(Answer.POISON)]
        with m.Else():
            m.d.comb += [self._outcome(Outcome.ZERO), frame_op.answer.eq(Answer.ZEROS)]
