# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""M0's contract, for the solver, by induction: who may enter with which credit, each op once and
whole, and nobody waits longer than he must."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cat, Const, Cover, Module, Mux, Signal, Value
from amaranth.lib import wiring

from kelp_hw.tracker.arbiter import BACKGROUND, KINDS, Arbiter, choose
from kelp_spec.metadata import Op

from .fifo_specs import SMALL
from .inside import total

__all__ = ["ArbiterContract"]

#: What each op may need downstream beside a place in the event log (docs/design.md §3). `data`: it
#: uses the frame stage.
_NEEDS = {
    Op.FILL: {"data"},
    Op.REPLAY: {"data"},
    Op.FREE: {"data"},
    Op.RECOVER: {"data"},
    Op.PEEK: {"data"},
    Op.FLIP: {"data", "queue"},
    Op.CLAIM: {"data", "queue"},
    Op.RELEASE: {"data", "queue"},
    Op.SCRUB: {"data", "queue", "score"},
    Op.SCAN: {"score"},
    Op.MASS: {"score"},
    Op.PREFETCH: {"miss", "miss_id"},
}
_ORIGIN = {"kv_line", "write", "partial", "poison", "has_write", "write_slot", "origin"}
#: What M3 is told of the ops of each stream.
_FIELDS = {
    "miss": {
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
    },
    "control": {"session", "squeue", "page", "delta"},
    "hint": {"session", "squeue", "page", "mass", "delta"},
    "evict": {"session", "squeue", "page", "pool", "frame", "failed", "slot", "delta", "written"},
    "prefetch": {"session", "squeue", "page", "source"},
}
_REQUEST = {"session", "squeue", "page", "refused", "no_memory"}

#: Where an op that changes a session or no word at all is not to look at one.
_WORDLESS = (Op.GRANT, Op.FREE, Op.STEP, Op.OPEN, Op.CLOSE, Op.CLOSED)


def _picked(able, hinted) -> Value:
    """What the arbiter's pick must be: of `able` (each stream's op has its credits; it uses the
    frame stage) the first, where `hinted` with evictions before hints, and its frame stage."""
    hint, evict = BACKGROUND.index("hint"), BACKGROUND.index("evict")
    order = [*range(len(able))]
    order[hint], order[evict] = evict, hint

    def foremost(order):
        bits = [Const(0)] * len(able)
        for n, i in enumerate(order):
            bits[i] = able[i][0] & ~Cat(able[j][0] for j in order[:n]).any()
        return Cat(bits)

    pick = Mux(hinted, foremost(order), foremost(range(len(able))))
    return Cat(pick, (pick & Cat(frame for _, frame in able)).any())


