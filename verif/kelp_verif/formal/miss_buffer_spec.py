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


class _M3:
    """The op that M3 decides in a cycle, and who is alive: `decided` while `busy`, otherwise a
    request or a prefetch that `comes`."""

    def __init__(self, layouts, stages: int, ids):
        self.stages = [Signal(layouts.op, name=f"stage_{k}") for k in range(stages)]
        self.full = [Signal(name=f"full_{k}") for k in range(stages)]
        self.decided, self.busy = self.stages[-1], self.full[-1]
        self.comes = Signal()
        self.new = Signal()  #: with an entry of its own
        self.prefetch = Signal()
        self.retry = Signal()
        self.parks = self.comes & ~(self.new & self.prefetch)
        self.alive = Array(Signal(name=f"alive_{k}") for k in ids)
        self.parked = Array(Signal(5, name=f"parked_{k}") for k in ids)


class _Entry:
    """The followed entry's life."""

    def __init__(self, op):
        self.number = AnyConst(TINY.miss_bits)
        self.lives = Signal()
        self.kind = Signal(2)
        self.lost = Signal()
        self.dropped = Signal()
        self.page = {name: Signal(len(Value.cast(op[name])), name=f"its_{name}") for name in _PAGE}
        self.granted = Signal()
        self.starved = Signal()
        self.filled = Signal()
        self.landed = Signal()
        self.failed = Signal()
        self.frame = Signal(TINY.frame_bits)


