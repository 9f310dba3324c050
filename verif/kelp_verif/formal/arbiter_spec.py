# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""M0's contract, for the solver, by induction: who may enter with which credit, each op once and
whole, and nobody waits longer than he must."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Assert, Assume, Cat, Const, Cover, Module, Mux, Signal, Value
from amaranth.lib import wiring

from kelp_hw.tracker.arbiter import Arbiter, choose
from kelp_hw.tracker.signatures import BACKGROUND, KINDS
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
_SESSION_OPS = (Op.STEP, Op.OPEN, Op.CLOSE, Op.CLOSED)
_WORDLESS = (Op.GRANT, Op.FREE, *_SESSION_OPS)


def _picked(able, hinted, controlled) -> Value:
    """What the arbiter's pick must be: of `able` (each stream's op has its credits; it uses the
    frame stage) the first, where `hinted` with evictions before hints, where `controlled` with both
    before control, and its frame stage."""
    names = ["miss", "hint", "evict", "prefetch"]

    def foremost(order):
        order, bits = [BACKGROUND.index(name) for name in order], [Const(0)] * len(able)
        for n, i in enumerate(order):
            bits[i] = able[i][0] & ~Cat(able[j][0] for j in order[:n]).any()
        return Cat(bits)

    def placed(at):
        """With control at that place, and with hints and evictions in either order."""
        first, second = [*names[:at], "control", *names[at:]], ["miss", "evict", "hint", "prefetch"]
        second.insert(at, "control")
        return Mux(hinted, foremost(second), foremost(first))

    pick = Mux(controlled, placed(3), placed(1))
    return Cat(pick, (pick & Cat(frame for _, frame in able)).any())


class _Cycle:
    """What the streams do in a cycle, each in `BACKGROUND`'s order; and the request."""

    def __init__(self, m: Module, arbiter: Arbiter):
        credits = arbiter.credits
        self.streams = {name: getattr(arbiter.ops, name) for name in BACKGROUND}
        self.known = []  #: the op was foretold, or has stood since the cycle before
        self.could = []  #: it has its credits
        self.uses_frame = []
        self.enters = [s.valid & s.ready for s in self.streams.values()]
        self.entering = Signal()  #: one of them
        m.d.comb += self.entering.eq(total(self.enters, 3) != 0)
        request = arbiter.i_request
        self.request = request.valid & request.ready
        self.request_could = (
            request.valid & ~arbiter.hold & Mux(arbiter.hot, credits.data, credits.as_value().all())
        )
        self.hinted = Signal()  #: of hints and evictions, a hint went last
        self.controlled = Signal()  #: of these and control, a control op


