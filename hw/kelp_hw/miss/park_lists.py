# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Requests that wait for a page: one linked list per miss entry, all in one memory (docs/design.md
§5). One append and one read a cycle; an append to the list that is visited is offered after 2
cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..lib.free_list import FreeList
from ..lib.protected import Fault, ProtectedMemory, merged, used

__all__ = ["ParkLists"]


class ParkLists(wiring.Component):
    """Appends to any list, reads one list at a time; nothing is lost, duplicated or reordered
    within a list (docs/design.md §5).

    Latency: an append to the list that is visited is offered at `o` `LATENCY` cycles later, if all
    before it have been read. One append and one read in each cycle (`INTERVAL`). Errors: an append
    without a free node, a visit that begins in another or leaves a list that is not empty, a list
    created out of order (all asserted); bad parameters (ValueError).

    A list is *created* (by the first append or by one without data), appended to, and read in a
    *visit*; once it is empty it may be created again. Every list always owns one empty node, its
    tail: an append fills the tail and links a new one behind it, so data and link are one write,
    and a node that is read is never written again. Lists must be created for the first time in
    ascending order (that is the order in which `FreeList` hands out miss ids), which tells a list's
    first life from the later ones without a reset walk.

    Parameters
    ----------
    lists : int
        1 and up.
    nodes : int
        Requests that can wait, 1 and up.
    shape : layout
        What is appended.
    protect : bool
        Every memory's rows carry check bits, with encoders and decoders combinational.

    Members
    -------
    i : in, always-ready stream of {list, create, park, data}
        `create` begins a list's life, `park` appends `data`, for which `level` shows a node.
    level : out
        Free nodes; it counts an append two cycles later.
    visit, visit_start, visit_end : in
        The list to read, and strobes that begin and end its visit; `visit` must hold from the one
        to the other. Only an empty list may be left.
    o : out, stream of `shape`
        The visited list, oldest first.
    empty : out
        The visit has begun and everything appended two cycles ago or earlier has been read.
    fault : out, Fault
        Of the rows that are used in this cycle, and of returned nodes: `corrected` with the append
        or the step of a visit that used one, `uncorrected` at once. A list with a row beyond repair
        is lost. Zero when not protected.
    """

    LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, lists: int, nodes: int, shape, protect: bool = False):
        for field, value in (("lists", lists), ("nodes", nodes)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} = {value!r} is refused; legal: an integer of 1 and up")
        self.lists, self.nodes, self.shape, self.protect = lists, nodes, shape, protect
        self.list_bits = max(1, ceil_log2(lists))
        self.node_bits = max(1, ceil_log2(lists + nodes))
        self.append = data.StructLayout(
            {"list": self.list_bits, "create": 1, "park": 1, "data": shape}
        )
        super().__init__(
            {
                "i": In(stream.Signature(self.append, always_ready=True)),
                "level": Out(range(nodes + 1)),
                "visit": In(self.list_bits),
                "visit_start": In(1),
                "visit_end": In(1),
                "o": Out(stream.Signature(shape)),
                "empty": Out(1),
                "fault": Out(Fault),
            }
        )

    def _memory(self, depth: int, shape) -> ProtectedMemory:
        return ProtectedMemory(depth=depth, shape=shape, protect=self.protect)

    def elaborate(self, platform):
        m = Module()
        # The ids below `lists` begin as the lists' tails; from then on nodes of either kind change
        # places freely.
        m.submodules.free = free = FreeList(
            count=self.nodes, first=self.lists, protect=self.protect
        )
        # What a node holds, and its link: the way from a link to the next is the visit's loop,
        # which a memory as wide as both, a block RAM, would make long.
        m.submodules.node = node = self._memory(self.lists + self.nodes, self.shape)
        m.submodules.link = link = self._memory(self.lists + self.nodes, self.node_bits)
        # Tails are read by appends and by the visit: two copies with the same writes.
        m.submodules.tail = tail = self._memory(self.lists, self.node_bits)
        m.submodules.tail_seen = tail_seen = self._memory(self.lists, self.node_bits)
        m.submodules.head = head = self._memory(self.lists, self.node_bits)
        m.d.comb += self.level.eq(free.level)

        # Append: look up the tail, then (`held`) fill it and link the new one. Successive appends
        # to one list see each other's tail through the transparent read.
        created = Signal(range(self.lists + 1))
        held, held_valid, held_first = Signal(self.append), Signal(), Signal()
        first = self.i.p.create & (self.i.p.list == created)
        m.d.comb += [tail.read_en.eq(1), tail.read_address.eq(self.i.p.list)]
        m.d.sync += [held.eq(self.i.p), held_valid.eq(self.i.valid), held_first.eq(first)]
        with m.If(self.i.valid & first):
            m.d.sync += created.eq(created + 1)

        last, fresh, park = Signal(self.node_bits), Signal(self.node_bits), Signal()
        m.d.comb += [
            last.eq(Mux(held_first, held.list, tail.read_data)),
            fresh.eq(free.o.payload),
            park.eq(held_valid & held.park),
            free.o.ready.eq(park),
            node.write_en.eq(park),
            node.write_address.eq(last),
            Value.cast(node.write_data).eq(Value.cast(held.data)),
            link.write_en.eq(park),
            link.write_address.eq(last),
            link.write_data.eq(fresh),
            head.write_en.eq(held_valid & held.create),
            head.write_address.eq(held.list),
            head.write_data.eq(last),
        ]
        for copy in (tail, tail_seen):
            m.d.comb += [
                copy.write_en.eq(park | (held_valid & held.create)),
                copy.write_address.eq(held.list),
                copy.write_data.eq(Mux(park, fresh, last)),
            ]

        # Visit: the node at the cursor and the list's tail are read again in every cycle, so that
        # both show the same appends.
        opening, open_, cursor, ahead = (
            Signal(),
            Signal(),
            Signal(self.node_bits),
            Signal(self.node_bits),
        )
        take = self.o.valid & self.o.ready
        m.d.comb += [
            head.read_en.eq(1),
            head.read_address.eq(self.visit),
            tail_seen.read_en.eq(1),
            tail_seen.read_address.eq(self.visit),
            ahead.eq(Mux(opening, head.read_data, Mux(take, link.read_data, cursor))),
            node.read_en.eq(1),
            node.read_address.eq(ahead),
            link.read_en.eq(1),
            link.read_address.eq(ahead),
            self.empty.eq(open_ & (cursor == tail_seen.read_data)),
            self.o.valid.eq(open_ & (cursor != tail_seen.read_data)),
            Value.cast(self.o.payload).eq(Value.cast(node.read_data)),
            free.i.p.eq(cursor),
            free.i.valid.eq(take),
        ]
        m.d.sync += [opening.eq(self.visit_start), cursor.eq(ahead)]
        with m.If(opening):
            m.d.sync += open_.eq(1)
        with m.If(self.visit_end):
            m.d.sync += open_.eq(0)

        # Rows are read in every cycle; a fault counts where one is used, and once.
        seen = used(tail_seen.fault, open_)
        m.d.comb += self.fault.eq(
            merged(
                free.fault,
                used(node.fault, take),
                used(link.fault, take),
                used(tail.fault, held_valid & ~held_first),
                used(head.fault, opening),
                Fault(Cat(seen.corrected & (take | self.visit_end), seen.uncorrected)),
            )
        )

        self._asserts(m, created, park, opening, open_)
        return m

    def _asserts(self, m: Module, created, park, opening, open_) -> None:
        wrong_visit, wrong_create = Signal(), Signal()
        m.d.sync += [
            wrong_visit.eq(
                (self.visit_end & self.o.valid) | (self.visit_start & (opening | open_))
            ),
            wrong_create.eq(self.i.valid & self.i.p.create & (self.i.p.list > created)),
        ]
        m.d.comb += [
            Assert(~park | m.submodules.free.o.valid),
            Assert(~wrong_visit),
            Assert(~wrong_create),
        ]
