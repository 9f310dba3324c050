# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""MSI-X: table, pending bits, messages. A message leaves 2 cycles after its trigger."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from ..lib.byte_memory import ByteMemory
from ..lib.protected import BlockFault, Fault, gather, merged, used
from .signatures import Access, message_layout

__all__ = ["Msix"]


class Msix(wiring.Component):
    """The table of `vectors` vectors, 16 bytes each, the pending bits behind it, and the messages
    that they cause.

    A trigger makes its vector pending while MSI-X is enabled, and is lost otherwise. A pending
    vector that neither its own mask nor the function's holds back leaves as its address and data,
    lowest number first, and is pending no more; a trigger that comes while it is pending is the
    same message. After reset all vectors are masked; addresses and data are as they were, and after
    power-up undefined until they have been cleared. A message whose address or data is beyond
    repair is not sent: that is fatal.

    Latency: `LATENCY` cycles from a trigger to its message, `READ_LATENCY` from `lane` to
    `read_data`. Interval: `INTERVAL` cycles a message.

    Parameters
    ----------
    vectors : int
    protect : bool
        The table carries check bits.

    Members
    -------
    table : In Access
        Two lanes a vector: address; data with the mask above it.
    pending_access : In Access
        One lane, read-only.
    trigger : in
        A bit for each vector.
    clear : in
        Held high for `vectors` cycles or more, it makes addresses and data zero. What is written to
        them meanwhile is lost.
    enable, mask, bus_master : in
        Of message control and command.
    o : Out stream of message_layout
    host_fault : out, Fault
        Of what the host has read, or written in part, in the cycle before.
    fault : out, BlockFault
        Of the cycle before.
    """

    LATENCY = 2
    READ_LATENCY = 1
    INTERVAL = 2
    CLEARS = ("addresses", "data")  #: memories in it that are written whole before it is ready

    def __init__(self, *, vectors: int, protect: bool = False):
        if not 1 <= vectors <= 16:
            raise ValueError(f"vectors = {vectors!r} is refused; legal: 1 … 16")
        self.vectors, self.protect = vectors, protect
        super().__init__(
            {
                "table": In(Access(lane_bits=9)),
                "pending_access": In(Access(lane_bits=1)),
                "trigger": In(vectors),
                "clear": In(1),
                "enable": In(1),
                "mask": In(1),
                "bus_master": In(1),
                "o": Out(stream.Signature(message_layout())),
                "host_fault": Out(Fault),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n, table = self.vectors, self.table
        masks, pending = Signal(n, init=(1 << n) - 1), Signal(n)
        vector = table.lane[1:]
        there = vector < n
        parts = {
            "addresses": ByteMemory(depth=n, words=2, protect=self.protect, look=True),
            "data": ByteMemory(depth=n, words=1, protect=self.protect, look=True),
        }
        chosen, sending = Signal(range(max(n, 2))), Signal()
        was_data, was_mask, was_there = Signal(), Signal(), Signal()
        mask_here = Array(masks)[vector[: ceil_log2(n) or 1]]
        accessed = Signal()
        for lane_of, (name, each) in enumerate(parts.items()):
            m.submodules[name] = each
            here = table.write & there & (table.lane[0] == lane_of)
            m.d.comb += [
                each.clear.eq(self.clear),
                each.address.eq(vector),
                each.write_data.eq(table.write_data),
                each.write.eq(Mux(here, table.strobe, 0)),
                each.look_address.eq(chosen),
                each.look_en.eq(1),
            ]
        addresses, words = parts.values()
        stores = Mux(table.lane[0], table.strobe[:4], table.strobe).any()
        m.d.sync += [
            was_data.eq(table.lane[0]),
            was_mask.eq(mask_here),
            was_there.eq(there),
            # A vector is masked without a look at its row.
            accessed.eq((table.read | (table.write & stores)) & there),
        ]
        m.d.comb += [
            table.read_data.eq(
                Mux(
                    was_there,
                    Mux(was_data, Cat(words.read_data, was_mask), addresses.read_data),
                    0,
                )
            ),
            self.host_fault.eq(used(Fault(Mux(was_data, words.fault, addresses.fault)), accessed)),
        ]
        m.d.sync += self.pending_access.read_data.eq(Mux(self.pending_access.lane == 0, pending, 0))
        for i in range(n):
            with m.If(table.write & (table.lane == 2 * i + 1) & table.strobe[4]):
                m.d.sync += masks[i].eq(table.write_data[32])
        ready, sent = Signal(n), Signal(n)
        m.d.comb += ready.eq(Mux(self.enable & self.bus_master & ~self.mask, pending & ~masks, 0))
        for i in reversed(range(n)):
            with m.If(ready[i]):
                m.d.comb += chosen.eq(i)
        broken, own = Signal(), merged(addresses.look_fault, words.look_fault)
        m.d.comb += [
            broken.eq(sending & own.uncorrected),
            self.o.valid.eq(sending & ~broken),
            self.o.p.address.eq(addresses.look_data),
            self.o.p.data.eq(words.look_data),
        ]
        gather(
            m,
            self.fault,
            used(own, sending & (self.o.ready | broken)),
            poisoned=(self.host_fault,),
        )
        with m.If(sending):
            # What was read stands.
            m.d.comb += [addresses.look_en.eq(0), words.look_en.eq(0)]
            with m.If(self.o.ready | broken):
                m.d.sync += sending.eq(0)
        with m.Elif(ready.any()):
            m.d.comb += sent.eq(Const(1, n) << chosen)
            m.d.sync += sending.eq(1)
        m.d.sync += [
            Assert((sent & ~pending) == 0, "a message that nothing caused"),
            Assert((sent & masks) == 0, "a message of a masked vector"),
        ]
        m.d.sync += pending.eq(Mux(self.enable, (pending & ~sent) | self.trigger, 0))
        return m
