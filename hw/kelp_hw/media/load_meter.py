# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""DevLoad of each answer, from how many requests the device has taken and not yet answered. Answers
pass in the cycle; a change of the load shows after 2 cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.messages import DevLoad, M2SReq

from ..layouts import MESSAGES, passing

__all__ = ["LoadMeter"]


class LoadMeter(wiring.Component):
    """Counts requests from when the endpoint takes them until their answers pass. Below a quarter
    of `depth` the load is light, below half of it optimal, below three quarters moderate, then
    severe. With `reads` only requests that are answered by data count: a grant's completion comes
    beside its data. An answer keeps the load that it was first offered with.

    Latency: `LATENCY` for answers, `LOAD_LATENCY` cycles from a request to the load. Interval:
    `INTERVAL`.

    Parameters
    ----------
    depth : int
        Requests that may wait: a power of two, 4 and up.
    most : int
        Requests that may be under way at all.
    reads : bool

    Members
    -------
    taken_req : In stream, always taken
        Each Req that the endpoint takes.
    taken_rwd : in
        It takes an RwD.
    i_drs, i_ndr, o_drs, o_ndr : streams
    load : out
        A `DevLoad`.
    """

    LATENCY = 0
    LOAD_LATENCY = 2
    INTERVAL = 1

    def __init__(self, *, depth: int, most: int, reads: bool = False):
        if depth < 4 or depth & (depth - 1):
            raise ValueError(f"depth = {depth!r} is refused; legal: powers of two from 4 on")
        self.depth, self.most, self.reads = depth, most, reads
        super().__init__(
            {
                "taken_req": In(stream.Signature(MESSAGES["M2SReq"], always_ready=True)),
                "taken_rwd": In(1),
                **passing("S2MDRS", "S2MNDR"),
                "load": Out(2),
            }
        )

    def elaborate(self, platform):
        m = Module()
        waiting = Signal(range(self.most + 1))
        asked, told = Signal(range(3)), Signal(range(3))
        one_way = self.taken_req.p.opcode == M2SReq.MEM_SPEC_RD
        opcode = self.taken_req.p.opcode
        data = (opcode == M2SReq.MEM_RD) | (opcode == M2SReq.MEM_RD_DATA)
        served, done = self.o_drs.valid & self.o_drs.ready, self.o_ndr.valid & self.o_ndr.ready
        if self.reads:
            m.d.comb += [asked.eq(self.taken_req.valid & data), told.eq(served)]
        else:
            m.d.comb += [
                asked.eq((self.taken_req.valid & ~one_way) + self.taken_rwd),
                told.eq(served + done),
            ]
        m.d.sync += [
            waiting.eq(waiting + asked - told),
            Assert(waiting + asked >= told, "an answer to no request"),
        ]
        quarter = self.depth.bit_length() - 3
        level = waiting >> quarter
        m.d.sync += self.load.eq(Mux(level > DevLoad.SEVERE, DevLoad.SEVERE, level))
        for i, o in ((self.i_drs, self.o_drs), (self.i_ndr, self.o_ndr)):
            first, stands = Signal(2), Signal()
            m.d.comb += [
                o.valid.eq(i.valid),
                i.ready.eq(o.ready),
                o.p.eq(i.p),
                o.p.dev_load.eq(Mux(stands, first, self.load)),
            ]
            m.d.sync += [stands.eq(o.valid & ~o.ready), first.eq(o.p.dev_load)]
        return m
