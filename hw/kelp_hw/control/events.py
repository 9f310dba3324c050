# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Event log: up to sixteen records that were not taken yet, an overflow flag, and the interrupt
(spec §9). One record a cycle: in the log 2 cycles after its event, at `irq` after 3 cycles."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import Event
from kelp_spec.registers import EVENT_RECORDS

from ..layouts import TIME_BITS, Layouts
from ..lib.power_of_two import power_of_two

__all__ = ["EventLog", "TAKEN"]

_COUNT_BITS = EVENT_RECORDS.bit_length()
#: What a reader says that it has read: records, and that `overflow` was set.
TAKEN = data.StructLayout({"count": _COUNT_BITS, "overflow": 1})


def told_ports(config: Config) -> dict:
    """The port `o_told` of events for CXL.io, where there is one."""
    event = stream.Signature(Layouts(config).event, always_ready=True)
    return {"o_told": Out(event)} if config.cxlio else {}


class EventLog(wiring.Component):
    """Records events of several sources, `EVENT_RECORDS` at most, until they are taken (spec §9).

    Each source has one waiting place; an event that finds its source's place or the log full is
    lost and sets `overflow`. Records keep order within a source. Those that wait go before any that
    comes later, the lowest source first: so none waits for more than two of each other source,
    whoever has events in every cycle (a tenant whose requests are refused, for instance).

    The log is a ring: `take` moves its base, so that records leave as they came, and none that
    came since the reader counted. In one cycle with `take`:

    - a record is kept behind those that stay, in a full log in the room that is made;
    - an event that is lost sets `overflow`, also where `take` lowers it: what is lost in that cycle
      is lost after the reader looked;
    - `irq` stays high while records are left, and where one comes: only an empty log says nothing.

    A record that comes in the cycle of `clear` goes with the others. `clear` wins over `take`.

    Latency: `LATENCY` cycles from an event to its record in `count`, `IRQ_LATENCY` to `irq`, while
    no other source has an event. Interval: `INTERVAL`, one record per cycle.

    Parameters
    ----------
    config : Config
    sources : int

    Members
    -------
    i : in, always-ready streams of event, one per source
    now : in
        Time that the records carry.
    clear : in
        Pulse: the log is empty, `overflow` and `irq` are low.
    take : in
        Pulse: `taken.count` records, the oldest ones, leave; all, where there are fewer.
        `taken.overflow`: `overflow` falls.
    taken : in
    irq_enable : in
        Bit k: a record of event code k raises `irq`.
    read_index : in
    read_data : out
        The record `read_index`, 0 the oldest, in the same cycle.
    count : out
        Records in the log.
    overflow : out
        An event was lost.
    irq : out
        An event whose bit is set in `irq_enable` was recorded; high until the log is empty.
    o_told : out, always-ready stream, with `Config.cxlio`
        Each event that is taken up, also where the log is full.
    idle : out
        No event waits for the log or for `irq`.
    """

    LATENCY = 2
    IRQ_LATENCY = 3
    INTERVAL = 1

    def __init__(self, *, config: Config, sources: int):
        if sources < 1:
            raise ValueError(f"sources = {sources} is refused; legal: 1 and up")
        layouts = Layouts(config)
        self.sources, self.told = sources, bool(config.cxlio)
        self.record = data.StructLayout({"event": layouts.event, "time": TIME_BITS})
        super().__init__(
            {
                "i": In(stream.Signature(layouts.event, always_ready=True)).array(sources),
                "now": In(TIME_BITS),
                "clear": In(1),
                "take": In(1),
                "taken": In(TAKEN),
                "irq_enable": In(32),
                "read_index": In(range(EVENT_RECORDS)),
                "read_data": Out(self.record),
                "count": Out(range(EVENT_RECORDS + 1)),
                "overflow": Out(1),
                "irq": Out(1),
                "idle": Out(1),
                **told_ports(config),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=self.record, depth=EVENT_RECORDS, init=[])
        write = memory.write_port()
        read = memory.read_port(domain="comb")
        # Where the oldest record is. The ring wraps.
        base = Signal(range(power_of_two("EVENT_RECORDS", EVENT_RECORDS)))
        m.d.comb += [read.addr.eq(base + self.read_index), self.read_data.eq(read.data)]

        waiting = Signal(self.sources)
        held = Array([Signal(self.record, name=f"held_{i}") for i in range(self.sources)])
        pick = Signal(range(self.sources))
        # `older`: those of the turn under way that have not gone yet. Who comes meanwhile is in the
        # next turn.
        older, turn = Signal(self.sources), Signal(self.sources)
        m.d.comb += turn.eq(Mux((waiting & older).any(), waiting & older, waiting))
        for i in reversed(range(self.sources)):
            with m.If(turn[i]):
                m.d.comb += pick.eq(i)
        goes = waiting.any()
        m.d.sync += older.eq(turn & (turn - 1))
        leave, left, room = Signal(_COUNT_BITS), Signal(_COUNT_BITS), Signal()
        with m.If(self.take):
            m.d.comb += leave.eq(Mux(self.taken.count < self.count, self.taken.count, self.count))
        m.d.comb += [
            left.eq(self.count - leave),
            # Without `left`: it comes late.
            room.eq((self.count != EVENT_RECORDS) | (self.take & self.taken.count.any())),
        ]
        records = goes & room
        m.d.sync += [base.eq(base + leave), self.count.eq(left + records)]

        m.d.comb += [
            write.addr.eq(base + self.count),
            write.data.eq(held[pick]),
            write.en.eq(records),
        ]
        if self.told:
            m.d.comb += [self.o_told.valid.eq(goes), self.o_told.p.eq(held[pick].event)]
        newest, logged = Signal.like(held[0].event.code), Signal()
        m.d.comb += self.idle.eq(~goes & ~logged)
        m.d.sync += logged.eq(0)
        with m.If(logged & self.irq_enable.bit_select(newest, 1)):
            m.d.sync += self.irq.eq(1)
        with m.If(self.take & (left == 0) & ~records):
            m.d.sync += self.irq.eq(0)
        with m.If(self.take & self.taken.overflow):
            m.d.sync += self.overflow.eq(0)
        with m.If(goes):
            m.d.sync += waiting.bit_select(pick, 1).eq(0)
            with m.If(room):
                m.d.sync += [newest.eq(held[pick].event.code), logged.eq(1)]
            with m.Else():
                m.d.sync += self.overflow.eq(1)
        for i in range(self.sources):
            with m.If(self.i[i].valid):
                m.d.comb += Assert(self.i[i].p.code != Event.NONE)
                with m.If(waiting[i] & ~(goes & (pick == i))):
                    m.d.sync += self.overflow.eq(1)
                with m.Else():
                    m.d.sync += waiting[i].eq(1)
            # Critical path: `i.valid` to `waiting`. A free place takes `i.p` in every cycle, event
            # or not.
            with m.If(~waiting[i] | (goes & (pick == i))):
                m.d.sync += [held[i].event.eq(self.i[i].p), held[i].time.eq(self.now)]
        with m.If(self.clear):
            m.d.sync += [self.count.eq(0), self.overflow.eq(0), self.irq.eq(0), logged.eq(0)]
        m.d.comb += [
            Assert(self.count <= EVENT_RECORDS),
            Assert(~(self.irq | logged) | (self.count != 0), "an interrupt of an empty log"),
        ]
        return m
