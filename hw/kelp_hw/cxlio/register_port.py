# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""AXI4-Lite in, accesses of the register blocks out, one at a time. Latency 3 cycles, an access in
4 cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.config import Space

from .signatures import RESP_DECERR, RESP_OKAY, RESP_SLVERR, Access, AxiLiteSignature

__all__ = ["RegisterPort"]


class RegisterPort(wiring.Component):
    """One register access at a time, to the space that address bits 19:16 name
    (`kelp_spec.cxlio.config.Space`).

    An access to a BAR while memory enable is off answers SLVERR, reads all ones and writes nothing:
    what a PCIe core answers as an unsupported request. One to a space that is not there, or above
    the 4 KiB of configuration space, answers DECERR and reads zero. Low address bits below the lane
    are ignored: strobes say which bytes are written. A read and a write that wait take turns. What
    is beyond repair (`broken`) answers SLVERR, and reads all ones.

    Latency: `LATENCY` cycles from taking an address to the answer; both AW and W must be there.
    Interval: `INTERVAL`. A read has no side effect.

    Parameters
    ----------
    spaces : int
        How many of component, device, PMU there are.
    chmu : bool
        There is the hotness monitor's.

    Members
    -------
    port : In AxiLiteSignature
    access : Out Access
        Lane of the space.
    space : out
        The number of the space.
    memory_enable : in
        BARs answer.
    hold : in
        No address is taken.
    broken : in
        The cycle after the access: what was read, or written in part, is beyond repair.
    """

    LATENCY = 3
    INTERVAL = 4

    def __init__(self, *, spaces: int = 3, chmu: bool = False):
        self.spaces, self.chmu = spaces, chmu
        self.address_bits = Space.ADDRESS_BITS
        super().__init__(
            {
                "port": In(AxiLiteSignature()),
                "access": Out(Access(lane_bits=13)),
                "space": Out(4),
                "memory_enable": In(1),
                "hold": In(1),
                "broken": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        port, access = self.port, self.access
        address, writing, turn = Signal(self.address_bits), Signal(), Signal()
        write = port.aw.valid & port.w.valid
        start_write, start_read = Signal(), Signal()
        configuration = Space.CONFIGURATION >> 16
        there, refused, code, good = Signal(), Signal(), Signal(2), Signal()
        in_bar = self.space < min(self.spaces, configuration)
        if self.chmu:
            in_bar |= self.space == Space.CHMU >> 16
        m.d.comb += [
            self.space.eq(address >> 16),
            access.lane.eq(address[3:16]),
            there.eq(
                Mux(
                    self.space == configuration,
                    address[12:16] == 0,
                    in_bar,
                )
            ),
            refused.eq((self.space != configuration) & ~self.memory_enable),
            code.eq(Mux(~there, RESP_DECERR, Mux(refused, RESP_SLVERR, RESP_OKAY))),
            good.eq(code == RESP_OKAY),
        ]
        m.d.sync += [
            Assert(~(port.r.valid & port.b.valid), "two answers to one access"),
            Assert(~(access.read & access.write), "a read that writes"),
            Assert(~(access.write | access.read) | good, "an access that is refused"),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [
                    start_write.eq(write & ~(port.ar.valid & turn) & ~self.hold),
                    start_read.eq(port.ar.valid & ~start_write & ~self.hold),
                    port.aw.ready.eq(start_write),
                    port.w.ready.eq(start_write),
                    port.ar.ready.eq(start_read),
                ]
                m.d.sync += [
                    address.eq(Mux(start_write, port.aw.p.addr, port.ar.p.addr)),
                    access.write_data.eq(port.w.p.data),
                    access.strobe.eq(port.w.p.strb),
                    writing.eq(start_write),
                ]
                with m.If(start_write | start_read):
                    m.d.sync += turn.eq(start_write)
                    m.next = "ACCESS"
            with m.State("ACCESS"):
                m.d.comb += [access.write.eq(writing & good), access.read.eq(~writing & good)]
                m.next = "READ"
            with m.State("READ"):
                shown, answer = Signal(), Signal(2)
                m.d.comb += [
                    shown.eq(good & ~self.broken),
                    answer.eq(Mux(good & self.broken, RESP_SLVERR, code)),
                ]
                m.d.sync += [
                    port.r.p.data.eq(Mux(shown, access.read_data, Mux(there, (1 << 64) - 1, 0))),
                    port.r.p.resp.eq(answer),
                    port.b.p.resp.eq(answer),
                    port.r.valid.eq(~writing),
                    port.b.valid.eq(writing),
                ]
                m.next = "ANSWER"
            with m.State("ANSWER"):
                with m.If(Mux(writing, port.b.ready, port.r.ready)):
                    m.d.sync += [port.r.valid.eq(0), port.b.valid.eq(0)]
                    m.next = "IDLE"
        return m