def _waiter(op):
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
        prompt = Const(1) if self.prompt else AnyConst(1)
        started = Signal()
        m.d.sync += started.eq(1)
        m3, entry = _M3(d.layouts, self.STAGES, range(self.alive)), _Entry(d.o_op.p)
        # Ops on their way to M3, oldest last.
        went = d.o_op.valid & d.o_op.ready
        m.d.sync += [m3.stages[0].eq(d.o_op.p), m3.full[0].eq(went)]
        for k in range(1, self.STAGES):
            m.d.sync += [m3.stages[k].eq(m3.stages[k - 1]), m3.full[k].eq(m3.full[k - 1])]
        m.d.comb += [d.o_op.ready.eq(AnySeq(1)), Assume(~prompt | d.o_op.ready)]
        self._ops(m, m3, started)
        self._outcomes(m, m3)
        flips = m3.busy & (m3.decided.kind == Op.FLIP) & (d.i_result.p.outcome != Outcome.RETRY)
        self._alive(m, m3, flips)
        self._around(m, started)
        self._live(m, m3, entry, flips)
        self._told(m, m3, entry)
        f = Follow(
            m,
            arrives=m3.parks & (d.i_result.p.miss == entry.number),
            word_in=_waiter(d.i_result.p.op),
            leaves=went & (d.o_op.p.miss == entry.number) & (d.o_op.p.kind == Op.REPLAY),
            word_out=_waiter(d.o_op.p),
            most=7,
        )
        self._bound(m, m3, entry, f, prompt)
        if self.alive == 1:
            self._covers(m, m3, entry, f, flips)
        return m

    def _ops(self, m, m3, started):
        """What M3 decides: its ops, and in the other cycles requests and prefetches."""
        d, bits = self.block, TINY.miss_bits
        r, asked, decided, busy = d.i_result.p, d.i_result.p.op, m3.decided, m3.busy
        comes, new, prefetch = m3.comes, m3.new, m3.prefetch
        credit, has_id, next_id = Signal(), Signal(), Signal(bits)
        m.d.sync += credit.eq(d.ready)
        # M3 has an id at hand before it uses it.
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
            Assume(~(comes & new) | (total(m3.alive, 2) < self.alive)),
            Assume(~comes | (r.miss < self.alive)),
            Assume(~comes | new | m3.alive[r.miss]),
            Assume(~comes | (m3.parked[r.miss] < 3)),
        ]

    def _outcomes(self, m, m3):
        """And how."""
        outcome, decided, retry = self.block.i_result.p.outcome, m3.decided, m3.retry
        m.d.comb += retry.eq(AnySeq(1))
        with m.If(m3.comes):
            m.d.comb += outcome.eq(Mux(m3.new, Outcome.MISSED, Outcome.PARKED))
        with m.Else():
            with m.Switch(decided.kind):
                with m.Case(Op.GRANT):
                    m.d.comb += outcome.eq(
                        Mux(retry & ~decided.failed, Outcome.RETRY, Outcome.DONE)
                    )
                with m.Case(Op.FLIP):
                    m.d.comb += outcome.eq(
                        Mux(
                            m3.parked[decided.miss] != 0,
                            Outcome.RETRY,
                            Mux(retry, Outcome.ORPHAN, Outcome.DONE),
                        )
                    )
                with m.Default():
                    m.d.comb += outcome.eq(Outcome.DONE)

    def _alive(self, m, m3, flips):
        """Entries that live, and the requests parked on them."""
        r, decided = self.block.i_result.p, m3.decided
        for k in range(self.alive):
            with m.If(m3.comes & m3.new & (r.miss == k)):
                m.d.sync += m3.alive[k].eq(1)
            with m.If(flips & (decided.miss == k)):
                m.d.sync += m3.alive[k].eq(0)
            m.d.sync += m3.parked[k].eq(
                m3.parked[k]
                + (m3.parks & (r.miss == k))
                - (m3.busy & (decided.kind == Op.REPLAY) & (decided.miss == k))
            )

    def _around(self, m, started):
        """The cold tier, frames, time."""
        d, ids = self.block, range(self.alive)
        fetching, back = Array(Signal(name=f"fetching_{k}") for k in ids), d.i_fetched
        m.d.comb += [
            back.valid.eq(started & AnySeq(1)),
            back.p.miss.eq(AnySeq(TINY.miss_bits)),
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

    def _live(self, m, m3, entry, flips):
        """One entry's life, from its first request to its FLIP."""
        r, op = self.block.i_result.p, self.block.o_op.p
        decided, mine, kind, back = m3.decided, entry.number, entry.kind, self.block.i_fetched
        with m.If(m3.comes & m3.new & (r.miss == mine)):
            m.d.sync += [
                entry.lives.eq(1),
                entry.granted.eq(m3.prefetch),
                entry.starved.eq(0),
                entry.filled.eq(0),
                entry.landed.eq(0),
                entry.dropped.eq(0),
                entry.frame.eq(r.frame),
                kind.eq(
                    Mux(
                        m3.prefetch,
                        MissKind.PREFETCH,
                        Mux(r.old.state == PageState.COLD, MissKind.DEMAND, MissKind.ALLOCATE),
                    )
                ),
                entry.lost.eq(r.old.state == PageState.LOST),
                *(entry.page[name].eq(r.pool if name == "pool" else r.op[name]) for name in _PAGE),
            ]
        done = r.outcome == Outcome.DONE
        with m.If(m3.busy & (decided.kind == Op.GRANT) & (decided.miss == mine) & done):
            m.d.sync += [
                entry.granted.eq(1),
                entry.starved.eq(decided.failed),
                entry.frame.eq(Mux(decided.failed, entry.frame, r.frame)),
            ]
            with m.If(decided.failed | (kind == MissKind.ALLOCATE)):
                m.d.sync += [entry.landed.eq(1), entry.failed.eq(0)]
        with m.If(back.valid & back.ready & (back.p.miss == mine)):
            m.d.sync += [entry.landed.eq(1), entry.failed.eq(back.p.failed)]
        ours = self._ours(entry)
        with m.If(ours & (op.kind == Op.FILL)):
            m.d.sync += entry.filled.eq(1)
        with m.If(ours & (op.kind == Op.REPLAY) & op.write):
            m.d.sync += entry.dropped.eq(1)
        with m.If(flips & (decided.miss == mine)):
            m.d.sync += entry.lives.eq(0)

    def _ours(self, entry):
        """An op of the followed entry leaves."""
        o_op = self.block.o_op
        return o_op.valid & o_op.ready & (o_op.p.miss == entry.number)

    def _told(self, m, m3, entry):
        """The entry's ops come when they may, and say what it is."""
        d, op, ours = self.block, self.block.o_op.p, self._ours(entry)
        page, kind, starved, landed = entry.page, entry.kind, entry.starved, entry.landed
        fills, replays, asks = (ours & (op.kind == k) for k in (Op.FILL, Op.REPLAY, Op.FLIP))
        m.d.comb += [
            Assert(~ours | entry.lives | (op.kind == Op.GRANT)),
            Assert(~(ours & (op.kind != Op.GRANT)) | landed),
            Assert(
                ~(ours & (op.kind == Op.GRANT))
                | (entry.lives & ~entry.granted & ~landed & (kind != MissKind.PREFETCH))
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
                    ~entry.filled
                    & ~starved
                    & (op.frame == entry.frame)
                    & (op.failed == entry.failed)
                    & (op.lost == entry.lost)
                )
            ),
            Assert(~(replays | asks) | ((entry.filled != starved) & (op.failed == starved))),
            Assert(~(replays | asks) | starved | (op.frame == entry.frame)),
            Assert(~(asks & starved) | (op.lost == (entry.lost | entry.dropped))),
            Assert(
                ~(d.o_raise.valid & (d.o_raise.p == entry.number))
                | (m3.parks & ~m3.new & entry.lives)
            ),
        ]

    def _bound(self, m, m3, entry, f, prompt):
        """A request of a page that has landed is replayed soon."""
        op, alone, waited = self.block.o_op.p, Signal(), Signal(5)
        others = [bit & (entry.number != k) for k, bit in enumerate(m3.alive)]
        replays = self._ours(entry) & (op.kind == Op.REPLAY)
        m.d.comb += alone.eq(total(others, 2) == 0)
        m.d.sync += waited.eq(
            Mux(prompt & alone & entry.landed & (f.owed != 0) & ~replays, waited + 1, 0)
        )
        m.d.comb += [
            Assert(waited <= self.BOUND),
            Cover(f.leaving & ~alone) if self.alive > 1 else Cover(waited == self.BOUND),
        ]

    def _covers(self, m, m3, entry, f, flips):
        op, ours = self.block.o_op.p, self._ours(entry)
        fills, replays = ours & (op.kind == Op.FILL), ours & (op.kind == Op.REPLAY)
        m.d.comb += [
            Cover(replays & (f.ahead == 2)),
            Cover(replays & entry.starved),
            Cover(replays & entry.failed & entry.filled),
            Cover(fills & (entry.kind == MissKind.ALLOCATE) & entry.lost),
            Cover(flips & (m3.decided.miss == entry.number) & entry.dropped & ~entry.starved),
        ]
