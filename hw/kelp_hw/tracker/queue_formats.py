# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What M3 asks of a queue's configuration (docs/design.md §2). One read and one write a cycle; a
read is answered after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..layouts import Layouts
from ..lib.protected import BlockFault, Fault, ProtectedMemory, gather

__all__ = ["QueueFormats"]


class QueueFormats(wiring.Component):
    """Stored formats, pool and policy of every queue: a page that is allocated takes them, and a
    frame's pool says where its lines are in DRAM.

    Latency: `LATENCY` cycle from `read_squeue` to `o`. One read and one write in each cycle
    (`INTERVAL`); a read in the cycle of its write returns the new fields. Errors: a row with one
    flipped bit is corrected and written back; one with more is fatal (docs/protection.md). Queues
    that were never configured read undefined values.

    Parameters
    ----------
    config : Config

    Members
    -------
    write : in, always-ready stream of config_write
    read_squeue : in
    o : out
        Its `format_k`, `format_v`, `pool`, `policy`.
    used : in
        What `o` was in the cycle before matters.
    fault : out, BlockFault
        Of that, in the next cycle.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        layouts = Layouts(config)
        self.shape = data.StructLayout(
            {
                name: layouts.queue_config[name].shape
                for name in ("format_k", "format_v", "pool", "policy")
            }
        )
        super().__init__(
            {
                "write": In(stream.Signature(layouts.config_write, always_ready=True)),
                "read_squeue": In(config.squeue_bits),
                "o": Out(self.shape),
                "used": In(1),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = ProtectedMemory(
            depth=self.config.squeues, shape=self.shape, protect=self.config.protect, scrub=True
        )
        seen, met = Signal(Fault), Signal(Fault)
        m.d.sync += seen.eq(rows.fault)
        m.d.comb += [
            rows.read_en.eq(1),
            rows.read_address.eq(self.read_squeue),
            self.o.eq(rows.read_data),
            rows.write_en.eq(self.write.valid),
            rows.write_address.eq(self.write.p.squeue),
            *(
                rows.write_data[name].eq(self.write.p.queue_config[name])
                for name in self.shape.members
            ),
            met.as_value().eq(seen.as_value() & self.used.replicate(len(seen.as_value()))),
        ]
        gather(m, self.fault, met)
        return m
