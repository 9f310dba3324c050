# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of the two blocks that say which is best, a sweep's candidates and the queue furthest
over its budget, for the solver, by induction."""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cat, Const, Cover, Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.eviction.candidates import CandidateList
from kelp_hw.eviction.excess_tree import ExcessTree
from kelp_spec.config import POOLS

from .fifo_specs import SMALL
from .inside import open_up, row, total
from .prove import mutant

__all__ = ["CandidatesContract", "ExcessTreeContract"]


class CandidatesContract(wiring.Component):
    """One inserted candidate, any one, is followed: as long as fewer than K of those here are
    better, it is on the list behind exactly those, and so leaves after them; and a place is free
    only when the list is not full. Better: lower class, then higher priority, then earlier. It
    counts as here from the cycle after that in which it is `coming`, and it is coming in the cycle
    after that in which it is inserted."""

    def __init__(self, block=CandidateList):
        self.block = block(config=SMALL)
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.list = a = self.block
        keep = SMALL.candidates
        m.d.comb += [
            a.clear.eq(AnySeq(1)),
            a.take.eq(AnySeq(1)),
            a.i.valid.eq(AnySeq(1)),
            a.i.p.as_value().eq(AnySeq(len(a.i.p.as_value()))),
            Assume(~((a.i.valid | a.coming_valid) & a.take)),
            Assume(~a.take | a.best.valid),
        ]
        comes, coming = Signal(), Signal(a.i.p.shape())
        m.d.sync += [comes.eq(a.i.valid & ~a.clear), coming.eq(a.i.p)]
        m.d.comb += [
            Assert(comes == a.coming_valid),
            Assert(coming.as_value() == a.coming.as_value()),
        ]

        def same(x, y):
            return Cat(x[name] == y[name] for name in y.shape().members).all()

        def not_behind(x, y):
            """x, the older one, goes before y."""
            return (x.kind < y.kind) | ((x.kind == y.kind) & (x.priority >= y.priority))

        # Of one key, any one: how many here would go before a newcomer with it. More than the list
        # holds are no more than that.
        mine = Signal(a.i.p.shape())
        m.d.comb += mine.as_value().eq(AnyConst(len(a.i.p.as_value())))
        before = Signal(range(keep + 1))
        on, rank, size = Signal(), Signal(range(keep + 1)), Signal(range(keep + 1))
        taken = a.take & a.best.valid
        with m.If(comes):
            m.d.sync += size.eq(Mux(size == keep, keep, size + 1))
            with m.If(not_behind(coming, mine)):
                m.d.sync += before.eq(Mux(before == keep, keep, before + 1))
            with m.If(on & ~not_behind(mine, coming)):
                m.d.sync += [rank.eq(rank + 1), on.eq(rank != keep - 1)]
            with m.If(~on & (coming.as_value() == mine.as_value()) & (before != keep) & AnySeq(1)):
                m.d.sync += [on.eq(1), rank.eq(before)]
        with m.If(taken):
            m.d.sync += size.eq(size - 1)
            with m.If(not_behind(a.best, mine)):
                m.d.sync += before.eq(before - 1)
            m.d.sync += [rank.eq(rank - 1), on.eq(on & (rank != 0))]
        with m.If(a.clear):
            m.d.sync += [before.eq(0), on.eq(0), size.eq(0)]
        places = Array(a.places)
        m.d.comb += [
            Assert(
                ~on | (a.valid.bit_select(rank, 1) & (places[rank].as_value() == mine.as_value()))
            ),
            Assert(~on | (rank < keep)),
            Assert(~(on & (rank == 0)) | (a.best.valid & (same(a.best, mine)))),
            Assert(a.best.valid == (size != 0)),
            Assert(size == total(a.valid, 3)),
            # For the induction: what counts as before is what stands there.
            Assert(
                before
                == total(
                    (v & not_behind(p, mine) for v, p in zip(a.valid, a.places, strict=True)), 3
                )
            ),
            Assert(~on | (rank < before)),
            *(
                Assert(~comes | (a.before[k] == ~(v & not_behind(p, coming))))
                for k, (v, p) in enumerate(zip(a.valid, a.places, strict=True))
            ),
            *(
                Assert(~a.valid[k + 1] | (a.valid[k] & not_behind(a.places[k], a.places[k + 1])))
                for k in range(keep - 1)
            ),
            Cover(on & (rank == keep - 1) & taken),
            Cover(on & (rank == 0) & (size == keep) & (a.best.kind == 2)),
        ]
        return m


class ExcessTreeContract(wiring.Component):
    """Of a pool, any one: whenever the tree is not busy, its root has the largest excess that was
    given, and the lowest squeue that has it if it is not zero. A walk takes `LATENCY`. Leaves are
    given at any time when the tree is not busy.

    `cleared` begins when the clearing is over, to be quicker at finding what a walk does wrong
    (here the memory begins as zeros anyway).
    """

    def __init__(self, block=ExcessTree, *, cleared: bool = False):
        self.block = (mutant(block, 'FSM(init="CLEAR")', 'FSM(init="IDLE")') if cleared else block)(
            config=SMALL
        )
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = t = self.block
        nodes = open_up(t).nodes
        rows = open_up(nodes).whole
        memory, levels, leaves = open_up(rows).memory, t.levels, SMALL.squeues
        pool = AnyConst(range(len(POOLS)))
        m.d.comb += [
            t.pool.eq(AnySeq(2)),
            t.squeue.eq(AnySeq(SMALL.squeue_bits)),
            t.excess.eq(AnySeq(len(t.excess))),
            t.start.eq(AnySeq(1) & ~t.busy),
        ]
        given = Array(Signal(len(t.excess), name=f"given_{q}") for q in range(leaves))
        with m.If(t.start & (t.pool == pool)):
            m.d.sync += given[t.squeue].eq(t.excess)

        def state(name):
            return t.fsm.ongoing(name)

        clearing = state("CLEAR")
        mine = (state("WRITE") | state("FETCH") | state("COMPARE")) & (t.walk_pool == pool)
        busy_for, updated = Signal(range(t.LATENCY + 1)), Signal()
        with m.If(t.busy & ~clearing):
            m.d.sync += busy_for.eq(busy_for + 1)
        with m.Else():
            m.d.sync += busy_for.eq(0)
        m.d.sync += updated.eq(updated | (mine & (t.node == 1)))

        def best_below(node):
            """(largest excess, its lowest squeue) among the leaves below the node."""
            depth = node.bit_length() - 1
            first, span = (node << levels - depth) - leaves, 1 << levels - depth
            largest, who = given[first + span - 1], first + span - 1
            for q in reversed(range(first, first + span - 1)):
                who, largest = (
                    Mux(given[q] >= largest, q, who),
                    Mux(given[q] >= largest, given[q], largest),
                )
            return largest, who

        best = [None] + [best_below(n) for n in range(1, 2 * leaves)]

        def right(value, node):
            return (value.excess == best[node][0]) & (
                (value.excess == 0) | (value.squeue == best[node][1])
            )

        root = t.roots[pool]
        m.d.comb += [
            Assert(t.busy | right(root, 1)),
            Assert(~t.busy | clearing | (busy_for < t.LATENCY)),
        ]

        # For the induction: each node is right but for those that the walk has not come to.
        held = []
        for n in range(1, 2 * leaves):
            value = Signal(root.shape(), name=f"node_{n}")
            m.d.comb += value.as_value().eq(row(m, memory, Cat(Const(n, levels + 1), pool)))
            held.append(value)
            above = total((t.node >> k == n for k in range(levels + 1)), 1)
            itself = (t.node == n) & ~state("WRITE")
            m.d.comb += [
                Assert((mine & above & ~itself) | right(value, n)),
                Assert(~clearing | (value.as_value() == 0)),
                Assert(~(mine & (t.node == n)) | right(t.best, n)),
            ]
        beside = Signal(root.shape())
        m.d.comb += [
            beside.as_value().eq(row(m, memory, Cat(t.node ^ 1, pool))),
            Assert(root.as_value() == held[0].as_value()),
            Assert(~(mine & state("FETCH")) | (rows.read_data == beside.as_value())),
            Assert(~(mine & state("COMPARE")) | (nodes.read_data.as_value() == beside.as_value())),
            Assert(~mine | (t.node != 0)),
            Assert(~(state("FETCH") | state("COMPARE")) | (t.node > 1)),
            Assert(total((state(s) for s in t.fsm.encoding), 3) == 1),
        ]
        for n in range(1, 2 * leaves):
            done = 3 * (levels - n.bit_length() + 1)
            m.d.comb += Assert(
                clearing
                | ~t.busy
                | (t.node != n)
                | (busy_for == done + Mux(state("WRITE"), 0, Mux(state("FETCH"), 1, 2)))
            )
        m.d.comb += Assert(~t.busy | clearing | (t.node != 0))
        m.d.comb += Cover(
            updated & ~t.busy & (root.excess != 0) & (root.squeue == leaves - 1) & (given[0] != 0)
        )
        return m
