# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mailbox's payload and doorbell: the host's while the doorbell is off, the device's while it
is on. A read is answered after 1 cycle; one access a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import CxlIoConfig

from .signatures import Access

__all__ = ["Mailbox"]


class Mailbox(wiring.Component):
    """The payload, one memory of 64-bit lanes, and who may use it.

    `ring` turns `busy` on; `done` turns it off. While it is on the host's writes are dropped and
    its reads give zero. Contents after power-up are zero, and a reset leaves them.

    Latency: `LATENCY` cycle, for either side. Interval: `INTERVAL`.

    Parameters
    ----------
    config : CxlIoConfig

    Members
    -------
    access : In Access
        The host's.
    ring, done : in
        Pulses.
    busy : out
    address, write, write_data, read_data
        The device's: words of 32 bits.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: CxlIoConfig):
        self.lane_bits = config.payload_bits - 3
        super().__init__(
            {
                "access": In(Access(lane_bits=self.lane_bits)),
                "ring": In(1),
                "done": In(1),
                "busy": Out(1),
                "address": In(self.lane_bits + 1),
                "write": In(4),
                "write_data": In(32),
                "read_data": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.payload = payload = memory.Memory(shape=64, depth=1 << self.lane_bits, init=())
        write = payload.write_port(granularity=8)
        read = payload.read_port(transparent_for=(write,))
        lane = Mux(self.busy, self.address[1:], self.access.lane)
        high, was_busy = Signal(), Signal()
        m.d.sync += [high.eq(self.address[0]), was_busy.eq(self.busy)]
        m.d.comb += [
            write.addr.eq(lane),
            read.addr.eq(lane),
            read.en.eq(1),
            self.access.read_data.eq(Mux(was_busy, 0, read.data)),
            self.read_data.eq(Mux(high, read.data[32:], read.data[:32])),
        ]
        with m.If(self.busy):
            m.d.comb += [
                write.data.eq(self.write_data.replicate(2)),
                write.en.eq(Mux(self.address[0], Cat(self.write & 0, self.write), self.write)),
            ]
        with m.Else():
            m.d.comb += [
                write.data.eq(self.access.write_data),
                write.en.eq(Mux(self.access.write, self.access.strobe, 0)),
            ]
        with m.If(self.done):
            m.d.sync += self.busy.eq(0)
        with m.Elif(self.ring):
            m.d.sync += self.busy.eq(1)
        return m
