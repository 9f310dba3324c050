# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Where accepted write data waits for its data op, and which slots of it are free (docs/design.md
§4, §10): one line in and one out a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config
from kelp_spec.formats import LINE_BITS, LINE_BYTES

from ..layouts import Layouts
from ..lib.protected import fault_ports, fifo_of, memory_of
from ..lib.skid import Skid
from ..lib.wide_memory import WideMemory

__all__ = ["WriteStore"]


class WriteStore(wiring.Component):
    """`write_slots` lines with byte enables, and the list of free slots.

    A slot is offered and handed out on `o_slot`, written by `i` from its offer on, read any number
    of times, and freed by `free`. Latency `LATENCY` cycle, from `read_slot` to `o_row`, which holds
    while `read_en` is low; one read and one write a cycle. A freed slot is offered again three
    cycles later at the earliest.

    Parameters
    ----------
    config : Config

    Members
    -------
    o_slot : stream of free write slots
    i : always-ready stream of Layouts.write_data
    read_en, read_slot : in
    o_row : out, ``data``, ``byte_enable``
    free : in, always-ready stream of a write slot
    idle : out
        No slot is out.
    row_fault : out, Fault
        With `config.protect`: of the row at `o_row`, with it and for as long.
    free_fault : out, Fault
        With `config.protect`: of the list of free slots. A slot beyond repair has two owners or
        none.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        bits = config.write_slot_bits
        self.row_layout = data.StructLayout({"data": LINE_BITS, "byte_enable": LINE_BYTES})
        super().__init__(
            {
                "o_slot": Out(stream.Signature(bits)),
                "i": In(stream.Signature(Layouts(config).write_data, always_ready=True)),
                "read_en": In(1),
                "read_slot": In(bits),
                "o_row": Out(self.row_layout),
                "free": In(stream.Signature(bits, always_ready=True)),
                "idle": Out(1),
                **fault_ports(config.protect, "row_fault", "free_fault"),
            }
        )
        # State that proofs look at (kelp_verif.formal.pool_specs): slots never handed out, slots
        # out.
        self.unused = Signal(range(config.write_slots + 1), init=config.write_slots)
        # `taken`: one more, since the cycle before
        self.held, self.taken = Signal(range(config.write_slots + 1)), Signal()

    def elaborate(self, platform):
        m = Module()
        n, bits = self.config.write_slots, self.config.write_slot_bits
        m.submodules.rows = rows = memory_of(
            WideMemory,
            depth=n,
            shape=self.row_layout,
            protect=self.config.protect,
            transparent=False,
            block=self.config.wide_blocks,
        )
        m.d.comb += [
            rows.write_en.eq(self.i.valid),
            rows.write_address.eq(self.i.p.slot),
            rows.write_data.data.eq(self.i.p.data),
            rows.write_data.byte_enable.eq(self.i.p.byte_enable),
            rows.read_en.eq(self.read_en),
            rows.read_address.eq(self.read_slot),
            self.o_row.eq(rows.read_data),
        ]

        # Slots never used yet come first, so that the list needs no filling after reset.
        m.submodules.free = free = fifo_of(
            SyncFIFOBuffered, shape=bits, depth=n, protect=self.config.protect
        )
        if self.config.protect:
            m.d.comb += [self.row_fault.eq(rows.fault), self.free_fault.eq(free.fault)]
        # Critical path: `o_slot.ready` comes from the host's channel at the end of the cycle, so it
        # chooses between the skid buffer's two places and does not address memories.
        m.submodules.offer = offer = Skid(bits, registered=())
        connect(m, offer.o, flipped(self.o_slot))
        unused = self.unused
        m.d.comb += [
            offer.i.valid.eq((unused != 0) | free.r_rdy),
            offer.i.p.eq(Mux(unused != 0, n - unused, free.r_data)),
            free.r_en.eq((unused == 0) & offer.i.ready),
            free.w_en.eq(self.free.valid),
            free.w_data.eq(self.free.p),
        ]
        with m.If((unused != 0) & offer.i.ready):
            m.d.sync += unused.eq(unused - 1)

        held, taken = self.held, self.taken
        m.d.sync += [
            taken.eq(self.o_slot.valid & self.o_slot.ready),
            held.eq(held + taken - self.free.valid),
        ]
        m.d.comb += self.idle.eq((held == 0) & ~taken)
        m.d.sync += [
            Assert(
                ~self.free.valid | taken | (held != 0),
                "more write slots are freed than were handed out",
            ),
            Assert(~self.free.valid | free.w_rdy, "the list of free write slots overflows"),
        ]
        return m
