# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The GATHER window: what of a request's address names a slot becomes the page in that slot
(docs/select.md). One message a cycle, 1 cycle later."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.address import Region
from kelp_spec.config import Config

from ..layouts import MESSAGES
from ..lib.protected import BlockFault, ProtectedMemory, gather, used

__all__ = ["GatherWindow", "slot_layouts"]


def slot_layouts(config: Config) -> tuple[data.StructLayout, data.StructLayout]:
    """(a slot: its page and whether it holds it; a queue's slots: how many, and the generation of
    the choice)."""
    return (
        data.StructLayout({"page": config.page_bits, "held": 1}),
        data.StructLayout(
            {"count": range(config.select + 1), "generation": config.generation_bits}
        ),
    )


class GatherWindow(wiring.Component):
    """Keeps the slots of all queues, and passes M2S requests on: those to the GATHER region as
    requests to the page in their slot, all others as they are. They stay in that region, where
    ingress knows a page's address, and M0 that LOOKs of their session take turns with them. A slot
    that is empty, or of another generation, becomes page 0 outside the map; session, queue and
    line stay, and are checked where every request's are. So a gathered line is answered, and
    refused, as a plain read of its page.

    Latency: `LATENCY` cycle from `i` to `o`. One message in each cycle (`INTERVAL`), whatever its
    region. A row that is written is seen by messages that come two cycles later. Errors: a slot
    that could not be corrected is empty.

    Parameters
    ----------
    config : Config

    Members
    -------
    i, o : streams of M2SReq
    hold : in
        No message is taken in this cycle.
    squeue, slot : in
        Of the rows that are read and written: `session | queue`, as in an address.
    read : in
        The rows at `squeue` and `slot` are at `found_slot` and `found_queue` in the next cycle.
    found_slot, found_queue : out
    write_slot, new_slot, write_queue, new_queue : in
    ready : out
        After reset every queue has 0 slots.
    idle : out
        No message is inside.
    fault : out, BlockFault
    """

    LATENCY = 1
    INTERVAL = 1
    CLEARS = ("queues_*",)  #: memories in it that are written whole before it is ready

    def __init__(self, *, config: Config):
        self.config = c = config
        self.slot_row, self.queue_row = slot_layouts(c)
        message = stream.Signature(MESSAGES["M2SReq"])
        self.queue_bits = c.session_bits + c.queue_bits
        super().__init__(
            {
                "i": In(message),
                "o": Out(message),
                "hold": In(1),
                "squeue": In(self.queue_bits),
                "slot": In(c.slot_bits),
                "read": In(1),
                "found_slot": Out(self.slot_row),
                "found_queue": Out(self.queue_row),
                "write_slot": In(1),
                "new_slot": In(self.slot_row),
                "write_queue": In(1),
                "new_queue": In(self.queue_row),
                "ready": Out(1),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config

        def memory(depth, shape):
            return ProtectedMemory(depth=depth, shape=shape, protect=c.protect, macro=False)

        queues = 1 << self.queue_bits
        # Two of each, written alike: requests read one, the choice the other.
        copies = []
        for name in ("asked", "own"):
            slots = memory(queues << c.slot_bits, self.slot_row)
            rows = memory(queues, self.queue_row)
            m.submodules[f"slots_{name}"], m.submodules[f"queues_{name}"] = slots, rows
            copies.append((slots, rows))

        scrub = Signal(range(queues))
        for slots, rows in copies:
            m.d.comb += [
                slots.write_en.eq(self.write_slot),
                slots.write_address.eq(Cat(self.slot, self.squeue)),
                slots.write_data.eq(self.new_slot),
                rows.write_en.eq(~self.ready | self.write_queue),
                rows.write_address.eq(Mux(self.ready, self.squeue, scrub)),
                rows.write_data.eq(Mux(self.ready, self.new_queue.as_value(), 0)),
            ]
        with m.If(~self.ready):
            m.d.sync += scrub.eq(scrub + 1)
            with m.If(scrub == queues - 1):
                m.d.sync += self.ready.eq(1)
        slots, rows = copies[1]
        m.d.comb += [
            slots.read_en.eq(self.read),
            slots.read_address.eq(Cat(self.slot, self.squeue)),
            rows.read_en.eq(self.read),
            rows.read_address.eq(self.squeue),
            self.found_slot.eq(slots.read_data),
            self.found_queue.eq(rows.read_data),
        ]
        was_read, slot_read = Signal(), Signal.like(self.slot)
        m.d.sync += [was_read.eq(self.read), slot_read.eq(self.slot)]

        # A KV address is line | K/V | page | queue | session, one of the window
        # line | slot | K/V | generation | queue | session.
        low = c.line_bits + c.page_bits
        parts = data.StructLayout(
            {
                "line": c.half_line_bits,
                "slot": c.slot_bits,
                "kv": 1,
                "generation": c.generation_bits,
                "squeue": self.queue_bits,
            }
        )
        address = self.i.p.address
        asks = parts(address[: parts.size])
        held, valid, gathers = Signal.like(self.i.p), Signal(), Signal()
        moves = ~valid | self.o.ready
        slots, rows = copies[0]
        m.d.comb += [
            self.i.ready.eq(moves & ~self.hold),
            slots.read_en.eq(self.i.valid & moves),
            slots.read_address.eq(Cat(asks.slot, asks.squeue)),
            rows.read_en.eq(self.i.valid & moves),
            rows.read_address.eq(asks.squeue),
            self.o.valid.eq(valid),
            self.o.p.eq(held),
            self.idle.eq(~self.i.valid & ~valid),
        ]
        with m.If(moves):
            m.d.sync += [
                valid.eq(self.i.valid & ~self.hold),
                held.eq(self.i.p),
                gathers.eq(address[parts.size :] == Region.GATHER),
            ]
        asked = parts(held.address[: parts.size])
        there = (
            slots.read_data.held
            & (asked.slot < rows.read_data.count)
            & (asked.generation == rows.read_data.generation)
            & ~slots.fault.uncorrected
            & ~rows.fault.uncorrected
        )
        with m.If(gathers):
            above = held.address[low : parts.size], Mux(there, Region.GATHER, Region.OUTSIDE)
            page = Mux(there, slots.read_data.page, 0)  # an event would name it
            m.d.comb += self.o.p.address.eq(Cat(asked.line, asked.kv, page, *above))
        # Once of a message that waits; a slot that is none of the queue's may hold anything.
        leaves = valid & gathers & self.o.ready
        gather(
            m,
            self.fault,
            poisoned=(
                used(slots.fault, leaves & (asked.slot < rows.read_data.count)),
                used(rows.fault, leaves),
                used(copies[1][1].fault, was_read),
                used(copies[1][0].fault, was_read & (slot_read < self.found_queue.count)),
            ),
        )
        return m
