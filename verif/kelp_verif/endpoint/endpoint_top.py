# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The endpoint as its cocotb bench needs it: the memory port under the names that AXI models look
for, and no commit records but the results."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_hw.datapath.datapath import axi_signature
from kelp_hw.endpoint import Endpoint, endpoint_signature
from kelp_hw.flit.front import FlitFront
from kelp_hw.flit.layouts import PORTS
from kelp_spec.config import Config
from kelp_spec.messages import M2SRwD

__all__ = ["PAGE_WORDS", "FlatEndpoint"]

#: Where `FlatEndpoint` keeps its page words: instances from the top down to the memory of the first
#: bank.
PAGE_WORDS = ("endpoint", "tracker", "words", "bank_0", "memory")
_LEFT_OUT = (
    "axi",
    "skip",
    "lockstep",
    "now",
    "s2m_bisnp",
    "commit_hot",
    "commit_frame",
    "commit_frame__valid",
    "commit_score",
    "commit_score__valid",
)


def _payload(channel: wiring.Member):
    return channel.signature.members["payload"].shape


class FlatEndpoint(wiring.Component):
    """:class:`kelp_hw.endpoint.Endpoint` with `axi` as `m_axi_arvalid`, `m_axi_arid` …; what its
    bench does not look at is left inside. With `Config.flits` its channels pass a host's
    `FlitFront`, a link and a device's.

    Parameters
    ----------
    config : Config
    """

    def __init__(self, *, config: Config):
        self.config = config
        members = {
            name: member
            for name, member in endpoint_signature(config).items()
            if name not in _LEFT_OUT
        }
        for channel, member in axi_signature(config).members.items():
            out = member.flow is wiring.Out
            members[f"m_axi_{channel}valid"] = Out(1) if out else In(1)
            members[f"m_axi_{channel}ready"] = In(1) if out else Out(1)
            for field in _payload(member).members:
                shape = _payload(member)[field].shape
                members[f"m_axi_{channel}{field}"] = Out(shape) if out else In(shape)
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.endpoint = endpoint = Endpoint(config=self.config)
        front = self._link(m, endpoint) if self.config.flits else endpoint
        for name, member in endpoint_signature(self.config).items():
            if name in _LEFT_OUT:
                continue
            inner = getattr(front if name in PORTS.values() else endpoint, name)
            outer = getattr(self, name)
            if member.is_signature:
                connect(m, inner, flipped(outer))
            elif member.flow is wiring.Out:
                m.d.comb += outer.eq(inner)
            else:
                m.d.comb += inner.eq(outer)
        m.d.comb += front.s2m_bisnp.ready.eq(1)
        if self.config.flits:
            # The endpoint has never asked; a host that sends byte enables says so.
            partial = self.m2s_rwd.p.opcode == M2SRwD.MEM_WR_PTL
            m.d.comb += front.m2s_rwd.p.bep.eq(partial)
        for channel, member in axi_signature(self.config).members.items():
            port = getattr(endpoint.axi, channel)
            valid, ready = (
                getattr(self, f"m_axi_{channel}valid"),
                getattr(self, f"m_axi_{channel}ready"),
            )
            fields = [
                (getattr(self, f"m_axi_{channel}{field}"), port.p[field])
                for field in _payload(member).members
            ]
            if member.flow is wiring.Out:
                m.d.comb += [
                    valid.eq(port.valid),
                    port.ready.eq(ready),
                    *(outer.eq(inner) for outer, inner in fields),
                ]
            else:
                m.d.comb += [
                    port.valid.eq(valid),
                    ready.eq(port.ready),
                    *(inner.eq(outer) for outer, inner in fields),
                ]
        return m

    def _link(self, m, endpoint) -> FlitFront:
        """Two fronts and the link between them; the host's, which stands for the endpoint."""
        options = {"credits": self.config.flits, "protect": self.config.protect}
        m.submodules.host = host = FlitFront(side="host", **options)
        m.submodules.device = device = FlitFront(side="device", **options)
        connect(m, host.o_flit, device.i_flit)
        connect(m, device.o_flit, host.i_flit)
        for name in PORTS.values():
            connect(m, getattr(device, name), getattr(endpoint, name))
        bad = [end.counts.as_value() != 0 for end in (host, device)]
        m.d.sync += Assert(~Cat(bad).any(), "a flit is refused")
        return host
