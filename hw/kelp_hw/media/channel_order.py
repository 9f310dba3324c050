# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Req and RwD in the order in which the host's were taken, behind what delays each of them for
itself. A message a cycle, in the cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from ..layouts import passing

__all__ = ["ChannelOrder"]


class ChannelOrder(wiring.Component):
    """Lets the messages of both channels on in the order in which they were taken from the host, of
    one cycle the RwD first. Else one that has been taken and waits for a place in the endpoint, as
    a RwD does for a write slot, would be overtaken by a later one of its line on the other channel.

    Latency: `LATENCY`, messages pass combinationally, behind those that were taken before. One of
    either channel in each cycle (`INTERVAL`). No error cases.

    Parameters
    ----------
    depth : int
        Messages, 1 and up, of both channels together, that may be taken and have not come out
        here.

    Members
    -------
    taken_req, taken_rwd : in
        The host's message is taken; it comes at `i_req` or `i_rwd` in a later cycle.
    i_req, i_rwd : In streams
    o_req, o_rwd : Out streams
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, depth: int):
        if not isinstance(depth, int) or depth < 1:
            raise ValueError(f"depth = {depth!r} is refused; legal: 1 and up")
        self.depth = depth
        super().__init__({"taken_req": In(1), "taken_rwd": In(1), **passing("M2SReq", "M2SRwD")})

    def elaborate(self, platform):
        m = Module()
        # What is inside, oldest first: whether it is a RwD; 0 beyond the last one.
        are_rwd, count = Signal(self.depth), Signal(range(self.depth + 1))
        left, leaves = Signal(range(self.depth + 1)), Signal()
        turns = ((self.i_req, self.o_req, ~are_rwd[0]), (self.i_rwd, self.o_rwd, are_rwd[0]))
        for i, o, turn in turns:
            m.d.comb += [o.valid.eq(i.valid & turn), o.p.eq(i.p), i.ready.eq(o.ready & turn)]
        m.d.comb += [
            leaves.eq(
                (self.o_req.valid & self.o_req.ready) | (self.o_rwd.valid & self.o_rwd.ready)
            ),
            left.eq(count - leaves),
        ]
        m.d.sync += [
            are_rwd.eq((are_rwd >> leaves) | (self.taken_rwd << left)),
            count.eq(left + self.taken_rwd + self.taken_req),
            Assert(~leaves | (count != 0), "a message that was not taken"),
            Assert(
                left + self.taken_rwd + self.taken_req <= self.depth, "more messages than places"
            ),
        ]
        return m
