# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Lines that the host does not give back: poisoned in the device, and told (docs/coherence.md). One
at a time; its write is offered in the same cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.coherence import MetaField, sizes_of
from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS, M2SRwD
from kelp_spec.metadata import Event

from ..layouts import MESSAGES, Layouts
from .layouts import CoherenceLayouts, name_line

__all__ = ["LostLines"]


class LostLines(wiring.Component):
    """Makes of a lost line a MemWr with poison, in the name of its session's owner, ahead of every
    request that comes later, and takes that write's completion out of the inner device's.

    A host's own write may have the same tag and LD-ID at the time. Then one of the two completions
    is taken, the first one, and the host has the other: never too early.

    Latency: `LATENCY`, combinational, from `i` to `o_rwd`. One line at a time, with the inner
    device's latency (`INTERVAL` of one that answers at once). No error cases.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, stream of lost
        Taken with its write.
    owners : in
        The LD-ID of each session.
    o_rwd : out, stream of messages
    i_ndr, o_ndr : in, out, streams of messages
        The inner device's completions, and those that are the host's.
    o_event : out, always-ready stream of event
        SNOOP_LOST; `argument` is the line in its page, and 15 whether the host refused.
    idle : out
    """

    LATENCY = 0
    INTERVAL = 2
    TAG = 0xFFFF

    def __init__(self, *, config: Config):
        self.config = config
        layouts = self.layouts = CoherenceLayouts(config, sizes_of(config))
        super().__init__(
            {
                "i": In(stream.Signature(layouts.lost)),
                "owners": In(data.ArrayLayout(LD_ID_BITS, config.sessions)),
                "o_rwd": Out(stream.Signature(MESSAGES["M2SRwD"])),
                "i_ndr": In(stream.Signature(MESSAGES["S2MNDR"])),
                "o_ndr": Out(stream.Signature(MESSAGES["S2MNDR"])),
                "o_event": Out(stream.Signature(Layouts(config).event, always_ready=True)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        line = Cat(self.i.p.line, self.i.p.sector)
        at = data.View(self.layouts.place, line)
        waits, owner, mine = Signal(), Signal(LD_ID_BITS), Signal(LD_ID_BITS)
        rwd, takes = self.o_rwd.p, Signal()
        m.d.comb += [
            mine.eq(self.owners[at.session] if c.sessions > 1 else self.owners[0]),
            self.o_rwd.valid.eq(self.i.valid & ~waits),
            self.i.ready.eq(self.o_rwd.ready & ~waits),
            rwd.opcode.eq(M2SRwD.MEM_WR),
            rwd.meta_field.eq(MetaField.NO_OP),
            rwd.tag.eq(self.TAG),
            rwd.ld_id.eq(mine),
            rwd.address.eq(line),
            rwd.poison.eq(1),
            rwd.byte_enable.eq(~0),
            self.o_event.valid.eq(self.o_rwd.valid & self.o_rwd.ready),
            self.o_event.p.code.eq(Event.SNOOP_LOST),
            *name_line(self.o_event.p, at, self.owners, c),
            self.o_event.p.argument[15].eq(self.i.p.refused),
            takes.eq(
                waits
                & self.i_ndr.valid
                & (self.i_ndr.p.tag == self.TAG)
                & (self.i_ndr.p.ld_id == owner)
            ),
            self.o_ndr.valid.eq(self.i_ndr.valid & ~takes),
            self.o_ndr.p.eq(self.i_ndr.p),
            self.i_ndr.ready.eq(takes | self.o_ndr.ready),
            self.idle.eq(~waits & ~self.i.valid),
        ]
        with m.If(takes):
            m.d.sync += waits.eq(0)
        with m.If(self.o_rwd.valid & self.o_rwd.ready):
            m.d.sync += [waits.eq(1), owner.eq(mine)]
        return m
