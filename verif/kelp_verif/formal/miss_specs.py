# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Contracts of the miss path's lists, for sby: no id with two owners; nothing lost, duplicated or
reordered within a list."""

from amaranth.asserts import AnyConst, AnySeq
from amaranth.hdl import Array, Assert, Assume, Cover, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from kelp_hw.miss.park_lists import ParkLists

__all__ = ["ParkListsContract"]


class ParkListsContract(wiring.Component):
    """Lists live, are read and live again in any legal pattern. One append of a chosen list is
    followed: it is read after exactly those before it, with its data, before the list calls itself
    empty; no list yields more than it was given.
    """

    def __init__(self, block=ParkLists, *, lists: int = 2, nodes: int = 2):
        self.block, self.lists, self.nodes, self.width = (
            block(lists=lists, nodes=nodes, shape=1),
            lists,
            nodes,
            1,
        )
        list_shape = range(lists)
        super().__init__(
            {
                "i_valid": In(1),
                "list": In(list_shape),
                "create": In(1),
                "park": In(1),
                "data": In(self.width),
                "start": In(1),
                "visit_next": In(list_shape),
                "end": In(1),
                "ready": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = self.block
        alive, lived = Signal(self.lists), Signal(self.lists)
        visiting, visit = Signal(), Signal(range(self.lists))
        chosen = AnyConst(range(self.lists))
        mine = self.i_valid & (self.list == chosen)
        first_life = ~lived.bit_select(self.list, 1)
        m.d.comb += [
            dut.i.valid.eq(self.i_valid),
            dut.i.p.list.eq(self.list),
            dut.i.p.park.eq(self.park),
            dut.i.p.data.eq(self.data),
            dut.i.p.create.eq(self.create),
            dut.visit.eq(Mux(self.start, self.visit_next, visit)),
            dut.visit_start.eq(self.start),
            dut.o.ready.eq(self.ready),
            # The miss buffer's side of the bargain.
            Assume(chosen < self.lists),
            Assume(self.list < self.lists),
            Assume(self.visit_next < self.lists),
            Assume(~self.i_valid | (self.create != alive.bit_select(self.list, 1))),
            Assume(~self.i_valid | self.create | self.park),
            Assume(
                ~(self.i_valid & self.create & first_life)
                | (self.list == sum(lived[i] for i in range(self.lists)))
            ),
            Assume(~(self.i_valid & self.park) | (dut.level >= 2)),
            Assume(~self.start | (~visiting & alive.bit_select(self.visit_next, 1))),
        ]
        with m.If(self.i_valid & self.create):
            m.d.sync += [alive.bit_select(self.list, 1).eq(1), lived.bit_select(self.list, 1).eq(1)]
        with m.If(self.start):
            m.d.sync += [visiting.eq(1), visit.eq(self.visit_next)]

        # What each list owes: all of it, and of the chosen one that which has had two cycles to
        # show.
        reads = dut.o.valid & dut.o.ready
        read_mine = reads & (visit == chosen)
        owing = Array(Signal(4, name=f"owed_{i}") for i in range(self.lists))
        for i, count in enumerate(owing):
            m.d.sync += count.eq(
                count + (self.i_valid & self.park & (self.list == i)) - (reads & (visit == i))
            )
        owed, parked_1, parked_2 = owing[chosen], Signal(), Signal()
        m.d.sync += [parked_1.eq(mine & self.park), parked_2.eq(parked_1)]
        m.d.comb += [
            Assert(~reads | visiting),
            Assert(~read_mine | (owed != 0)),
            Assert(~(dut.empty & visiting & (visit == chosen)) | (owed == parked_1 + parked_2)),
        ]
        # A life ends when M3 says that nothing is parked: the list is empty and nothing is on its
        # way.
        with m.If(
            self.end
            & visiting
            & dut.empty
            & (owing[visit] == 0)
            & ~(self.i_valid & (self.list == visit))
        ):
            m.d.comb += dut.visit_end.eq(1)
            m.d.sync += [visiting.eq(0), alive.bit_select(visit, 1).eq(0)]

        follow, before, value = Signal(), Signal(4), Signal(self.width)
        with m.If(~follow & AnySeq(1) & mine & self.park):
            m.d.sync += [follow.eq(1), before.eq(owed - read_mine), value.eq(self.data)]
        with m.Elif(follow & read_mine):
            m.d.sync += before.eq(before - 1)
            with m.If(before == 0):
                m.d.sync += follow.eq(0)
                m.d.comb += Assert(dut.o.payload == value)
        again = Signal()
        with m.If(mine & self.create & lived.bit_select(chosen, 1)):
            m.d.sync += again.eq(1)
        m.d.comb += Cover(again & follow & read_mine & (before == 0))
        return m
