# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The hotness monitoring unit: which pages the tracker's own scores call hot. A score a cycle; a
hot page is listed after 2 cycles, or when its epoch ends."""

from __future__ import annotations

from amaranth.hdl import Array, Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.chmu import (
    CHMU_LIST,
    CHMU_SCORE_BITS,
    TICK_NS,
    TRACK_ALL,
    Mode,
    chmu_registers,
    unit_bits,
)
from kelp_spec.cxlio.config import UNIT_BYTES, CxlIoConfig

from .register_bank import RegisterBank
from .signatures import Access

__all__ = ["Chmu", "heat_layout"]


def heat_layout(config: CxlIoConfig) -> data.StructLayout:
    """A page's score as the tracker has just written it; `unit`: its device address / its size."""
    return data.StructLayout({"unit": unit_bits(config), "score": CHMU_SCORE_BITS})


class Chmu(wiring.Component):
    """Remembers, of each epoch, pages and their latest scores, in `config.hot_entries` places; of
    pages that share a place (the address folded by exclusive or) the one with the higher score
    stays. At the end of the epoch those whose score is at the threshold or above go to the list, by
    ascending place, in cycles without a score; of scores in `PATIENCE` + 1 cycles on end the last
    is not looked at meanwhile, so that no flood of them keeps a list from being made; where the
    next epoch ends before that, its list follows, without those listed already. In mode
    `ALWAYS` a page goes when it becomes hot, once an epoch while it keeps its place.

    The list is a ring: the host moves its head, the unit its tail; one place stays free. What finds
    it full is lost and sets `overflow`. Neither list nor places carry check bits: they advise.

    Latency: `LATENCY` cycles from a score to the list's tail in mode `ALWAYS`, 1 from `lane` to
    `read_data`. Interval: `INTERVAL`, a score a cycle.

    Parameters
    ----------
    config : CxlIoConfig
        One with `hot_entries`.

    Attributes
    ----------
    over, tail : Signal
        An epoch ends with this cycle; where the next entry goes. No ports: for a bench.

    Members
    -------
    access : In Access
    i : In stream of heat_layout, always taken
    interrupt : out
        Pulse: overflow, or filled beyond the threshold, where that is enabled.
    """

    LATENCY = 2
    INTERVAL = 1
    PATIENCE = 7

    def __init__(self, *, config: CxlIoConfig):
        if not config.hot_entries:
            raise ValueError(
                f"configuration {config.name!r} has no hot list; legal: one with hot_entries"
            )
        self.config = config
        self.row = data.StructLayout(
            {
                "valid": 1,
                "listed": 1,
                "unit": unit_bits(config),
                "score": CHMU_SCORE_BITS,
            }
        )
        self.over, self.tail = Signal(), Signal(range(config.hot_entries))
        super().__init__(
            {
                "access": In(Access(lane_bits=9)),
                "i": In(stream.Signature(heat_layout(config), always_ready=True)),
                "interrupt": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c, places = self.config, self.config.hot_entries
        m.submodules.bank = bank = RegisterBank(block=chmu_registers(c))
        m.submodules.places = table = memory.Memory(shape=self.row, depth=places, init=())
        keep = table.write_port()
        look = table.read_port(transparent_for=(keep,))
        values = bank.values
        walking, clearing, place = Signal(), Signal(init=1), Signal(range(places))
        enabled, always, was_enabled = Signal(), Signal(), Signal()
        step, last = Signal(), Signal()
        over = self._epoch(m, values, enabled)
        heat = self.i.p
        tracked = values.chmu_ranges.bit_select(heat.unit >> self._range_shift(), 1)
        event, waited = Signal(), Signal(range(self.PATIENCE + 1))
        urgent = (walking | clearing) & (waited == self.PATIENCE)
        m.d.sync += waited.eq(Mux((walking | clearing) & event, waited + 1, 0))
        m.d.comb += [
            enabled.eq(values.chmu_enable & ~clearing),
            always.eq(values.chmu_how_mode == Mode.ALWAYS),
            event.eq(self.i.valid & enabled & (values.chmu_what == TRACK_ALL) & tracked & ~urgent),
            step.eq((walking | clearing) & ~event),
            last.eq(step & (place == places - 1)),
            look.addr.eq(Mux(event, self._folded(heat.unit), place)),
            bank.inputs.chmu_status_enabled.eq(enabled),
            bank.inputs.chmu_status_operation.eq(clearing),
        ]
        # What is read, and for what, a cycle later.
        seen = Signal(heat_layout(c))
        here, heated, ended, wiped = Signal(range(places)), Signal(), Signal(), Signal()
        m.d.sync += [
            was_enabled.eq(values.chmu_enable),
            seen.eq(heat),
            here.eq(look.addr),
            heated.eq(event),
            ended.eq(step & walking & enabled),
            wiped.eq(step),
        ]
        with m.If(step):
            m.d.sync += place.eq(Mux(last, 0, place + 1))
        again = Signal()  # an epoch has ended during the walk: another one follows
        with m.If(last):
            m.d.sync += [walking.eq(again | over), again.eq(0), clearing.eq(0)]
        with m.Elif(over):
            m.d.sync += [walking.eq(1), again.eq(walking)]
        emptied = bank.strobes.chmu_reset | (values.chmu_enable & ~was_enabled)
        with m.If(emptied):
            m.d.sync += [clearing.eq(1), walking.eq(0), again.eq(0), place.eq(0)]
        row, threshold = look.data, values.chmu_threshold
        same, wins, hot, judged = Signal(), Signal(), Signal(), Signal(CHMU_SCORE_BITS)
        listed, append = Signal(), Signal()
        m.d.comb += [
            same.eq(row.valid & (row.unit == seen.unit)),
            wins.eq(~row.valid | same | (seen.score > row.score)),
            judged.eq(Mux(heated, seen.score, row.score)),
            hot.eq((threshold[CHMU_SCORE_BITS:] == 0) & (judged >= threshold[:CHMU_SCORE_BITS])),
            listed.eq(same & row.listed),
            append.eq(
                hot & Mux(heated, always & wins & ~listed, ended & row.valid & ~always) & ~clearing
            ),
            keep.addr.eq(here),
            keep.en.eq((heated & wins) | wiped),
            keep.data.valid.eq(heated),
            keep.data.listed.eq(listed | (always & hot)),
            keep.data.unit.eq(seen.unit),
            keep.data.score.eq(seen.score),
        ]
        unit = Mux(heated, seen.unit, row.unit)
        self._list(m, bank, append, Cat(judged, unit))
        return m

    def _range_shift(self):
        """Of a unit's address, to its 256 MiB."""
        return (UNIT_BYTES - 1).bit_length() - self.config.hot_unit

    def _folded(self, unit):
        bits, folded = (self.config.hot_entries - 1).bit_length(), Const(0)
        for at in range(0, len(unit), bits):
            folded = folded ^ unit[at : at + bits]
        return folded[:bits]

    def _epoch(self, m, values, enabled):
        """Pulses when an epoch is over."""
        period = round(TICK_NS / self.config.period_ns)
        part, ticks, over = Signal(range(period)), Signal(26), self.over
        length, scale = values.chmu_how_length, values.chmu_how_scale
        lengths = Array([Const(0, 26), *(length * 10**i for i in range(5)), *[Const(0, 26)] * 10])
        wanted = Signal(26)
        m.d.sync += wanted.eq(lengths[scale])
        tick = part == period - 1
        m.d.comb += over.eq(enabled & tick & (ticks + 1 >= wanted) & (wanted != 0))
        with m.If(~enabled):
            m.d.sync += [part.eq(0), ticks.eq(0)]
        with m.Else():
            m.d.sync += part.eq(Mux(tick, 0, part + 1))
            with m.If(tick):
                m.d.sync += ticks.eq(Mux(over, 0, ticks + 1))
        return over

    def _list(self, m, bank, append, entry):
        size = self.config.hot_entries
        m.submodules.list = kept = memory.Memory(shape=len(entry), depth=size, init=())
        write, read = kept.write_port(), kept.read_port()
        values, tail = bank.values, self.tail
        head, count, full = values.chmu_head, Signal(range(size)), Signal()
        overflow, filled = Signal(), Signal()
        fill = values.chmu_fill
        index = self.access.lane[: (size - 1).bit_length()]
        in_list, was_in_list, shown = Signal(), Signal(), Signal()
        # What is set in the very cycle in which the host clears it is new to the host.
        cleared = bank.written.chmu_status
        m.d.comb += [
            count.eq(tail - head),
            full.eq(count == size - 1),
            write.addr.eq(tail),
            write.data.eq(entry),
            write.en.eq(append & ~full),
            overflow.eq(append & full),
            filled.eq(append & ~full & (count >= fill)),
            bank.sets.chmu_status_overflow.eq(overflow),
            bank.sets.chmu_status_filled.eq(filled),
            bank.inputs.chmu_tail.eq(tail),
            bank.load.eq(bank.strobes.chmu_reset),
            read.addr.eq(index),
            in_list.eq(self.access.lane >= CHMU_LIST // 8),
            *(
                getattr(bank.access, name).eq(getattr(self.access, name))
                for name in ("write_data", "strobe")
            ),
            bank.access.lane.eq(self.access.lane),
            bank.access.read.eq(self.access.read & ~in_list),
            bank.access.write.eq(self.access.write & ~in_list),
            self.access.read_data.eq(
                Mux(was_in_list, Mux(shown, read.data, 0), bank.access.read_data)
            ),
        ]
        m.d.sync += [
            was_in_list.eq(in_list),
            shown.eq(self.access.lane - CHMU_LIST // 8 < size),
            self.interrupt.eq(
                (overflow & values.chmu_overflow_irq & (~values.chmu_status_overflow | cleared))
                | (filled & values.chmu_fill_irq & (~values.chmu_status_filled | cleared))
            ),
            Assert(~write.en | ~full, "an entry over one that was not read"),
        ]
        with m.If(write.en):
            m.d.sync += tail.eq(tail + 1)
        with m.If(bank.strobes.chmu_reset):
            m.d.sync += tail.eq(0)
