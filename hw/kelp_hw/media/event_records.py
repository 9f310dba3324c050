# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The endpoint's events as what the mailbox makes CXL event records of. Latency 2 cycles; one event
a cycle."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.cxlio.events import RECORDS, Kind, Log
from kelp_spec.metadata import Event

from ..cxlio.signatures import event_layout
from ..layouts import Layouts, queue_in_map
from ..lib.protected import BlockFault, Fault, fifo_of, gather

__all__ = ["EventRecords"]

_UNCORRECTABLE = 1  #: in the descriptor of a general media record
_PERMANENT = 1  #: in the flags of a record: the condition lasts


class EventRecords(wiring.Component):
    """Takes every event and offers it as the mailbox wants it: general media records with the
    page's address for errors of memory, vendor records for the others
    (`kelp_spec.cxlio.events.RECORDS`). The one event that names a line, SNOOP_LOST, has the line's
    address. An event that finds as many waiting as its log may have places (`PLACES`) is lost: the
    endpoint's own log has it, if that has room. So those that any tenant can cause, a refused
    request or a write of poison, leave places for what is worse.

    Latency: `LATENCY` cycles; interval: `INTERVAL`.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : In stream of Layouts.event, always taken
    o : Out stream of event_layout
    fault : out, BlockFault
        Of the cycle before; an event beyond repair is `poisoned`: it is dropped.
    """

    LATENCY = 2
    INTERVAL = 1
    DEPTH = 16
    #: for events of each log and for graver ones
    PLACES = {Log.INFO: 8, Log.WARNING: 12, Log.FAILURE: 15, Log.FATAL: DEPTH}

    def __init__(self, *, config: Config):
        self.config, self.layout = config, Layouts(config).event
        super().__init__(
            {
                "i": In(stream.Signature(self.layout, always_ready=True)),
                "o": Out(stream.Signature(event_layout())),
                "fault": Out(BlockFault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        queue = fifo_of(
            fifo.SyncFIFOBuffered, depth=self.DEPTH, shape=self.layout.size, protect=c.protect
        )
        m.submodules.queue = queue
        records = [RECORDS.get(e, (Log.INFO, Kind.VENDOR)) for e in _codes()]
        places = Array(Const(self.PLACES[log], range(self.DEPTH + 1)) for log, _ in records)
        event, broken = Signal(self.layout), Signal()
        m.d.comb += [
            queue.w_data.eq(self.i.p.as_value()),
            queue.w_en.eq(self.i.valid & (queue.level < places[self.i.p.code])),
            event.as_value().eq(queue.r_data),
            broken.eq(queue.fault.uncorrected if c.protect else 0),
            self.o.valid.eq(queue.r_rdy & ~broken),
            queue.r_en.eq(self.o.ready | broken),
        ]
        gather(m, self.fault, poisoned=(queue.fault if c.protect else Signal(Fault),))
        log = Array(Const(each, 2) for each, _ in records)[event.code]
        kind = Array(Const(each, 2) for _, each in records)[event.code]
        line = Signal(c.line_bits)
        if c.coherence:
            lost = event.code == Event.SNOOP_LOST
            m.d.comb += line.eq(Mux(lost, event.argument, 0))
        page = Cat(Const(0, 6), line, event.page, queue_in_map(m, c, event.squeue))
        place = Cat(event.page, Const(0, 32 - len(event.page)), event.squeue)
        media = Signal()
        m.d.comb += [
            media.eq(kind == Kind.MEDIA),
            self.o.p.log.eq(log),
            self.o.p.kind.eq(kind),
            self.o.p.flags.eq(Mux(log == Log.FATAL, _PERMANENT, 0)),
            self.o.p.dpa.eq(Mux(media, page, place)),
            self.o.p.word.eq(
                Mux(
                    media,
                    Mux(event.code == Event.CORRECTED, 0, _UNCORRECTABLE),
                    Cat(event.code, Const(0, 8 - len(event.code)), event.ld_id),
                )
            ),
            self.o.p.more.eq(Mux(media, 0, event.argument)),
        ]
        return m


def _codes():
    """Every value of an event's code."""
    known = {e.value: e for e in Event}
    return [known.get(i) for i in range(1 << max(known).bit_length())]