class ArbiterContract(wiring.Component):
    """Every input is free in every cycle, but for a stream's ops, which are of its kinds, stay
    until they are taken, and are those that were foretold; and for the credits, which are those
    that were foretold.

    `BOUND`: cycles for which requests can keep an op out that has its credits. `SHARE`: in any run
    of cycles in which ops could go, requests win at most `SHARE` for each one that ops win, and
    `BOUND` more. A request that has its credits waits one cycle at most, and only for an urgent op.
    """

    BOUND = 7 + 16
    SHARE = 7

    def __init__(self, arbiter=Arbiter):
        self.arbiter = arbiter(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.arbiter = a = self.arbiter
        credits = a.credits
        streams = {name: getattr(a, f"i_{name}") for name in BACKGROUND}
        for s in (a.i_request, *streams.values()):
            m.d.comb += [s.valid.eq(AnySeq(1)), Value.cast(s.p).eq(AnySeq(len(Value.cast(s.p))))]
        m.d.comb += [
            a.hot.eq(AnySeq(1)),
            a.good.eq(AnySeq(1)),
            a.hold.eq(AnySeq(1)),
            a.behind.as_value().eq(AnySeq(len(a.behind.as_value()))),
        ]
        started, known = Signal(), []
        m.d.sync += started.eq(1)
        foretold = Signal.like(credits)
        m.d.comb += [
            credits.eq(foretold),
            a.credits_ahead.as_value().eq(AnySeq(len(credits.as_value()))),
        ]
        m.d.sync += foretold.eq(a.credits_ahead)
        for name, s, behind in zip(streams, streams.values(), a.behind, strict=True):
            m.d.comb += Assume(~s.valid | Cat(s.p.kind == kind for kind in KINDS[name]).any())
            # What stood there stays; what was behind comes. An op of which nothing was known is not
            # asked for in its first cycle.
            before, taken, next_kind, next_valid, has_stood = (
                Signal.like(s.p, name=f"before_{name}"),
                Signal(name=f"taken_{name}"),
                Signal(5, name=f"next_kind_{name}"),
                Signal(name=f"next_valid_{name}"),
                Signal(name=f"has_stood_{name}"),
            )
            m.d.sync += [
                before.eq(s.p),
                has_stood.eq(s.valid & ~s.ready),
                taken.eq(s.valid & s.ready),
                next_kind.eq(behind.kind),
                next_valid.eq(behind.valid),
            ]
            m.d.comb += [
                Assume(~has_stood | (s.valid & (s.p.as_value() == before.as_value()))),
                Assume(~(taken & next_valid) | (s.valid & (s.p.kind == next_kind))),
            ]
            known.append(s.valid & (has_stood | (taken & next_valid)))

        # What may enter now, by the documents. A PREFETCH, the last, is not asked for its ids
        # before it is its turn.
        could, uses_frame, enters = [], [], []
        for s, is_known in zip(streams.values(), known, strict=True):
            has_credits, frame = Signal(), Signal()
            m.d.comb += has_credits.eq(credits.event)
            with m.Switch(s.p.kind):
                for kind, needs in _NEEDS.items():
                    with m.Case(kind):
                        m.d.comb += frame.eq("data" in needs)
                        for need in needs:
                            with m.If(~credits[need]):
                                m.d.comb += has_credits.eq(0)
            could.append(is_known & has_credits & ~a.hold)
            uses_frame.append(frame)
            enters.append(s.valid & s.ready)
        request, entering = a.i_request.valid & a.i_request.ready, Signal()
        request_could = (
            a.i_request.valid & ~a.hold & Mux(a.hot, credits.data, credits.as_value().all())
        )
        m.d.comb += entering.eq(total(enters, 3) != 0)
        takes_frame = total((e & u for e, u in zip(enters, uses_frame, strict=True)), 3) != 0

        # Credit, and one at a time for each port: page words (cold request or op), frame stage
        # (request or op that uses it).
        m.d.comb += [
            Assert(~request | request_could),
            Assert(total(enters, 3) <= 1),
            Assert(~(request & ~a.hot & entering)),
            Assert(~(request & takes_frame)),
            Assert(a.o_valid == ((request & ~a.hot) | entering)),
            Assert(a.o_hot == (request & a.hot)),
            Assert(a.o_background == entering),
        ]
        hint, evict = BACKGROUND.index("hint"), BACKGROUND.index("evict")
        hinted = Signal()  # of hints and evictions, a hint went last
        with m.If(enters[hint] | enters[evict]):
            m.d.sync += hinted.eq(enters[hint])
        for i, (could_i, enters_i) in enumerate(zip(could, enters, strict=True)):
            m.d.comb += Assert(~enters_i | could_i)
            for j in range(i):  # the first that could go does, hints and evictions in turn
                turn = hinted if (j, i) == (hint, evict) else 0
                m.d.comb += Assert(~(enters_i & could[j]) | turn)
        m.d.comb += [
            Assert(~(enters[hint] & could[evict] & hinted)),
            Cover(enters[hint] & could[evict]),
            Cover(enters[evict] & could[hint]),
        ]

        # What enters is told whole.
        fields_of_op = choose(a.o_entering)

        def told(condition, source, fields):
            for field in sorted(fields):
                m.d.comb += Assert(
                    ~condition | (Value.cast(fields_of_op[field]) == Value.cast(source[field]))
                )

        r = a.i_request.p
        told(request, r, _ORIGIN)
        told(request & ~a.hot, r, _REQUEST)
        m.d.comb += Assert(
            ~(request & ~a.hot) | (fields_of_op["kind"] == Mux(r.write, Op.WRITE, Op.READ))
        )
        for (name, s), enters_i, frame in zip(streams.items(), enters, uses_frame, strict=True):
            told(enters_i, s.p, _FIELDS[name] | {"kind"})
            if name == "miss":
                told(enters_i & frame, s.p, _ORIGIN)
            wordless = Signal(name=f"wordless_{name}")
            with m.Switch(s.p.kind):
                with m.Case(*_WORDLESS):
                    m.d.comb += wordless.eq(1)
            m.d.comb += Assert(
                ~enters_i | ((a.o_reads == ~wordless) & (a.o_takes == (s.p.kind == Op.PREFETCH)))
            )

        # Shares. Nothing is wasted: without a request, an op that could go does.
        any_could, loses = Signal(), Signal()
        waited, request_waited = Signal(range(self.BOUND + 2)), Signal(2)
        m.d.comb += [
            any_could.eq(total(could, 3) != 0),
            loses.eq(any_could & ~entering),
            Assert(~loses | request),
        ]
        with m.If(entering):
            m.d.sync += waited.eq(0)
        with m.Elif(loses):
            m.d.sync += waited.eq(waited + 1)
        m.d.sync += request_waited.eq(Mux(request_could & ~request, request_waited + 1, 0))
        m.d.comb += [
            Assert(waited <= self.BOUND),
            Assert(request_waited <= 1),
            Assert(~(request_could & ~request) | (entering & (request_waited == 0))),
        ]
        # Of any run of cycles, from `begun` on: requests' lead over SHARE times what ops had; one
        # that would overflow has been allowed for long since.
        begun, lead = Signal(), Signal(range(-8, self.BOUND + 2))
        with m.If(AnySeq(1)):
            m.d.sync += begun.eq(1)
        with m.If(begun & entering):
            m.d.sync += lead.eq(Mux(lead < self.SHARE - 8, -8, lead - self.SHARE))
        with m.Elif(begun & loses):
            m.d.sync += lead.eq(lead + 1)
        m.d.comb += Assert(lead <= self.BOUND)

        # For the induction: what the pick is, and what the claim says about the past.
        able = []
        for s, is_known, name in zip(streams.values(), known, streams, strict=True):
            ready, frame = Signal(name=f"ready_{name}"), Signal(name=f"frame_{name}")
            m.d.comb += ready.eq(is_known)
            with m.Switch(s.p.kind):
                for kind, needs in _NEEDS.items():
                    with m.Case(kind):
                        m.d.comb += frame.eq("data" in needs)
                        for need in needs & {"data", "queue", "score"}:
                            with m.If(~credits[need]):
                                m.d.comb += ready.eq(0)
            able.append((ready, frame))
        m.d.comb += Assert(~started | (Cat(a.pick, a.pick_frame) == _picked(able, hinted)))
        m.d.comb += [
            Assert((a.claim >= -a.SURPLUS) & (a.claim <= a.PATIENCE)),
            Assert(waited <= a.claim + a.SURPLUS),
            Assert(lead <= a.claim + a.SURPLUS),
            Assert((request_waited == 0) | (a.claim < a.PATIENCE)),
            Assert(begun | (lead == 0)),
            Assert(a.hinted == hinted),
        ]
        m.d.comb += [
            Cover(waited == self.BOUND),
            Cover(request & entering & r.write),
            Cover(request_could & ~request),
        ]
        return m
