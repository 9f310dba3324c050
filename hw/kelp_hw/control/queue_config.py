# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A block's own copy of the fields that it needs of every queue's configuration. One read and one
write a cycle; a read is answered after 1 cycle."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..layouts import Layouts
from ..lib.protected import fault_ports, memory_of
from ..lib.sram import Sram

__all__ = ["QueueConfig"]


class QueueConfig(wiring.Component):
    """Written by the broadcast of the configuration walk, read by one block; each block that needs
    configuration has a copy, since a memory has one read port.

    Latency: `LATENCY` cycle from `read_squeue` (with `read_en`) to `o`, which holds while `read_en`
    is low. Interval: `INTERVAL`, one read and one write per cycle; a read in the cycle of a write
    returns the new fields. Queues that were never configured read undefined values: they are not
    read before OPEN has configured them.

    Parameters
    ----------
    config : Config
    fields : sequence of str
        Names of `Layouts.queue_config`, at least one.
    protect : bool
        The rows carry check bits, with encoder and decoder combinational.

    Members
    -------
    write : in, always-ready stream of config_write
    read_en, read_squeue : in
    o : out
        The fields, as a struct of those names.
    fault : out, Fault
        With `protect`: of `o`, with it and for as long; of a queue that was never configured it
        means nothing.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config, fields, protect: bool = False):
        layouts = Layouts(config)
        known = {name: field.shape for name, field in layouts.queue_config}
        for name in fields:
            if name not in known:
                raise ValueError(f"field {name!r} is refused; legal: {', '.join(known)}")
        if not fields:
            raise ValueError("fields is empty; legal: at least one of " + ", ".join(known))
        self.config, self.protect = config, protect
        self.fields = tuple(fields)
        self.shape = data.StructLayout({name: known[name] for name in fields})
        super().__init__(
            {
                "write": In(stream.Signature(layouts.config_write, always_ready=True)),
                "read_en": In(1),
                "read_squeue": In(config.squeue_bits),
                "o": Out(self.shape),
                **fault_ports(protect, "fault"),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = memory_of(
            Sram, depth=self.config.squeues, shape=self.shape, protect=self.protect
        )
        if self.protect:
            m.d.comb += self.fault.eq(rows.fault)
        m.d.comb += [
            rows.read_en.eq(self.read_en),
            rows.read_address.eq(self.read_squeue),
            self.o.eq(rows.read_data),
        ]
        m.d.comb += [
            rows.write_en.eq(self.write.valid),
            rows.write_address.eq(self.write.p.squeue),
            *(rows.write_data[name].eq(self.write.p.queue_config[name]) for name in self.fields),
        ]
        return m
