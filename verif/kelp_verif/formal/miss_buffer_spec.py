# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The miss buffer's contract as a whole, for the solver: every parked request is answered once, in
order, in a stated number of cycles."""

from dataclasses import asdict

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Const, Cover, Module, Mux, Signal, Value
from amaranth.lib import wiring

from kelp_hw.miss.miss_buffer import MissBuffer
from kelp_spec.config import Config
from kelp_spec.metadata import MissKind, Op, Outcome, PageState

from .fifo_specs import SMALL
from .inside import Follow, total

__all__ = ["MissBufferContract"]


class _Tiny(Config):
    """Fewer entries and places than an endpoint can do with (`Config` refuses them); the buffer
    itself is as good with any number."""

    def __post_init__(self):
        pass


TINY = _Tiny(**dict(asdict(SMALL), misses=2, parked=8, half_lines=1))
_PAGE = ("session", "squeue", "page", "pool")


class MissBufferContract(wiring.Component):
    """From reset: up to `alive` pages at once miss, by demand or prefetch, and requests park on
    them, whenever M3 likes; M3 decides ops `STAGES` cycles after they leave; the cold tier answers
    when it likes, well or with failure; frames and time are what they are.

    Of an entry, any one: GRANT only for a demand, until M3 says DONE; FILL once, after the
    completion (of an ALLOCATE: after the GRANT), with the frame and the fate that came with them,
    and none if it starved; each request parked on it is REPLAYed once, in order, as it came, after
    FILL; FLIP is asked for after them. When M3 takes ops at once and no other entry is alive, a
    request of a page that has landed is replayed within `BOUND` cycles.
    """

    STAGES = 2
    #: A request parks in the cycle after its list was seen empty: FLIP leaves, is decided (RETRY),
    #: and the list is read. A landed page's way through the queue, its row and FILL takes less.
    BOUND = STAGES + 4

    def __init__(self, block=MissBuffer, *, alive: int = 1, prompt: bool = False):
        self.block, self.alive, self.prompt = block(config=TINY, margin=4), alive, prompt
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.misses = d = self.block
        bits, op = TINY.miss_bits, d.o_op.p
        ids = range(self.alive)
        mine, prompt = AnyConst(bits), Const(1) if self.prompt else AnyConst(1)
        started = Signal()
        m.d.sync += started.eq(1)

        # Ops on their way to M3, oldest last.
        went = d.o_op.valid & d.o_op.ready
        stages = [Signal(d.layouts.op, name=f"stage_{k}") for k in range(self.STAGES)]
        full = [Signal(name=f"full_{k}") for k in range(self.STAGES)]
        m.d.sync += [stages[0].eq(op), full[0].eq(went)]
        for k in range(1, self.STAGES):
            m.d.sync += [stages[k].eq(stages[k - 1]), full[k].eq(full[k - 1])]
        decided, busy = stages[-1], full[-1]
        m.d.comb += [d.o_op.ready.eq(AnySeq(1)), Assume(~prompt | d.o_op.ready)]

        # What M3 decides: these ops, and in the other cycles requests and prefetches.
        r, asked = d.i_result.p, d.i_result.p.op
        alive = Array(Signal(name=f"alive_{k}") for k in ids)
        parked = Array(Signal(5, name=f"parked_{k}") for k in ids)
        comes, new, prefetch = Signal(), Signal(), Signal()
        credit = Signal()
        m.d.sync += credit.eq(d.ready)
        # M3 has an id at hand before it uses it.
        has_id, next_id = Signal(), Signal(bits)
        m.d.sync += has_id.eq(Mux(has_id, ~(comes & new), d.o_miss_free.valid))
        with m.If(~has_id):
            m.d.sync += next_id.eq(d.o_miss_free.p)
        m.d.comb += [
            comes.eq(started & ~busy & AnySeq(1)),
            new.eq(AnySeq(1)),
            prefetch.eq(AnySeq(1)),
            Assume(~prefetch | new),
            Assume(~comes | credit),
            d.i_result.valid.eq(busy | comes),
            d.o_miss_free.ready.eq(~has_id),
            Assume(~(comes & new) | has_id),
            *(
                Value.cast(asked[name]).eq(
                    Mux(busy, Value.cast(decided[name]), AnySeq(len(Value.cast(asked[name]))))
                )
                for name, _ in d.layouts.op
                if name not in ("kind", "origin")
            ),
            asked.origin.tag.eq(Mux(busy, decided.origin.tag, AnySeq(4))),
            asked.kind.eq(
                Mux(
                    busy,
                    decided.kind,
                    Mux(prefetch, Op.PREFETCH, Mux(asked.write, Op.WRITE, Op.READ)),
                )
            ),
            r.miss.eq(Mux(comes & new, next_id, Mux(comes, AnySeq(bits), decided.miss))),
            r.pool.eq(AnySeq(2)),
            r.frame.eq(AnySeq(TINY.frame_bits)),
            r.old.state.eq(
                Mux(AnySeq(1), PageState.COLD, Mux(AnySeq(1), PageState.LOST, PageState.ABSENT))
            ),
            # Who asks for a page that is nowhere writes it; a prefetch is of a cold one.
            Assume(~(comes & new) | (r.old.state == PageState.COLD) | (~prefetch & asked.write)),
            # Few pages at once, so that the solver sees an end.
            Assume(~(comes & new) | (total(alive, 2) < self.alive)),
            Assume(~comes | (r.miss < self.alive)),
            Assume(~comes | new | alive[r.miss]),
            Assume(~comes | (parked[r.miss] < 3)),
        ]
        retry = Signal()
        m.d.comb += retry.eq(AnySeq(1))
        with m.If(comes):
            m.d.comb += r.outcome.eq(Mux(new, Outcome.MISSED, Outcome.PARKED))
        with m.Else():
            with m.Switch(decided.kind):
                with m.Case(Op.GRANT):
                    m.d.comb += r.outcome.eq(
                        Mux(retry & ~decided.failed, Outcome.RETRY, Outcome.DONE)
                    )
                with m.Case(Op.FLIP):
                    m.d.comb += r.outcome.eq(
                        Mux(
                            parked[decided.miss] != 0,
                            Outcome.RETRY,
                            Mux(retry, Outcome.ORPHAN, Outcome.DONE),
                        )
                    )
                with m.Default():
                    m.d.comb += r.outcome.eq(Outcome.DONE)
        parks = comes & ~(new & prefetch)
        flips = busy & (decided.kind == Op.FLIP) & (r.outcome != Outcome.RETRY)
        for k in ids:
            with m.If(comes & new & (r.miss == k)):
                m.d.sync += alive[k].eq(1)
            with m.If(flips & (decided.miss == k)):
                m.d.sync += alive[k].eq(0)
            m.d.sync += parked[k].eq(
                parked[k]
                + (parks & (r.miss == k))
                - (busy & (decided.kind == Op.REPLAY) & (decided.miss == k))
            )

        # The cold tier, frames, time.
        fetching, back = Array(Signal(name=f"fetching_{k}") for k in ids), d.i_fetched
        m.d.comb += [
            back.valid.eq(started & AnySeq(1)),
            back.p.miss.eq(AnySeq(bits)),
            back.p.failed.eq(AnySeq(1)),
            Assume(~back.valid | ((back.p.miss < self.alive) & fetching[back.p.miss])),
            Assert(
                ~d.o_fetch.valid | ((d.o_fetch.p.miss < self.alive) & ~fetching[d.o_fetch.p.miss])
            ),
            *(count.eq(AnySeq(2)) for count in d.pool_free),
            d.now.eq(AnySeq(2)),
            d.starve_limit.eq(AnySeq(2)),
        ]
        for k in ids:
            with m.If(d.o_fetch.valid & (d.o_fetch.p.miss == k)):
                m.d.sync += fetching[k].eq(1)
            with m.If(back.valid & back.ready & (back.p.miss == k)):
                m.d.sync += fetching[k].eq(0)

        # One entry's life.
        lives, kind, lost, dropped = Signal(), Signal(2), Signal(), Signal()
        page = {name: Signal(len(Value.cast(op[name])), name=f"its_{name}") for name in _PAGE}
        granted, starved, filled, landed, failed, frame = (
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(),
            Signal(TINY.frame_bits),
        )
        born = comes & new & (r.miss == mine)
        with m.If(born):
            m.d.sync += [
                lives.eq(1),
                granted.eq(prefetch),
                starved.eq(0),
                filled.eq(0),
                landed.eq(0),
                dropped.eq(0),
                frame.eq(r.frame),
                kind.eq(
                    Mux(
                        prefetch,
                        MissKind.PREFETCH,
                        Mux(r.old.state == PageState.COLD, MissKind.DEMAND, MissKind.ALLOCATE),
                    )
                ),
                lost.eq(r.old.state == PageState.LOST),
                *(page[name].eq(r.pool if name == "pool" else asked[name]) for name in _PAGE),
            ]
        answered = (
            busy & (decided.kind == Op.GRANT) & (decided.miss == mine) & (r.outcome == Outcome.DONE)
        )
        with m.If(answered):
            m.d.sync += [
                granted.eq(1),
                starved.eq(decided.failed),
                frame.eq(Mux(decided.failed, frame, r.frame)),
            ]
            with m.If(decided.failed | (kind == MissKind.ALLOCATE)):
                m.d.sync += [landed.eq(1), failed.eq(0)]
        with m.If(back.valid & back.ready & (back.p.miss == mine)):
            m.d.sync += [landed.eq(1), failed.eq(back.p.failed)]
        ours = went & (op.miss == mine)
        fills, replays, asks = (
            ours & (op.kind == Op.FILL),
            ours & (op.kind == Op.REPLAY),
            ours & (op.kind == Op.FLIP),
        )
        with m.If(fills):
            m.d.sync += filled.eq(1)
        with m.If(replays & op.write):
            m.d.sync += dropped.eq(1)
        with m.If(flips & (decided.miss == mine)):
            m.d.sync += lives.eq(0)

        def waiter(op):
            """What a request is replayed with."""
            return Cat(
                op.kv_line,
                op.write,
                op.partial,
                op.poison,
                op.has_write,
                op.write_slot,
                op.origin.tag,
            )

        f = Follow(
            m,
            arrives=parks & (r.miss == mine),
            word_in=waiter(asked),
            leaves=replays,
            word_out=waiter(op),
            most=7,
        )
        m.d.comb += [
            Assert(~ours | lives | (op.kind == Op.GRANT)),
            Assert(~(ours & (op.kind != Op.GRANT)) | landed),
            Assert(
                ~(ours & (op.kind == Op.GRANT))
                | (lives & ~granted & ~landed & (kind != MissKind.PREFETCH))
            ),
            Assert(
                ~ours
                | ((op.miss_kind == kind) & (op.pool == page["pool"]))
                | (op.kind == Op.REPLAY)
                | (op.kind == Op.FLIP)
            ),
            *(Assert(~ours | (op[name] == page[name])) for name in ("session", "squeue", "page")),
            Assert(
                ~fills
                | (
                    ~filled
                    & ~starved
                    & (op.frame == frame)
                    & (op.failed == failed)
                    & (op.lost == lost)
                )
            ),
            Assert(~(replays | asks) | ((filled != starved) & (op.failed == starved))),
            Assert(~(replays | asks) | starved | (op.frame == frame)),
            Assert(~(asks & starved) | (op.lost == (lost | dropped))),
            Assert(~(d.o_raise.valid & (d.o_raise.p == mine)) | (parks & ~new & lives)),
        ]

        # The bound.
        alone, waited = Signal(), Signal(5)
        m.d.comb += alone.eq(total([bit & (mine != k) for k, bit in enumerate(alive)], 2) == 0)
        m.d.sync += waited.eq(
            Mux(prompt & alone & landed & (f.owed != 0) & ~replays, waited + 1, 0)
        )
        m.d.comb += [
            Assert(waited <= self.BOUND),
            Cover(f.leaving & ~alone) if self.alive > 1 else Cover(waited == self.BOUND),
        ]
        if self.alive == 1:
            m.d.comb += [
                Cover(replays & (f.ahead == 2)),
                Cover(replays & starved),
                Cover(replays & failed & filled),
                Cover(fills & (kind == MissKind.ALLOCATE) & lost),
                Cover(flips & (decided.miss == mine) & dropped & ~starved),
            ]
        return m
