# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Which queue of each pool is furthest over its budget: three cycles per level of a tree (spec §7,
docs/design.md §6)."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import POOLS, Config

from ..layouts import POOL_BITS
from ..lib.split_sram import SplitSram
from .signatures import EvictionLayouts

__all__ = ["ExcessTree"]


class ExcessTree(wiring.Component):
    """Four binary trees (one per pool) of maxima in one memory: a node holds the largest excess of
    the squeues below it and who has it, the lower of equals.

    `start` writes one squeue's leaf and walks to the root: three cycles per level. Latency:
    `LATENCY` cycles, while `busy`. Interval: `INTERVAL`. The roots stand in registers. After reset
    the block clears its memory, busy meanwhile.

    Parameters
    ----------
    config : Config

    Members
    -------
    start, pool, squeue, excess : in
        One leaf's new value; only while not `busy`.
    busy : out
        A walk is under way, or the clearing after reset.
    roots : out, array of root
    """

    @property
    def LATENCY(self):
        """Cycles of a walk."""
        return 3 * self.levels + 1

    @property
    def INTERVAL(self):
        """Cycles from a `start` to the next."""
        return self.LATENCY + 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = EvictionLayouts(config)
        self.levels = config.squeue_bits
        super().__init__(
            {
                "start": In(1),
                "pool": In(POOL_BITS),
                "squeue": In(config.squeue_bits),
                "excess": In(layouts.root["excess"].shape),
                "busy": Out(1),
                "roots": Out(data.ArrayLayout(layouts.root, len(POOLS))),
            }
        )
        # State that proofs look at (kelp_verif.formal.order_specs): the walk is at `node` of a
        # pool's tree, whose value is `best`.
        self.walk_pool, self.node = Signal(POOL_BITS), Signal(self.levels + 1)
        self.best = Signal(layouts.root)

    def elaborate(self, platform):
        m = Module()
        root = self.layouts.root
        # heap order: 1 is the root, leaf of squeue q is 2^levels + q
        node_bits = self.levels + 1
        m.submodules.nodes = nodes = SplitSram(depth=len(POOLS) << node_bits, shape=root)
        roots = Array([Signal(root, name=f"root{p}") for p in range(len(POOLS))])
        m.d.comb += [self.roots[p].eq(roots[p]) for p in range(len(POOLS))]

        pool, node, best, sibling = self.walk_pool, self.node, self.best, nodes.read_data
        m.d.comb += [nodes.read_address.eq(Cat(node ^ 1, pool))]
        clear = Signal(range(nodes.depth))

        with m.FSM(init="CLEAR") as self.fsm:
            with m.State("CLEAR"):
                m.d.comb += [self.busy.eq(1), nodes.write_en.eq(1), nodes.write_address.eq(clear)]
                m.d.sync += clear.eq(clear + 1)
                with m.If(clear == nodes.depth - 1):
                    m.next = "IDLE"
            with m.State("IDLE"):
                m.d.sync += [
                    pool.eq(self.pool),
                    node.eq(Cat(self.squeue, Const(1, 1))),
                    best.squeue.eq(self.squeue),
                    best.excess.eq(self.excess),
                ]
                with m.If(self.start):
                    m.next = "WRITE"
            with m.State("WRITE"):
                # This node is known; its sibling is fetched to make their parent.
                m.d.comb += [
                    self.busy.eq(1),
                    nodes.write_en.eq(1),
                    nodes.write_address.eq(Cat(node, pool)),
                    nodes.write_data.eq(best),
                    nodes.read_en.eq(1),
                ]
                with m.If(node == 1):
                    m.d.sync += roots[pool].eq(best)
                    m.next = "IDLE"
                with m.Else():
                    m.next = "FETCH"
            with m.State("FETCH"):
                # The sibling comes out of the memory's register a cycle later.
                m.d.comb += self.busy.eq(1)
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.d.comb += self.busy.eq(1)
                # The left child has the lower squeues and wins ties.
                with m.If(
                    Mux(node[0], sibling.excess >= best.excess, sibling.excess > best.excess)
                ):
                    m.d.sync += best.eq(sibling)
                m.d.sync += node.eq(node >> 1)
                m.next = "WRITE"
        m.d.sync += Assert(~self.start | ~self.busy, "a leaf was given during a walk")
        return m
