# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The endpoint between a vendor's CXL IP and its memory controller: AXI4 on both sides, flat ports,
for an Agilex or UltraScale+ design to instantiate. `AxiFront`'s cycles each way are added to
the endpoint's latency; a beat a cycle."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from kelp_hw.endpoint import Endpoint, endpoint_signature
from kelp_spec.config import Config

from .axi_front import AxiFront

__all__ = ["AxiEndpoint"]

#: Prefix of flat ports → the endpoint's port to memory.
_MEMORIES = {"m_axi_": "axi", "m_axi_summary_": "summary_axi"}


def _payload(member):
    return member.signature.members["payload"].shape


class AxiEndpoint(wiring.Component):
    """:class:`.axi_front.AxiFront` and the endpoint. Each port, in a row of its own:
    :data:`.axi_ports.PORT_DOCS`.

    Latency and throughput: those of the two; what both make together is measured
    (docs/fpga.md).

    Parameters
    ----------
    config : Config
    id_bits, depth, ld_id
        Of the front end.

    Members
    -------
    s_axi_<name> : the AXI4 port of the CXL IP, as of the front end
    m_axi_<name> : the AXI4 port of the memory controller
    m_axi_summary_<name> : with `Config.select_port`, that of the memory of summaries
    cold_command, cold_completion : streams to and from the cold tier
    ready, irq : out
        The endpoint's.
    """

    def __init__(self, *, config: Config, id_bits: int = 8, depth: int = 128, ld_id: int = 0):
        self.config = config
        self.front = AxiFront(id_bits=id_bits, depth=depth, ld_id=ld_id)
        members = {
            name: member
            for name, member in self.front.signature.members.items()
            if name.startswith("s_axi_")
        }
        signature = endpoint_signature(config)
        members |= {
            name: signature[name] for name in ("cold_command", "cold_completion", "ready", "irq")
        }
        for prefix, channel, member in self._memory_channels():
            out = member.flow is Out
            members |= {
                f"{prefix}{channel}valid": (Out if out else In)(1),
                f"{prefix}{channel}ready": (In if out else Out)(1),
            }
            members |= {
                f"{prefix}{channel}{field}": (Out if out else In)(_payload(member)[field].shape)
                for field in _payload(member).members
            }
        super().__init__(members)

    def _memory_channels(self):
        """(prefix, channel, member) of the ports to memory."""
        signature = endpoint_signature(self.config)
        for prefix, port in _MEMORIES.items():
            if port in signature:
                for channel, member in signature[port].signature.members.items():
                    yield prefix, channel, member

    def elaborate(self, platform):
        m = Module()
        m.submodules.front = front = self.front
        m.submodules.endpoint = endpoint = Endpoint(config=self.config)
        for name, member in front.signature.members.items():
            if name.startswith("s_axi_"):
                ours, theirs = getattr(self, name), getattr(front, name)
                m.d.comb += ours.eq(theirs) if member.flow is Out else theirs.eq(ours)
            else:
                connect(m, getattr(front, name), getattr(endpoint, name))
        connect(m, endpoint.cold_command, flipped(self.cold_command))
        connect(m, flipped(self.cold_completion), endpoint.cold_completion)
        m.d.comb += [
            self.ready.eq(endpoint.ready),
            self.irq.eq(endpoint.irq),
            endpoint.s2m_bisnp.ready.eq(1),
        ]
        for prefix, channel, member in self._memory_channels():
            port = getattr(getattr(endpoint, _MEMORIES[prefix]), channel)
            valid, ready = (
                getattr(self, f"{prefix}{channel}valid"),
                getattr(self, f"{prefix}{channel}ready"),
            )
            fields = [
                (getattr(self, f"{prefix}{channel}{field}"), port.p[field])
                for field in _payload(member).members
            ]
            if member.flow is Out:
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
