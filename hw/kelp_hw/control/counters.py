# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Telemetry counters: totals, and a few per (session, queue) (spec §9). A total takes any number of
pulses a cycle and shows one after 3 cycles, or up to a turn of the pointer later; a queue's
counters take one event a cycle and show it after 5 cycles."""

from __future__ import annotations

from types import SimpleNamespace

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.registers import COUNTERS

from ..lib.sram import Sram
from .signatures import queue_counter_names, queue_event_layout

__all__ = [
    "TotalCounters",
    "QueueCounters",
    "QUEUE_COUNTER_BITS",
    "TOTAL_BITS",
]

TOTAL_BITS = 48
QUEUE_COUNTER_BITS = 32
_USEFUL = "prefetch_useful"  #: the counter that `i_useful` bumps


class TotalCounters(wiring.Component):
    """Counts pulses, one bit per entry of `kelp_spec.registers.COUNTERS`, any number at once
    (spec §9).

    Each counter gathers pulses in a few flip-flops; a pointer visits the counters in turn, one a
    cycle, and adds the gathered pulses to a 48-bit word in memory. A reader takes the words of
    `read_data` as they come by.

    Latency: `LATENCY` to `LATENCY + TURN - 1` cycles from a pulse to `read_data`, as the pointer
    stands; `READ_LATENCY` from `pointer` to its counter's word, with every pulse up to the cycle
    of `pointer`. Interval: `INTERVAL`, every counter in every cycle.

    Members
    -------
    pulses : in
        Bit i: entry i of `COUNTERS` counts one more.
    clear : in
        Held for `TURN` + 4 cycles or more: every counter becomes 0.
    pointer : out
        The counter that is visited.
    read_data : out
        The counter that `pointer` was at `READ_LATENCY` cycles ago.
    idle : out
        No gathered pulse is left to add.
    """

    TURN = len(COUNTERS)  #: cycles of the pointer's round
    LATENCY = READ_LATENCY = 3
    INTERVAL = 1
    CLEARS = ("memory",)  #: memories in it that are written whole before it is ready

    def __init__(self):
        super().__init__(
            {
                "pulses": In(len(COUNTERS)),
                "clear": In(1),
                "pointer": Out(range(self.TURN)),
                "read_data": Out(TOTAL_BITS),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=TOTAL_BITS, depth=self.TURN, init=[])
        write = memory.write_port()
        read = memory.read_port()
        here = Signal.like(self.pointer)  # the counter whose word is out
        m.d.sync += [
            self.pointer.eq(Mux(self.pointer == self.TURN - 1, 0, self.pointer + 1)),
            here.eq(self.pointer),
        ]
        m.d.comb += read.addr.eq(self.pointer)

        gather_bits = self.TURN.bit_length()
        gathered = [Signal(gather_bits, name=f"gathered_{name}") for name, _ in COUNTERS]
        add = Signal(gather_bits)
        with m.Switch(here):
            for i, g in enumerate(gathered):
                with m.Case(i):
                    m.d.comb += add.eq(g)
        for i, g in enumerate(gathered):
            m.d.sync += g.eq(Mux(here == i, 0, g) + self.pulses[i])
            m.d.comb += Assert(g <= self.TURN)
        # A cycle each for the word and what is to be added, for the sum, and for its write: `TURN`
        # is more than these three, so no word is read before it is written.
        old, more, total = Signal(TOTAL_BITS), Signal(gather_bits), Signal(TOTAL_BITS)
        there, written = Signal.like(here), Signal.like(here)
        m.d.sync += [
            old.eq(read.data),
            more.eq(add),
            there.eq(here),
            total.eq(old + more),
            written.eq(there),
        ]
        m.d.comb += [
            write.addr.eq(written),
            write.data.eq(Mux(self.clear, 0, total)),
            write.en.eq(1),
            self.read_data.eq(total),
            self.idle.eq(~Cat(gathered).any() & ~self.pulses.any()),
        ]
        with m.If(self.clear):
            m.d.sync += [g.eq(0) for g in gathered]
        return m


class QueueCounters(wiring.Component):
    """Counters of each (session, queue): entries of `QUEUE_COUNTERS`, the first four when
    `config.wide_counters` is off (spec §9). 32 bits, wrapping.

    Latency: `LATENCY` cycle from `read_squeue`, in a cycle with `read_grant`, to `read_data`;
    `COUNT_LATENCY` cycles from an event to the `read_data` that holds it. Interval: `INTERVAL`, one
    event of each stream in every cycle; a read in a cycle without.

    `prefetch_useful` has a memory of its own: as many pages as there are may be demanded one a
    cycle, each an event of both streams, so neither could wait for the other. A wipe sets the
    counters of one queue to 0; it takes a cycle in which no event was taken, and is as fast. Where
    none came for `PATIENCE` cycles, `quiet` asks for one.

    Parameters
    ----------
    config : Config

    Members
    -------
    i : in, always-ready stream of queue_event_layout
    i_useful : in, always-ready stream of squeue
        A page of this queue was prefetched and then demanded.
    clear : in
        Held for `squeues` cycles or more: every counter becomes 0, while no event comes or is
        inside: one that has read its row before brings the old counts back.
    wipe, wipe_squeue : in
        The counters of `wipe_squeue` become 0; held until a cycle with `wipe_ready`.
    wipe_ready : out
        The wipe is taken: what came before it is gone, what comes in this cycle or later counts.
    read : in
        Somebody waits for the row of `read_squeue`: `quiet` may ask for a cycle. Held until a cycle
        with `read_grant`; without it that row is read in every such cycle as well.
    read_squeue : in
    read_grant : out
        The read is done in this cycle.
    read_data : out
    quiet : out
        A read or a wipe has waited for `PATIENCE` cycles: until it is done, no op may begin whose
        result would be an event here.
    idle : out
        No event is being counted.
    """

    LATENCY = 1
    COUNT_LATENCY = 5
    INTERVAL = 1
    CLEARS = ("counts", "useful")  #: memories in it that are written whole before it is ready
    PATIENCE = 127

    def __init__(self, *, config: Config):
        self.config = config
        self.names = queue_counter_names(config)
        self.event = queue_event_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(self.event, always_ready=True)),
                "i_useful": In(stream.Signature(config.squeue_bits, always_ready=True)),
                "clear": In(1),
                "wipe": In(1),
                "wipe_squeue": In(config.squeue_bits),
                "wipe_ready": Out(1),
                "read": In(1),
                "read_squeue": In(config.squeue_bits),
                "read_grant": Out(1),
                "read_data": Out(data.ArrayLayout(QUEUE_COUNTER_BITS, len(self.names))),
                "quiet": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        by_event = [k for k, name in enumerate(self.names) if name != _USEFUL]
        given = self.i.p
        banks = [
            self._bank(
                m, "counts", self.i.valid, given.squeue, Cat(given.bump[k] for k in by_event)
            ),
            self._bank(m, "useful", self.i_useful.valid, self.i_useful.p, Const(1, 1)),
        ]
        counts, useful = banks
        m.d.comb += [
            *(self.read_data[k].eq(counts.read_data[at]) for at, k in enumerate(by_event)),
            self.read_data[self.names.index(_USEFUL)].eq(useful.read_data[0]),
            self.read_grant.eq(~Cat(bank.reads for bank in banks).any()),
            self.idle.eq(
                ~Cat(*(bank.busy for bank in banks), self.i.valid, self.i_useful.valid).any()
                & ~self.wipe
            ),
            self.wipe_ready.eq(self.read_grant & ~self.clear),
        ]
        waited = Signal(range(self.PATIENCE + 1))
        m.d.comb += self.quiet.eq(waited == self.PATIENCE)
        with m.If(self.read_grant | ~(self.read | self.wipe)):
            m.d.sync += waited.eq(0)
        with m.Else():
            m.d.sync += waited.eq(waited + ~self.quiet)
        return m

    def _bank(self, m: Module, name: str, valid, squeue, bump) -> SimpleNamespace:
        """A memory of counters, one for each bit of `bump`, that counts an event in every cycle:
        its `read_data`, whether it `reads` a row for itself, and whether an event is in it."""
        c = self.config
        row = data.ArrayLayout(QUEUE_COUNTER_BITS, len(bump))
        event = data.StructLayout({"squeue": c.squeue_bits, "bump": len(bump), "zero": 1})
        m.submodules[name] = sram = Sram(depth=c.squeues, shape=row)
        # Critical path: `valid` to the choice between an event and a read: registered here
        # (`s0`, `v0`); the memory is read in the next cycle. Then `raw` (block RAM to `counted`),
        # `counted` and the write. Counts of the two events before are forwarded: of the older one
        # into `raw`, of the younger one into `counted`; what is written in the cycle of a read,
        # the memory forwards.
        s0, s1, s2 = (Signal(event, name=f"{name}_s{k}") for k in range(3))
        v0, v1, v2, v3 = (Signal(name=f"{name}_v{k}") for k in range(4))
        raw, counted = Signal(row, name=f"{name}_raw"), Signal(row, name=f"{name}_counted")
        squeue3 = Signal(c.squeue_bits, name=f"{name}_squeue3")
        follows_next, follows = (
            Signal(name=f"{name}_follows_next"),
            Signal(name=f"{name}_follows"),
        )
        m.d.sync += [v0.eq(valid), v1.eq(v0), v2.eq(v1), v3.eq(v2)]
        m.d.sync += [s0.squeue.eq(squeue), s0.bump.eq(bump), s1.eq(s0), s2.eq(s1)]
        # A wipe takes the place of an event, and reads no row.
        with m.If(self.wipe & self.wipe_ready):
            m.d.sync += [v1.eq(1), s1.squeue.eq(self.wipe_squeue), s1.bump.eq(0), s1.zero.eq(1)]
        m.d.sync += [
            squeue3.eq(s2.squeue),
            follows_next.eq(v2 & (s0.squeue == s2.squeue)),
            follows.eq(v2 & (s1.squeue == s2.squeue)),
            raw.eq(Mux(follows_next, counted.as_value(), sram.read_data.as_value())),
            *(
                counted[i].eq(Mux(s2.zero, 0, Mux(follows, counted[i], raw[i])) + s2.bump[i])
                for i in range(len(bump))
            ),
        ]
        m.d.comb += [
            sram.read_en.eq(1),
            sram.read_address.eq(Mux(v0, s0.squeue, self.read_squeue)),
            sram.write_en.eq(v3),
            sram.write_address.eq(squeue3),
            sram.write_data.eq(counted),
        ]
        sweep = Signal(range(c.squeues), name=f"{name}_sweep")
        with m.If(self.clear):
            m.d.sync += sweep.eq(Mux(sweep == c.squeues - 1, 0, sweep + 1))
            m.d.comb += [sram.write_en.eq(1), sram.write_address.eq(sweep), sram.write_data.eq(0)]
        return SimpleNamespace(read_data=sram.read_data, reads=v0, busy=Cat(v0, v1, v2, v3).any())