class _Shares:
    """Who has waited for how long."""

    def __init__(self, bound: int):
        self.waited = Signal(range(bound + 2))
        self.request_waited = Signal(2)
        # Of any run of cycles, from `begun` on: requests' lead over SHARE times what ops had; one
        # that would overflow has been allowed for long since.
        self.begun = Signal()
        self.lead = Signal(range(-8, bound + 2))


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
        m.submodules.arbiter = self.arbiter
        cycle, shares = _Cycle(m, self.arbiter), _Shares(self.BOUND)
        self._drive(m, cycle)
        for (name, s), behind in zip(cycle.streams.items(), self.arbiter.ops.behind, strict=True):
            cycle.known.append(self._foretold(m, name, s, behind))
        for s, known in zip(cycle.streams.values(), cycle.known, strict=True):
            has_credits, frame = self._needs(m, s)
            cycle.could.append(known & has_credits & ~self.arbiter.hold)
            cycle.uses_frame.append(frame)
        self._enter(m, cycle)
        self._order(m, cycle)
        self._told(m, cycle)
        self._share(m, cycle, shares)
        self._pick(m, cycle)
        self._claim(m, cycle, shares)
        return m

    def _drive(self, m: Module, cycle: _Cycle) -> None:
        """The inputs: credits are those that were foretold."""
        a = self.arbiter
        for s in (a.i_request, *cycle.streams.values()):
            m.d.comb += [s.valid.eq(AnySeq(1)), Value.cast(s.p).eq(AnySeq(len(Value.cast(s.p))))]
        foretold = Signal.like(a.credits)
        m.d.comb += [
            a.hot.eq(AnySeq(1)),
            a.good.eq(AnySeq(1)),
            a.hold.eq(AnySeq(1)),
            a.ops.behind.as_value().eq(AnySeq(len(a.ops.behind.as_value()))),
            a.credits.eq(foretold),
            a.credits_ahead.as_value().eq(AnySeq(len(a.credits.as_value()))),
        ]
        m.d.sync += foretold.eq(a.credits_ahead)

    def _foretold(self, m: Module, name: str, s, behind) -> Value:
        """What stood on stream `s` stays; what was behind comes. Returns whether the op is one of
        these: of another nothing was known, and it is not asked for in its first cycle."""
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
            Assume(~s.valid | Cat(s.p.kind == kind for kind in KINDS[name]).any()),
            Assume(~has_stood | (s.valid & (s.p.as_value() == before.as_value()))),
            Assume(~(taken & next_valid) | (s.valid & (s.p.kind == next_kind))),
        ]
        return s.valid & (has_stood | (taken & next_valid))

    def _needs(self, m: Module, s) -> tuple[Signal, Signal]:
        """Whether the op of stream `s` has what the documents ask for it, and uses the frame stage.
        A PREFETCH, the last, is not asked for its ids before it is its turn."""
        credits, has_credits, frame = self.arbiter.credits, Signal(), Signal()
        m.d.comb += has_credits.eq(credits.event)
        with m.Switch(s.p.kind):
            for kind, needs in _NEEDS.items():
                with m.Case(kind):
                    m.d.comb += frame.eq("data" in needs)
                    for need in needs:
                        with m.If(~credits[need]):
                            m.d.comb += has_credits.eq(0)
        return has_credits, frame

    def _enter(self, m: Module, cycle: _Cycle) -> None:
        """Credit, and one at a time for each port: page words (cold request or op), frame stage
        (request or op that uses it)."""
        a, request, enters, entering = self.arbiter, cycle.request, cycle.enters, cycle.entering
        takes_frame = total((e & u for e, u in zip(enters, cycle.uses_frame, strict=True)), 3) != 0
        m.d.comb += [
            Assert(~request | cycle.request_could),
            Assert(total(enters, 3) <= 1),
            Assert(~(request & ~a.hot & entering)),
            Assert(~(request & takes_frame)),
            Assert(a.o.valid == ((request & ~a.hot) | entering)),
            Assert(a.o.hot == (request & a.hot)),
            Assert(a.o.background == entering),
        ]

    def _order(self, m: Module, cycle: _Cycle) -> None:
        """Among ops the first that could go does, hints and evictions in turn, and control with
        both."""
        could, enters = cycle.could, cycle.enters
        hinted, controlled = cycle.hinted, cycle.controlled
        control, hint, evict = (BACKGROUND.index(name) for name in ("control", "hint", "evict"))
        with m.If(enters[hint] | enters[evict]):
            m.d.sync += hinted.eq(enters[hint])
        with m.If(enters[control] | enters[hint] | enters[evict]):
            m.d.sync += controlled.eq(enters[control])
        turns = {(hint, evict): hinted, (control, hint): controlled, (control, evict): controlled}
        for i, (could_i, enters_i) in enumerate(zip(could, enters, strict=True)):
            m.d.comb += Assert(~enters_i | could_i)
            for j in range(i):
                m.d.comb += Assert(~(enters_i & could[j]) | turns.get((j, i), 0))
        m.d.comb += [
            Assert(~(enters[hint] & could[evict] & hinted)),
            Assert(~(enters[control] & (could[hint] | could[evict]) & controlled)),
            Cover(enters[hint] & could[evict]),
            Cover(enters[evict] & could[hint]),
            Cover(enters[evict] & could[control]),
        ]

    def _told(self, m: Module, cycle: _Cycle) -> None:
        """What enters is told whole."""
        a, request, r = self.arbiter, cycle.request, self.arbiter.i_request.p
        fields_of_op = choose(a.o.op)

        def told(condition, source, fields):
            for field in sorted(fields):
                m.d.comb += Assert(
                    ~condition | (Value.cast(fields_of_op[field]) == Value.cast(source[field]))
                )

        told(request, r, _ORIGIN)
        told(request & ~a.hot, r, _REQUEST)
        cold = request & ~a.hot
        m.d.comb += [
            Assert(~cold | (fields_of_op["kind"] == Mux(r.write, Op.WRITE, Op.READ))),
            Assert(~cold | ((a.o.reads == a.good) & a.o.takes & ~a.o.session)),
            Assert(~cold | (a.o.queue == r.queue)),
        ]
        streams = zip(cycle.streams.items(), cycle.enters, cycle.uses_frame, strict=True)
        for (name, s), enters, frame in streams:
            told(enters, s.p, _FIELDS[name] | {"kind"})
            if name == "miss":
                told(enters & frame, s.p, _ORIGIN)
            wordless, session = Signal(name=f"wordless_{name}"), Signal(name=f"session_{name}")
            with m.Switch(s.p.kind):
                with m.Case(*_WORDLESS):
                    m.d.comb += wordless.eq(1)
            with m.Switch(s.p.kind):
                with m.Case(*_SESSION_OPS):
                    m.d.comb += session.eq(1)
            m.d.comb += [
                Assert(
                    ~enters | ((a.o.reads == ~wordless) & (a.o.takes == (s.p.kind == Op.PREFETCH)))
                ),
                Assert(~enters | (a.o.session == session)),
                Assert(
                    ~(enters & (s.p.kind == Op.PEEK)) | (a.o.frame_peek == int(name == "evict"))
                ),
            ]

    def _share(self, m: Module, cycle: _Cycle, shares: _Shares) -> None:
        """Nothing is wasted: without a request, an op that could go does. And who waits for how
        long."""
        request, request_could = cycle.request, cycle.request_could
        entering, any_could, loses = cycle.entering, Signal(), Signal()
        waited, request_waited, lead = shares.waited, shares.request_waited, shares.lead
        m.d.comb += [
            any_could.eq(total(cycle.could, 3) != 0),
            loses.eq(any_could & ~entering),
            Assert(~loses | request),
        ]
        with m.If(entering):
            m.d.sync += waited.eq(0)
        with m.Elif(loses):
            m.d.sync += waited.eq(waited + 1)
        m.d.sync += request_waited.eq(Mux(request_could & ~request, request_waited + 1, 0))
        with m.If(AnySeq(1)):
            m.d.sync += shares.begun.eq(1)
        with m.If(shares.begun & entering):
            m.d.sync += lead.eq(Mux(lead < self.SHARE - 8, -8, lead - self.SHARE))
        with m.Elif(shares.begun & loses):
            m.d.sync += lead.eq(lead + 1)
        m.d.comb += [
            Assert(waited <= self.BOUND),
            Assert(request_waited <= 1),
            Assert(~(request_could & ~request) | (entering & (request_waited == 0))),
            Assert(lead <= self.BOUND),
            Cover(waited == self.BOUND),
            Cover(request & entering & self.arbiter.i_request.p.write),
            Cover(request_could & ~request),
        ]

    def _pick(self, m: Module, cycle: _Cycle) -> None:
        """For the induction: what the pick is."""
        a, credits, started, able = self.arbiter, self.arbiter.credits, Signal(), []
        for (name, s), is_known in zip(cycle.streams.items(), cycle.known, strict=True):
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
        m.d.sync += started.eq(1)
        picked = _picked(able, cycle.hinted, cycle.controlled)
        m.d.comb += Assert(~started | (Cat(a.pick, a.pick_frame) == picked))

    def _claim(self, m: Module, cycle: _Cycle, shares: _Shares) -> None:
        """For the induction: what the arbiter's claim says about the past."""
        a = self.arbiter
        m.d.comb += [
            Assert((a.claim >= -a.SURPLUS) & (a.claim <= a.PATIENCE)),
            Assert(shares.waited <= a.claim + a.SURPLUS),
            Assert(shares.lead <= a.claim + a.SURPLUS),
            Assert((shares.request_waited == 0) | (a.claim < a.PATIENCE)),
            Assert(shares.begun | (shares.lead == 0)),
            Assert(a.hinted == cycle.hinted),
            Assert(a.controlled == cycle.controlled),
        ]
