# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One end of a link of flits: the six channels of CXL.mem on one side, a stream of flits each way
on the other (docs/cxl.md, "Flits"). A message leaves 4 cycles after its flit came, a flit 2 cycles
after its first message; one of each a cycle."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.flit import CREDITS, DIRECTIONS, Refusal

from ..layouts import MESSAGES
from ..lib.protected import BlockFault, gather_blocks
from .layouts import FLIT, PORTS
from .packer import FlitPacker
from .unpacker import FlitUnpacker

__all__ = ["FLIT_COUNTS", "FlitFront"]

_BITS = 16
#: What went wrong since reset; each stands still at its greatest value.
FLIT_COUNTS = data.StructLayout(
    {f"refused_{reason.name.lower()}": _BITS for reason in Refusal}
    | {"orphans": _BITS, "lost": _BITS, "wrong_credits": _BITS}
    | dict.fromkeys(BlockFault.members, _BITS)
)


class FlitFront(wiring.Component):
    """A `FlitUnpacker` and a `FlitPacker` that tell each other's credits. Both ends of a link are
    reset together: credits are counted since reset.

    Latency: `LATENCY` cycles from `i_flit` to its first messages, `SEND_LATENCY` from a message to
    `o_flit` at a quiet link. One flit each way and one message of each channel in each cycle
    (`INTERVAL`). Errors: `counts`.

    Parameters
    ----------
    side : str
        "device" or "host".
    credits : int
        That this end gives on each channel it receives; one of `CREDITS`.
    protect : bool
        Its queues carry check bits (docs/protection.md, "The flit front").

    Members
    -------
    i_flit : in, stream of FLIT
    o_flit : out, stream of FLIT
    m2s_<channel>, s2m_<channel> : streams of messages
        A device's m2s go out and its s2m come in; a host's the other way.
    counts : out, FLIT_COUNTS
    fault : out, BlockFault
        Of the cycle before: in a queue a message was corrected, poisoned, or dropped (fatal).
    """

    LATENCY = FlitUnpacker.LATENCY
    SEND_LATENCY = FlitPacker.LATENCY
    INTERVAL = 1

    def __init__(self, *, side: str, credits: int, protect: bool):
        if side not in ("device", "host"):
            raise ValueError(f"side = {side!r} is refused; legal: 'device', 'host'")
        if credits not in CREDITS:
            legal = ", ".join(map(str, CREDITS))
            raise ValueError(f"credits = {credits!r} is refused; legal: {legal}")
        self.side, self.credits, self.protect = side, credits, protect
        self.receives, self.sends = ("m2s", "s2m") if side == "device" else ("s2m", "m2s")
        ports = {}
        for direction, flow in ((self.receives, Out), (self.sends, In)):
            for name in DIRECTIONS[direction].channels:
                ports[PORTS[name]] = flow(stream.Signature(MESSAGES[name]))
        super().__init__(
            {
                "i_flit": In(stream.Signature(FLIT)),
                "o_flit": Out(stream.Signature(FLIT)),
                **{name: ports[name] for name in PORTS.values()},
                "counts": Out(FLIT_COUNTS),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.unpacker = unpacker = FlitUnpacker(
            direction=self.receives, credits=self.credits, protect=self.protect
        )
        m.submodules.packer = packer = FlitPacker(direction=self.sends, protect=self.protect)
        connect(m, flipped(self.i_flit), unpacker.i)
        connect(m, packer.o, flipped(self.o_flit))
        for name in DIRECTIONS[self.receives].channels:
            connect(m, getattr(unpacker, PORTS[name]), flipped(getattr(self, PORTS[name])))
        for name in DIRECTIONS[self.sends].channels:
            connect(m, flipped(getattr(self, PORTS[name])), getattr(packer, PORTS[name]))
        m.d.comb += [packer.heard.eq(unpacker.heard), packer.granted.eq(unpacker.granted)]
        told = unpacker.told
        for reason in Refusal:
            happened = told.refused & (told.reason == reason)
            self._count(m, f"refused_{reason.name.lower()}", happened)
        self._count(m, "orphans", told.orphans)
        self._count(m, "lost", told.lost)
        self._count(m, "wrong_credits", packer.wrong)
        gather_blocks(m, self.fault, unpacker.fault, packer.fault)
        for kind in BlockFault.members:
            self._count(m, kind, self.fault[kind])
        return m

    def _count(self, m, name, more):
        held = self.counts[name]
        with m.If(held + more >> _BITS == 0):
            m.d.sync += held.eq(held + more)
        with m.Else():
            m.d.sync += held.eq(~0)
