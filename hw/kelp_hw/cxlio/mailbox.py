# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mailbox's payload and doorbell: the host's while the doorbell is off, the device's while it
is on. A read is answered after 1 cycle; one access a cycle."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import CxlIoConfig

from ..lib.byte_memory import ByteMemory
from ..lib.protected import Fault, used
from .signatures import Access

__all__ = ["Mailbox"]


class Mailbox(wiring.Component):
    """The payload, one memory of 64-bit lanes, and who may use it.

    `ring` turns `busy` on; `done` turns it off. While it is on the host's writes are dropped and
    its reads give zero. Reset leaves the payload as it is, and after power-up it is undefined until
    it has been cleared. A word beyond repair stays so until it is written whole.

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
    clear : in
        Held high for as many cycles as there are lanes, it makes the payload zero. What is written
        meanwhile is lost.
    busy : out
    address, read, write, write_data, read_data
        The device's: words of 32 bits.
    fault, host_fault : out, Fault
        Of what the device, or the host, has read or written in part in the cycle before.
    """

    LATENCY = 1
    INTERVAL = 1
    CLEARS = ("payload",)  #: memories in it that are written whole before it is ready

    def __init__(self, *, config: CxlIoConfig):
        self.config, self.lane_bits = config, config.payload_bits - 3
        super().__init__(
            {
                "access": In(Access(lane_bits=self.lane_bits)),
                "ring": In(1),
                "done": In(1),
                "clear": In(1),
                "busy": Out(1),
                "address": In(self.lane_bits + 1),
                "read": In(1),
                "write": In(4),
                "write_data": In(32),
                "read_data": Out(32),
                "fault": Out(Fault),
                "host_fault": Out(Fault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.payload = payload = ByteMemory(
            depth=1 << self.lane_bits, words=2, protect=self.config.protect
        )
        high, was_busy, device, host = Signal(), Signal(), Signal(), Signal()
        m.d.sync += [
            high.eq(self.address[0]),
            was_busy.eq(self.busy),
            device.eq(self.busy & (self.read | self.write.any())),
            host.eq(~self.busy & (self.access.read | self.access.write)),
        ]
        m.d.comb += [
            payload.clear.eq(self.clear),
            payload.address.eq(Mux(self.busy, self.address[1:], self.access.lane)),
            self.access.read_data.eq(Mux(was_busy, 0, payload.read_data)),
            self.read_data.eq(Mux(high, payload.read_data[32:], payload.read_data[:32])),
            # A broken word beside the one that it asks for is none of the device's business.
            self.fault.corrected.eq(device & payload.corrected.bit_select(high, 1)),
            self.fault.uncorrected.eq(device & payload.uncorrected.bit_select(high, 1)),
            self.host_fault.eq(used(payload.fault, host)),
        ]
        with m.If(self.busy):
            m.d.comb += [
                payload.write_data.eq(self.write_data.replicate(2)),
                payload.write.eq(Mux(self.address[0], Cat(self.write & 0, self.write), self.write)),
            ]
        with m.Else():
            m.d.comb += [
                payload.write_data.eq(self.access.write_data),
                payload.write.eq(Mux(self.access.write, self.access.strobe, 0)),
            ]
        with m.If(self.done):
            m.d.sync += self.busy.eq(0)
        with m.Elif(self.ring):
            m.d.sync += self.busy.eq(1)
        return m
