# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""MSI-X: table, pending bits, messages. A message leaves 2 cycles after its trigger."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .signatures import Access, message_layout

__all__ = ["Msix"]


class Msix(wiring.Component):
    """The table of `vectors` vectors, 16 bytes each, the pending bits behind it, and the messages
    that they cause.

    A trigger makes its vector pending while MSI-X is enabled, and is lost otherwise. A pending
    vector that neither its own mask nor the function's holds back leaves as its address and data,
    lowest number first, and is pending no more; a trigger that comes while it is pending is the
    same message. After reset all vectors are masked. Table addresses are zero until written.

    Latency: `LATENCY` cycles from a trigger to its message, `READ_LATENCY` from `lane` to
    `read_data`. Interval: `INTERVAL` cycles a message.

    Parameters
    ----------
    vectors : int

    Members
    -------
    table : In Access
        Two lanes a vector: address; data with the mask above it.
    pending_access : In Access
        One lane, read-only.
    trigger : in
        A bit for each vector.
    enable, mask, bus_master : in
        Of message control and command.
    o : Out stream of message_layout
    """

    LATENCY = 2
    READ_LATENCY = 1
    INTERVAL = 2

    def __init__(self, *, vectors: int):
        if not 1 <= vectors <= 16:
            raise ValueError(f"vectors = {vectors!r} is refused; legal: 1 … 16")
        self.vectors = vectors
        super().__init__(
            {
                "table": In(Access(lane_bits=9)),
                "pending_access": In(Access(lane_bits=1)),
                "trigger": In(vectors),
                "enable": In(1),
                "mask": In(1),
                "bus_master": In(1),
                "o": Out(stream.Signature(message_layout())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n, table = self.vectors, self.table
        masks, pending = Signal(n, init=(1 << n) - 1), Signal(n)
        vector = table.lane[1:]
        there = vector < n
        m.submodules.addresses = addresses = memory.Memory(shape=64, depth=n, init=())
        m.submodules.words = words = memory.Memory(shape=32, depth=n, init=())
        chosen, sending = Signal(range(max(n, 2))), Signal()
        was_data, was_mask, was_there = Signal(), Signal(), Signal()
        mask_here = Array(masks)[vector[: (n - 1).bit_length() or 1]]
        ports = {}
        for name, mem, lane_of, strobe in (
            ("address", addresses, 0, table.strobe),
            ("data", words, 1, table.strobe[:4]),
        ):
            write = mem.write_port(granularity=8)
            host, own = (
                mem.read_port(transparent_for=(write,)),
                mem.read_port(transparent_for=(write,)),
            )
            ports[name] = host, own
            m.d.comb += [
                write.addr.eq(vector),
                write.data.eq(table.write_data),
                write.en.eq(Mux(table.write & there & (table.lane[0] == lane_of), strobe, 0)),
                host.addr.eq(vector),
                host.en.eq(1),
                own.addr.eq(chosen),
                own.en.eq(1),
            ]
        m.d.sync += [was_data.eq(table.lane[0]), was_mask.eq(mask_here), was_there.eq(there)]
        of_data = Cat(ports["data"][0].data, was_mask)
        m.d.comb += table.read_data.eq(
            Mux(was_there, Mux(was_data, of_data, ports["address"][0].data), 0)
        )
        m.d.sync += self.pending_access.read_data.eq(Mux(self.pending_access.lane == 0, pending, 0))
        for i in range(n):
            with m.If(table.write & (table.lane == 2 * i + 1) & table.strobe[4]):
                m.d.sync += masks[i].eq(table.write_data[32])
        ready, sent = Signal(n), Signal(n)
        m.d.comb += ready.eq(Mux(self.enable & self.bus_master & ~self.mask, pending & ~masks, 0))
        for i in reversed(range(n)):
            with m.If(ready[i]):
                m.d.comb += chosen.eq(i)
        m.d.comb += [
            self.o.valid.eq(sending),
            self.o.p.address.eq(ports["address"][1].data),
            self.o.p.data.eq(ports["data"][1].data),
        ]
        with m.If(sending):
            # What was read stands.
            m.d.comb += [ports["address"][1].en.eq(0), ports["data"][1].en.eq(0)]
            with m.If(self.o.ready):
                m.d.sync += sending.eq(0)
        with m.Elif(ready.any()):
            m.d.comb += sent.eq(Const(1, n) << chosen)
            m.d.sync += sending.eq(1)
        m.d.sync += pending.eq(Mux(self.enable, (pending & ~sent) | self.trigger, 0))
        return m
