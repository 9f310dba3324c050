# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of the four places where it is decided whose a session is: requests in both lanes,
hint lines, registers. Nothing of a session is shown to, or changed by, an LD-ID that does not own
it. By induction."""

from amaranth.asserts import AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Cover, Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.control.register_file import RegisterFile
from kelp_hw.host.hints import HintAbsorber
from kelp_hw.tracker.decide import Decide, frame_of
from kelp_hw.tracker.foresight import Foresight
from kelp_hw.tracker.sessions import SessionCheck
from kelp_spec.hints import ENTRIES
from kelp_spec.metadata import Answer, Event, Op, Outcome, PageState
from kelp_spec.registers import SESSION_BASE, SESSION_STRIDE

from .fifo_specs import SMALL
from .inside import open_up, register, sound

__all__ = ["HintOwner", "HotLaneOwner", "RegisterOwner", "RequestOwner"]


def _free(m, *values):
    """The solver drives them."""
    for value in values:
        m.d.comb += value.eq(AnySeq(len(value)))


def _steady(m, sessions):
    """A session changes hands only while it is not open (`Sessions`)."""
    for s in sessions:
        was = Signal(5)
        m.d.sync += was.eq(Cat(s.open, s.ld_id))
        m.d.comb += Assume(~(was[0] & s.open) | (was[1:] == s.ld_id))


class RequestOwner(wiring.Component):
    """A request of an LD-ID that does not own its session, or to a session that is not open or
    closing, or beyond what the session uses: M3 refuses it. It is answered with NXM or Cmp, uses no
    frame, takes or gives none, touches no score, step, pin or miss entry, and its page word is left
    as it was, but for the repair of a bit."""

    def __init__(self, block=SessionCheck):
        self.check = block(config=SMALL)
        self.decide = Decide(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.check, m.submodules.decide = check, d = self.check, self.decide
        session, op, x, half = check.session, d.op, d.context, SMALL.half_line_bits
        _free(m, session.as_value(), op.as_value(), x.as_value(), d.word.as_value())
        _free(m, check.refused, check.queue)
        owns = session.open & ~session.closing & (session.ld_id == op.origin.ld_id)
        within = (
            (check.queue < session.used_queues)
            & (op.page < session.used_pages)
            & (op.kv_line[:half] < session.used_lines)
            & ~(op.kv_line[half] & session.k_only)
        )
        asked = x.valid & ((op.kind == Op.READ) | (op.kind == Op.WRITE))
        m.d.comb += [
            check.ld_id.eq(op.origin.ld_id),
            check.page.eq(op.page),
            check.kv_line.eq(op.kv_line),
            # What the tracker says to M3 of a request.
            Assume(x.event == check.event),
            Assume(x.asks == (asked & (check.event == Event.NONE) & ~op.no_memory)),
            Assume(x.kinds == x.valid << op.kind),
            Assume(x.grants == (x.kinds[Op.GRANT] & ~op.failed)),
            *(Assume(x[f] == value) for f, value in frame_of(op.kind, x.asks, op.write).items()),
            *(
                Assume(x.states[s] == Mux(x.uncorrected, s == PageState.LOST, d.word.state == s))
                for s in PageState
            ),
            Assume(~(x.corrected & x.uncorrected)),
            Assume(~x.can_take | x.can_pop),
            Assume(~x.can_prefetch | x.can_take),
        ]
        refused, changes = asked & ~(owns & within), d.strobes
        answer = d.frame_op.p.answer
        repairs = x.corrected | x.uncorrected
        quiet = [
            changes[name]
            for name in changes.shape().members
            if name not in ("write", "unpin", "drop")  # with a word that is lost
        ]
        m.d.comb += [
            Assert(~refused | (d.result.outcome == Outcome.REFUSED)),
            Assert(~refused | ((answer == Answer.NXM) | (answer == Answer.CMP))),
            Assert(~refused | ~(d.frame_op.p.use | d.score.valid | d.result.first)),
            Assert(~refused | ~Cat(quiet).any()),
            Assert(~refused | ~changes.write | repairs),
            Assert(~refused | (d.result.word.as_value() == d.result.old.as_value())),
            Cover(asked & ~refused & (d.result.outcome == Outcome.HIT)),
            Cover(refused & owns & (check.refused == Event.NONE)),
            Cover(refused & (session.ld_id != op.origin.ld_id) & (check.refused == Event.NONE)),
        ]
        return m


class HotLaneOwner(wiring.Component):
    """A request that may take the hot lane, as far as its own fields tell, is its session's
    owner's, and of a line that the session uses: by the session's registers of the cycle before."""

    def __init__(self, block=Foresight):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.foresight = a = self.block
        r, half = a.request, SMALL.half_line_bits
        for name, member in a.signature.members.items():
            if member.flow is wiring.In and name != "valid":  # which the block's own check needs
                value = getattr(a, name)
                _free(m, value.as_value() if hasattr(value, "as_value") else value)
        # M0's request is the one that was ahead, once that has moved on, and else stays.
        started, coming = Signal(), Signal(r.shape())
        ahead = Array(a.ahead.candidates[k].as_value() for k in range(2))[a.ahead.which]
        owner = Signal(a.sessions[0].shape())
        before = Array(s.as_value() for s in (a.sessions[k] for k in range(SMALL.sessions)))
        m.d.sync += [started.eq(1), coming.as_value().eq(r.as_value())]
        with m.If(a.moves):
            m.d.sync += coming.as_value().eq(ahead)
        of = Signal(r.shape())
        m.d.comb += of.as_value().eq(r.as_value())
        with m.If(a.moves):
            m.d.comb += of.as_value().eq(ahead)
        m.d.sync += owner.as_value().eq(before[of.session])
        m.d.comb += [
            Assume(~started | (r.as_value() == coming.as_value())),
            Assume(r.session < SMALL.sessions),
            Assume(of.session < SMALL.sessions),
            Assert(~(started & a.good) | (r.ld_id == owner.ld_id)),
            Assert(~(started & a.good) | (r.kv_line[:half] < owner.used_lines)),
            Assert(~(started & a.good) | r.memory),
            Assert(~(started & a.good) | ~(r.kv_line[half] & owner.k_only)),
            Assert(started | ~a.good),
            Cover(started & a.good & (r.ld_id == 5)),
        ]
        return m


class HintOwner(wiring.Component):
    """What a hint line asks for leaves only while its session is open, if LD-ID 0 or the session's
    owner of that very moment has written the line, and names a queue of that session. Followed from
    the head of the lines that wait."""

    def __init__(self, block=HintAbsorber):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        c = SMALL
        m.submodules.hints = a = self.block
        _free(m, a.i.valid, a.i.p.as_value(), a.o_op.ready, a.o_prefetch.ready)
        sessions = [a.sessions[k] for k in range(c.sessions)]
        for s in sessions:
            _free(m, s.as_value())
            m.d.comb += Assume(s.used_queues <= c.queues)
        _steady(m, sessions)
        owners, live = (
            Array(s.ld_id for s in sessions),
            Array(s.open & ~s.closing for s in sessions),
        )
        line, item = register(a, "line"), register(a, "item")
        left, step, void = (register(a, name) for name in ("left", "step", "void"))

        def theirs(of):
            """Of whoever owns its session now, and of a queue of it."""
            base = of.session * c.queues
            return (
                ((of.ld_id == 0) | (of.ld_id == owners[of.session]))
                & (of.squeue >= base)
                & (of.squeue < base + c.queues)
            )

        heads, bodies = open_up(a).heads.fifo, open_up(a).bodies
        sound(m, heads)
        sound(m, bodies)
        line_valid = register(a, "line_valid")
        asks = line_valid & ((left != 0) | step)
        acts = register(a, "item_valid") & (item.type != 0)
        leaves, left_of = register(a, "leaves"), Signal(c.squeue_bits)
        m.d.sync += left_of.eq(item.squeue)
        came = Signal()
        m.d.sync += came.eq(leaves)
        m.d.comb += [
            # For the induction: a line whose entries wait is at the head of them, judged or not.
            Assert(bodies.level == heads.level + register(a, "head_valid") + line_valid),
            Assert(~line_valid | register(a, "gap") | register(a, "told") | step | (left != 0)),
            Assert(left <= ENTRIES),
            Assert(~(left != 0) | line_valid),
            Assert(~register(a, "told") | (line.code != Event.NONE)),
            Assert((item.type != 0) | ~register(a, "item_valid") | (item.code != Event.NONE)),
            Assert(~(a.o_op.valid & a.o_prefetch.valid)),
            Assert(~leaves | (theirs(item) & live[item.session])),
            Assert(~(asks & ~void & live[line.session]) | theirs(line)),
            Assert(~(acts & ~item.void & live[item.session]) | theirs(item)),
            Assert(~(came & a.o_op.valid) | (a.o_op.p.squeue == left_of)),
            Assert(~(came & a.o_prefetch.valid) | (a.o_prefetch.p.squeue == left_of)),
            Cover(leaves & (item.ld_id == 5)),
            Cover(acts & item.void),
        ]
        return m


class RegisterOwner(wiring.Component):
    """A register of a session reads zero to whoever is neither LD-ID 0 nor its owner in the cycle
    in which it is addressed, external ones too; it changes by no write of his, and no command of
    his is passed on."""

    def __init__(self, block=RegisterFile):
        self.block = block(config=SMALL, external=("s0_resident", "s1_resident"))
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        a, sessions = self.block, range(SMALL.sessions)
        m.submodules.file = a
        for name, member in a.signature.members.items():
            if member.flow is wiring.In:
                value = getattr(a, name)
                _free(m, value.as_value() if hasattr(value, "as_value") else value)
        base, stride = SESSION_BASE // 8, SESSION_STRIDE // 8
        may = Signal(len(sessions), name="may")
        of, was_of = Signal(len(sessions)), Signal(len(sessions))
        m.d.comb += [
            *(
                of[s].eq((a.index >= base + s * stride) & (a.index < base + (s + 1) * stride))
                for s in sessions
            ),
            *(may[s].eq((a.ld_id == 0) | (a.ld_id == a.owner[s])) for s in sessions),
        ]
        # `foreign` addresses a register of a session that is not his: now, and one and two cycles
        # ago; the first cycles after reset count as that, since nothing has been addressed.
        foreign, foreign_1, foreign_2 = Signal(), Signal(init=1), Signal(init=1)
        foreign_3 = Signal(init=1)
        m.d.comb += foreign.eq((of & ~may).any())
        m.d.sync += [foreign_1.eq(foreign), foreign_2.eq(foreign_1), foreign_3.eq(foreign_2)]
        m.d.sync += was_of.eq(of)
        m.d.comb += [
            Assert(~foreign_1 | ~a.allowed),
            Assert(~foreign_2 | ~register(a, "was_allowed")),
            Assert(~foreign_3 | (a.read_data == 0)),
        ]
        reads = Signal()
        for s in sessions:
            held = Cat(
                getattr(a, name).as_value()
                for name in a.signature.members
                if name.startswith(f"rw_s{s}_")
            )
            before, keeps = Signal(len(held), name=f"before_{s}"), Signal(name=f"keeps_{s}")
            m.d.sync += [
                before.eq(held),
                keeps.eq(~a.forget[s] & (foreign_1 | ~was_of[s])),
            ]
            m.d.comb += Assert(~keeps | (held == before))
            for name in a.signature.members:
                if name.startswith(f"wo_s{s}_") and name.endswith("_strobe"):
                    m.d.comb += Assert(~getattr(a, name) | (was_of[s] & ~foreign_1))
            # For the induction: a register is selected where its session was addressed.
            for name, here in register(a, "here").items():
                if name.startswith(f"s{s}_"):
                    m.d.comb += Assert(~here | was_of[s])
        m.d.comb += reads.eq(a.read_data != 0)
        m.d.comb += [
            Cover(~foreign_3 & reads & (a.ld_id == 5)),
            Cover(foreign_3 & (a.owner[0] == 5)),
        ]
        return m
