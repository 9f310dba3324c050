# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of the miss table as M3 sees it, and of the line for frames, for the solver, by
induction."""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cover, Module, Mux, Signal, Value
from amaranth.lib import wiring

from kelp_hw.miss.grants import MissGrants
from kelp_hw.tracker.miss_ids import MissIds
from kelp_spec.config import POOLS
from kelp_spec.metadata import Op, Outcome

from .fifo_specs import SMALL
from .inside import Follow, open_up, row, total, word_at
from .prove import mutant

__all__ = ["MissGrantsContract", "MissIdsContract"]


class MissIdsContract(wiring.Component):
    """Ids leave in the order in which they came, each once; whoever M0 let in by its rule finds
    one; and of an entry, any one, `empty` is exact.

    M0's rule: an op that may take an id enters only if `level` is more than such ops on their way
    to M3, four stages. The miss buffer's: an id comes back when nothing is parked on its entry any
    more.
    """

    STAGES = 4

    def __init__(self, block=MissIds):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.ids = d = self.block
        bits = SMALL.miss_bits
        m.d.comb += [d.i.valid.eq(AnySeq(1)), d.i.p.eq(AnySeq(bits))]
        ways = Signal(self.STAGES)
        admitted = AnySeq(1) & (d.level > total(ways, 3))
        m.d.sync += ways.eq((ways << 1) | admitted)
        kind, at_m3 = AnySeq(2), ways[-1]
        m.d.comb += [
            d.take.eq(at_m3 & (kind == 1)),
            d.parked.eq(AnySeq(1)),
            d.park.eq(kind == 2),
            d.park_id.eq(AnySeq(bits)),
            d.unpark.eq(kind == 3),
            d.look.eq(AnySeq(bits)),
            d.select.eq(AnySeq(bits)),
        ]
        # Ids at hand.
        f = Follow(
            m,
            arrives=d.i.valid & d.i.ready,
            word_in=d.i.p,
            leaves=d.take,
            word_out=d.id,
            most=d.DEPTH,
        )
        m.d.comb += [
            Assert(f.owed == d.level),
            Assert(~f.on | (Array(d.ids)[f.ahead] == f.word)),
            Assert(d.level >= total(ways, 3)),
            Assert(d.level <= d.DEPTH),
            Assert(~d.take | (d.level != 0)),
            Cover(f.leaving & (d.level == d.DEPTH)),
        ]
        # Requests parked on an entry: M3 replays what is parked there, and no more requests park
        # than there are places.
        entry, parked, looked, begun = (
            AnyConst(bits),
            Signal(range(SMALL.parked + 1)),
            Signal(bits),
            Signal(),
        )
        more = Mux(d.take, d.parked & (d.id == entry), d.park & (d.park_id == entry))
        less, mine = d.unpark & (d.select == entry), d.select == entry
        m.d.sync += [
            parked.eq(Mux(d.take & (d.id == entry), d.parked, parked + more - less)),
            looked.eq(d.look),
            begun.eq(1),
        ]
        m.d.comb += [
            Assume((d.select == looked) | ~begun),
            Assume(begun | ~(d.unpark | d.park)),
            Assume(~less | (parked != 0)),
            Assume(~more | (parked < SMALL.parked)),
            Assert(parked <= SMALL.parked),
            # An id comes back when nothing is parked on its entry any more.
            Assume(~(d.take & (d.id == entry)) | (parked == 0)),
            # Of the others, what this proof says of any one.
            Assume(~d.unpark | mine | ~d.empty),
            Assert(~(begun & mine) | (d.empty == (parked == 0))),
            Assert(Array(d.counts)[entry] == parked),
            Cover(begun & mine & less & (parked == 3)),
        ]
        return m


class _Grants:
    """What the contract knows about a cycle of the block."""

    STATES = ("LOOK", "READ", "JUDGE", "SEND", "DECIDED")

    def __init__(self, block, answer: int):
        inside = open_up(block)
        self.rows = inside.rows
        self.lines = [open_up(getattr(inside, f"line_{name}")).fifo for name in POOLS]
        self.at = {name: block.fsm.ongoing(name) for name in self.STATES}
        self.pool = AnyConst(range(len(POOLS)))  #: the followed one
        self.prompt = AnyConst(1)  #: the other side is quick, and what the bound needs is so
        self.asked = Signal()  #: a GRANT has gone and is not answered
        self.asked_for = Signal(range(answer + 1))
        self.turn = Signal(range(len(POOLS)))  #: the pool of the last GRANT
        payload = block.i.p.shape()
        self.told, self.kept = Signal(payload), Signal(payload)  #: this GRANT, the last one
        self.word = Signal(payload)  #: the followed miss


class MissGrantsContract(wiring.Component):
    """Of a pool, any one: each miss is asked for in the order in which they came, whole, until M3's
    answer is DONE, and then never again; and when the pool has had a frame since the cycle before,
    M3 takes ops at once and answers in `ANSWER` cycles, the pool's first is asked for within
    `BOUND` cycles.

    A miss id is in line once, as the miss buffer keeps it.
    """

    ANSWER = 2
    #: Each of the three other pools may come first, with a look, a read, a judgement, an op and its
    #: answer; then this one is looked at and judged. One more when its turn has come in the very
    #: cycle in which the first id is on its way through the FIFO.
    BOUND = 3 * (4 + ANSWER) + 4

    def __init__(self, block=MissGrants):
        # The block shows neither its state machine nor whose turn it is.
        shown = mutant(
            mutant(block, "with m.FSM():", "with m.FSM() as self.fsm:"),
            "pool = Signal(",
            "pool = self.pool = Signal(",
        )
        self.block = shown(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.grants = block = self.block
        grants = _Grants(block, self.ANSWER)
        self._drive(m, grants)
        f = self._follow(m, grants)
        for p, line in enumerate(grants.lines):
            with m.If(grants.pool != p):
                # what is proved of the chosen one
                m.d.comb += Assume(~(block.i.valid & (block.i.p.pool == p)) | line.w_rdy)
        for p in range(len(POOLS)):
            self._line(m, grants, p, f)
        self._inside(m, grants, f)
        self._bound(m, grants, f)
        m.d.comb += Cover(f.leaving & (f.owed == 2) & (grants.word.pool == 2))
        return m

    def _drive(self, m: Module, grants: _Grants) -> None:
        """The inputs. M3 answers each GRANT once."""
        g, o, fields = self.block, self.block.o_op, Value.cast(self.block.i.p)
        asked, asked_for, prompt = grants.asked, grants.asked_for, grants.prompt
        with m.If(g.i_outcome.valid):
            m.d.sync += asked.eq(0)
        with m.If(o.valid & o.ready):
            m.d.sync += asked.eq(1)
        m.d.sync += asked_for.eq(Mux(asked & ~g.i_outcome.valid & prompt, asked_for + 1, 0))
        m.d.comb += [
            g.i.valid.eq(AnySeq(1)),
            fields.eq(AnySeq(len(fields))),
            g.i_outcome.p.eq(Mux(AnySeq(1), Outcome.DONE, Outcome.RETRY)),
            g.now.eq(AnySeq(len(g.now))),
            g.starve_limit.eq(AnySeq(len(g.starve_limit))),
            o.ready.eq(AnySeq(1)),
            *(count.eq(AnySeq(len(count))) for count in g.pool_free),
            Assume(~prompt | o.ready),
            g.i_outcome.valid.eq(asked & AnySeq(1)),
            Assume(~(prompt & (asked_for == self.ANSWER - 1)) | ~asked | g.i_outcome.valid),
        ]

    def _follow(self, m: Module, grants: _Grants) -> Follow:
        """One miss of the pool, from its arrival to its GRANT that is DONE."""
        g, o, op, told, pool = (
            self.block,
            self.block.o_op,
            self.block.o_op.p,
            grants.told,
            grants.pool,
        )
        arrives = g.i.valid & (g.i.p.pool == pool)
        done = g.i_outcome.valid & (g.i_outcome.p == Outcome.DONE)
        m.d.sync += grants.turn.eq(Mux(o.valid, op.pool, grants.turn))
        m.d.comb += [
            getattr(told, name).eq(getattr(op, "miss_kind" if name == "kind" else name))
            for name in g.i.p.shape().members
        ]
        with m.If(o.valid):
            m.d.sync += grants.kept.eq(told)
        f = Follow(
            m,
            arrives=arrives,
            word_in=g.i.p,
            leaves=done & (grants.turn == pool),
            word_out=grants.kept,
            most=SMALL.misses + 1,
        )
        m.d.comb += [
            grants.word.as_value().eq(f.word),
            Assume(~(f.on & g.i.valid) | (g.i.p.miss != grants.word.miss)),
            Assume(~arrives | (f.owed < SMALL.misses)),
            Assert(~o.valid | (op.kind == Op.GRANT)),
            Assert(~(o.valid & (op.pool == pool)) | (f.owed != 0)),
        ]
        return f

    def _line(self, m: Module, grants: _Grants, p: int, f: Follow) -> None:
        """For the induction: the line of pool `p`, whose pointers and level agree."""
        line = grants.lines[p]
        level = line.level - line.r_rdy
        place = Signal(len(f.ahead), name=f"ahead_{p}")
        m.d.comb += place.eq(f.ahead)
        at_place = word_at(m, line, place)
        storage = open_up(line).storage
        consume, produce, depth = (
            storage.read_ports[0].addr,
            storage.write_ports[0].addr,
            storage.depth,
        )
        end = consume + level
        m.d.comb += [
            Assert((consume < depth) & (produce < depth) & (level >= 0) & (level <= depth)),
            Assert(produce == Mux(end >= depth, end - depth, end)),
            Assert(line.r_rdy | (level <= 1)),
        ]
        with m.If(grants.pool == p):
            m.d.comb += [
                Assert(f.owed == line.level),
                Assert(~f.on | (at_place == grants.word.miss)),
                Assert(~line.r_rdy | ~grants.at["JUDGE"] | (self.block.pool != p) | (f.owed != 0)),
            ]

    def _inside(self, m: Module, grants: _Grants, f: Follow) -> None:
        """For the induction: what the block's states hold of the followed miss."""
        g, at, o, op, word = self.block, grants.at, self.block.o_op, self.block.o_op.p, grants.word
        stored = row(m, open_up(open_up(grants.rows).rows).memory, word.miss)
        head_here = f.on & (f.ahead == 0) & (g.pool == grants.pool)
        r_data = Array(line.r_data for line in grants.lines)[g.pool]
        m.d.comb += [
            Assert(~f.on | (stored[: len(Value.cast(g.i.p))] == word.as_value())),
            Assert(~f.on | (word.pool == grants.pool)),
            Assert(
                ~(at["JUDGE"] & head_here)
                | (Value.cast(grants.rows.read_data.waiting) == word.as_value())
            ),
            Assert(at["LOOK"] | Array(line.r_rdy for line in grants.lines)[g.pool]),
            Assert(at["SEND"] == o.valid),
            Assert(at["DECIDED"] == grants.asked),
            Assert(~(at["SEND"] & head_here) | (grants.told.as_value() == word.as_value())),
            Assert(~(at["DECIDED"] & head_here) | (grants.kept.as_value() == word.as_value())),
            Assert(~at["SEND"] | (op.pool == g.pool)),
            Assert(~at["DECIDED"] | (grants.turn == g.pool)),
            Assert(total(at.values(), 3) == 1),
            Assert(~at["READ"] | (g.head == r_data)),
        ]

    def _bound(self, m: Module, grants: _Grants, f: Follow) -> None:
        """How long a miss waits, and, for the induction, what is left of it at most."""
        g, at, op, pool = self.block, grants.at, self.block.o_op.p, grants.pool
        asked, asked_for, prompt = grants.asked, grants.asked_for, grants.prompt
        waited, has_frame, had_frame = Signal(range(self.BOUND + 2)), Signal(), Signal()
        now_has = Array(count != 0 for count in g.pool_free)[pool]
        m.d.sync += had_frame.eq(now_has)
        m.d.comb += [
            has_frame.eq(now_has & had_frame),
            Assert(g.had_frame.bit_select(pool, 1) == had_frame),
        ]
        asks = (g.o_op.valid & (op.pool == pool)) | (asked & (grants.turn == pool))
        m.d.sync += waited.eq(Mux(prompt & (f.owed != 0) & has_frame & ~asks, waited + 1, 0))
        r_rdy = Array(line.r_rdy for line in grants.lines)
        others, turn_costs, left = Signal(2), 4 + self.ANSWER, Signal(range(self.BOUND + 1))
        sending = Mux(at["SEND"], self.ANSWER, 0) + Mux(at["DECIDED"], self.ANSWER - asked_for, 1)
        here = Mux(
            at["LOOK"],
            turn_costs,
            Mux(at["READ"], turn_costs - 1, Mux(at["JUDGE"], turn_costs - 2, sending)),
        )
        m.d.comb += [
            others.eq(pool - g.pool),
            Assert(asked_for < self.ANSWER),
            Assert((asked_for == 0) | asked),
            Assert((waited == 0) | r_rdy[pool]),
            left.eq(
                Mux(
                    others == 0,
                    Mux(
                        at["LOOK"],
                        Mux(r_rdy[g.pool], 3, self.BOUND),
                        Mux(at["READ"], 2, at["JUDGE"]),
                    ),
                    (others - 1) * turn_costs + 3 + here,
                )
            ),
            Assert(waited + left <= self.BOUND),
            Assert(prompt | (waited == 0)),
            Assert(waited <= self.BOUND),
            Cover(waited == self.BOUND),
        ]
