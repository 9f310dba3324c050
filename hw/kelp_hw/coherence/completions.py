# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""S2M NDR: grants, the inner device's completions and the front's own, in turn (docs/coherence.md).
One a cycle, sent after 1 cycle; the front's own after 3 cycles."""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_spec.config import Config
from kelp_spec.messages import LD_ID_BITS, S2MNDR, TAG_BITS

from ..layouts import MESSAGES
from ..lib.order_fifo import OrderFifo
from ..lib.protected import BlockFault, gather
from ..lib.skid import Skid

__all__ = ["OWN", "Completions"]

_META_NO_OP = 3

#: A completion that the front gives by itself: of a MemClnEvct, or (`ack`) of a BIConflict.
OWN = data.StructLayout({"tag": TAG_BITS, "ld_id": LD_ID_BITS, "ack": 1})


class Completions(wiring.Component):
    """One channel, in order: what was taken at one of the three inputs leaves ahead of what is
    taken later at any of them. So a BIConflictAck never overtakes the grant that its BISnp takes
    back.

    Latency: `LATENCY` cycle from `i_grant` and `i_inner` to `s2m_ndr`, `OWN_LATENCY` from `i_own`.
    One completion in each cycle (`INTERVAL`), of the inputs in turn. Errors: a row of the queue
    beyond repair is fatal.

    Parameters
    ----------
    config : Config

    Members
    -------
    i_grant, i_inner : in, streams of messages
    i_own : in, always-ready stream of OWN
        Its sender looks at `level`.
    level : out
        Of `i_own`'s queue, which has `DEPTH` places.
    s2m_ndr : out, stream of messages
    idle : out
        None waits here.
    fault : out, BlockFault
    """

    LATENCY = 1
    OWN_LATENCY = 3
    INTERVAL = 1
    DEPTH = 16

    def __init__(self, *, config: Config):
        self.config = config
        message = stream.Signature(MESSAGES["S2MNDR"])
        super().__init__(
            {
                "i_grant": In(message),
                "i_inner": In(message),
                "i_own": In(stream.Signature(OWN, always_ready=True)),
                "level": Out(range(self.DEPTH + 1)),
                "s2m_ndr": Out(message),
                "idle": Out(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = OrderFifo(
            width=OWN.size, depth=self.DEPTH, protect=self.config.protect
        )
        m.submodules.skid = skid = Skid(MESSAGES["S2MNDR"])
        connect(m, skid.o, flipped(self.s2m_ndr))
        said, own = data.View(OWN, queue.o.p), Signal(MESSAGES["S2MNDR"])
        m.d.comb += [
            self.level.eq(queue.level),
            self.idle.eq((queue.level == 0) & ~queue.i.valid & skid.idle),
            queue.i.valid.eq(self.i_own.valid),
            queue.i.p.eq(self.i_own.p),
            Assert(~queue.i.valid | queue.i.ready, "a completion without a place"),
            own.opcode.eq(Mux(said.ack, S2MNDR.BI_CONFLICT_ACK, S2MNDR.CMP)),
            own.meta_field.eq(_META_NO_OP),
            own.tag.eq(said.tag),
            own.ld_id.eq(said.ld_id),
        ]
        gather(m, self.fault, queue.fault)

        sources = [(self.i_grant, self.i_grant.p), (self.i_inner, self.i_inner.p), (queue.o, own)]
        last = Signal(range(len(sources)))
        with m.Switch(last):
            for n in range(len(sources)):
                with m.Case(n):
                    before = Value.cast(0)
                    for k in (*range(n + 1, len(sources)), *range(n + 1)):
                        port, payload = sources[k]
                        with m.If(port.valid & ~before.any() & skid.i.ready):
                            m.d.comb += [
                                skid.i.valid.eq(1),
                                skid.i.p.eq(payload),
                                port.ready.eq(1),
                            ]
                            m.d.sync += last.eq(k)
                        before = before | port.valid
        return m
