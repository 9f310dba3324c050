# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What stands in the endpoint's place in a board's first light: it answers in the cycle of the
request, combinational, and does nothing."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring

from kelp_hw.endpoint import endpoint_signature
from kelp_spec.config import Config
from kelp_spec.messages import S2MDRS, S2MNDR, M2SReq

__all__ = ["NoEndpoint"]


class NoEndpoint(wiring.Component):
    """The ports of :class:`kelp_hw.endpoint.Endpoint`. Every request is answered at once as one
    outside the map is: NXM to a read, Cmp to the others; nothing reaches memory. One request is
    offered at a time, as the bridge does. What is synthesised with it is small enough to be routed
    in minutes.

    Latency: `LATENCY` cycles, combinational; a request each `INTERVAL` cycles.

    Parameters
    ----------
    config : Config

    Members
    -------
    m2s_req, m2s_rwd, s2m_drs, s2m_ndr : streams
        Requests and their answers.
    m2s_birsp, s2m_bisnp, axi, cold_command, cold_completion : streams
        What comes is taken and dropped; nothing is offered.
    ready, quiescent : out
        Always; nothing stands at its ports.
    irq, now, commit_result, commit_frame, commit_score, commit_hot, lockstep, skip : ports
        Of no use here.
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config, self.ecc_flip = config, Signal(2)
        super().__init__(endpoint_signature(config))

    def elaborate(self, platform):
        m = Module()
        req, rwd, drs, ndr = self.m2s_req, self.m2s_rwd, self.s2m_drs, self.s2m_ndr
        read, silent = Signal(), Signal()
        m.d.comb += [
            self.ready.eq(1),
            self.quiescent.eq(~(req.valid | rwd.valid | drs.valid | ndr.valid)),
            self.m2s_birsp.ready.eq(1),
            self.cold_completion.ready.eq(1),
            self.axi.r.ready.eq(1),
            self.axi.b.ready.eq(1),
            read.eq((req.p.opcode == M2SReq.MEM_RD) | (req.p.opcode == M2SReq.MEM_RD_DATA)),
            silent.eq(req.p.opcode == M2SReq.MEM_SPEC_RD),
            drs.p.opcode.eq(S2MDRS.MEM_DATA_NXM),
            drs.p.tag.eq(req.p.tag),
            drs.p.ld_id.eq(req.p.ld_id),
            drs.valid.eq(req.valid & read),
            ndr.p.opcode.eq(S2MNDR.CMP),
            ndr.p.tag.eq(Mux(rwd.valid, rwd.p.tag, req.p.tag)),
            ndr.p.ld_id.eq(Mux(rwd.valid, rwd.p.ld_id, req.p.ld_id)),
            ndr.valid.eq(rwd.valid | (req.valid & ~read & ~silent)),
            rwd.ready.eq(ndr.ready),
            req.ready.eq(Mux(read, drs.ready, silent | (ndr.ready & ~rwd.valid))),
        ]
        return m
