# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The tables V and T of every queue: what a turn teaches them, and what they say
(docs/select_tables.md). A page of a turn in 2 cycles, its value 5 cycles after it came; a page of
a guess a cycle, answered after 4."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal, signed
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec import policy2 as p
from kelp_spec.config import Config

from ..lib.sram import Sram
from .table_values import ENTRY, SIDES, VALUE_BITS, later, times

__all__ = ["TableLearning"]

_PAGE = data.StructLayout(
    {"entry": ENTRY, "before": ENTRY, "read": 1, "teaches_v": 1, "teaches_t": 1}
)

_ENTRIES, _SIDES = 1 << ENTRY.size, p.T_SIDE * p.T_SIDE
_STARTS = [
    v | t << VALUE_BITS
    for v, t in zip(p.start_of_v(), p.start_of_t() + [0] * (_ENTRIES - _SIDES), strict=True)
]


class TableLearning(wiring.Component):
    """V and T of each queue, 256 and 144 entries of 16 bits.

    A page of a turn moves V at the entry in which it was `before`, towards 65535 where it was read,
    else towards V[`entry`] · 200 >> 8, by a 128th of the way; and T at `sides`, towards 65535 or 0,
    by a 64th; each where it is told to. Its value is V[`entry`] thereafter. Pages of a turn see
    what those before them have taught.

    Latency: `LATENCY` cycles from a page to `post`, `LIKELY_LATENCY` from `sides` to `likely`;
    `SETTLED` from a page or a row to the last write of it. Pages of a turn come 2 cycles apart
    (`INTERVAL`), or 4 and more; `sides` of a guess may come in each cycle. No error cases.

    Parameters
    ----------
    config : Config

    Members
    -------
    squeue : in
        The queue; constant for 2 cycles before its first page or row, and until SETTLED after its
        last.
    starts, row : in
        The entries of number `row` are as new, of T where it has one.
    i : in, always-ready stream
        A page of a turn: its entry of V after this turn, and `before` it; whether it was `read`;
        whether it teaches either table.
    sides : in
        An entry of T, of the page at `i` or of a guess.
    post, likely : out
    """

    LATENCY = 5
    LIKELY_LATENCY = 4
    INTERVAL = 2
    SETTLED = 6

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__(
            {
                "squeue": In(config.squeue_bits),
                "starts": In(1),
                "row": In(ENTRY.size),
                "i": In(stream.Signature(_PAGE, always_ready=True)),
                "sides": In(SIDES),
                "post": Out(VALUE_BITS),
                "likely": Out(VALUE_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.opening = table = memory.Memory(
            shape=2 * VALUE_BITS, depth=_ENTRIES, init=_STARTS
        )
        port = table.read_port()
        start = data.StructLayout({"v": VALUE_BITS, "t": VALUE_BITS})(port.data)
        starts, row = Signal(), Signal(ENTRY.size, reset_less=True)
        m.d.comb += port.addr.eq(self.row)
        m.d.sync += [starts.eq(self.starts), row.eq(self.row)]
        valid = [self.i.valid, *(Signal(name=f"valid_{k}") for k in range(1, 6))]
        m.d.sync += [b.eq(a) for a, b in zip(valid, valid[1:], strict=False)]
        m.d.sync += [
            Assert(~(valid[0] & (valid[1] | valid[3])), "pages of a turn come too close"),
            Assert(~starts | (Cat(valid) == 0), "a queue begins anew amid its turn"),
        ]
        self._v(m, valid, starts, row, start.v)
        self._t(m, valid, starts, row, start.t)
        return m

    def _v(self, m, valid, starts, row, start):
        """0: V[entry] is read; 1: V[before]; 2: what V[before] moves towards; 3: it moves; 4: is
        written, as the next page but one reads. What the page before this one writes is taken from
        `new`."""
        m.submodules.v = v = Sram(depth=self.config.squeues << ENTRY.size, shape=VALUE_BITS)
        before = later(m, self.i.p.before.as_value(), 4, "before")
        teaches = later(m, self.i.valid & self.i.p.teaches_v, 4, "teaches_v")
        read = later(m, self.i.p.read, 2, "read")
        entry = self.i.p.entry.as_value()
        own, at_entry, at_before = Signal(), Signal(), Signal()
        m.d.comb += [
            own.eq(entry == self.i.p.before.as_value()),
            at_entry.eq(teaches[2] & (entry == before[2])),
            at_before.eq(teaches[2] & (self.i.p.before.as_value() == before[2])),
        ]
        own, at_entry, at_before = (
            later(m, own, 4, "own"),
            later(m, at_entry, 2, "at_entry"),
            later(m, at_before, 3, "at_before"),
        )
        found, new, aim = (
            Signal(VALUE_BITS, name=name, reset_less=True) for name in ("found", "new", "aim")
        )
        known, old = Signal(VALUE_BITS), Signal(VALUE_BITS)
        worth, way = Signal(VALUE_BITS + 8), Signal(signed(VALUE_BITS + 1))
        moved = Signal(signed(VALUE_BITS + 2))
        knowns = later(m, known, 2, "known")
        m.d.comb += [
            v.read_en.eq(1),
            v.read_address.eq(Cat(Mux(valid[0], entry, before[1]), self.squeue)),
            known.eq(Mux(at_entry[2], new, found)),
            worth.eq(times(known, p.LATER_READ)),
            old.eq(Mux(at_before[3], new, found)),
            way.eq(aim - old),
            moved.eq(old + (way >> p.V_SHIFT)),
            v.write_en.eq(starts | (valid[4] & teaches[4])),
            v.write_address.eq(Cat(Mux(starts, row, before[4]), self.squeue)),
            v.write_data.eq(Mux(starts, start, new)),
        ]
        m.d.sync += [
            found.eq(v.read_data),
            aim.eq(Mux(read[2], p.ONE, worth[8:])),
            self.post.eq(Mux(own[4] & teaches[4], new, knowns[2])),
        ]
        with m.If(valid[3]):
            m.d.sync += [
                new.eq(moved),
                Assert((moved >= 0) & (moved <= p.ONE), "an entry of V left 0 … 65535"),
            ]

    def _t(self, m, valid, starts, row, start):
        """1: the address; 2: T is read; 4: it moves; 5: is written. What the page before this one
        writes is taken from `new`."""
        m.submodules.t = t = Sram(depth=self.config.squeues * _SIDES, shape=VALUE_BITS)
        base = Signal(t.address_bits, reset_less=True)
        place = Signal(range(_SIDES), reset_less=True)
        m.d.sync += [
            base.eq(times(self.squeue, _SIDES)),
            place.eq(times(self.sides.value, p.T_SIDE) + self.sides.mass),
        ]
        address = Signal(t.address_bits, reset_less=True)
        m.d.sync += address.eq(base + place)
        addresses = later(m, address, 3, "address")  # 2 … 5
        teaches = later(m, self.i.valid & self.i.p.teaches_t, 5, "teaches_t")
        read = later(m, self.i.p.read, 4, "read_t")
        same = Signal()
        m.d.comb += same.eq(teaches[4] & (addresses[0] == addresses[2]))
        same = later(m, same, 2, "same")  # 2 … 4
        found, new = (Signal(VALUE_BITS, name=f"t_{k}", reset_less=True) for k in ("found", "new"))
        old, way = Signal(VALUE_BITS), Signal(signed(VALUE_BITS + 1))
        m.d.comb += [
            t.read_en.eq(1),
            t.read_address.eq(address),
            old.eq(Mux(same[2], new, found)),
            way.eq(Mux(read[4], p.ONE, 0) - old),
            t.write_en.eq((starts & (row < _SIDES)) | (valid[5] & teaches[5])),
            t.write_address.eq(Mux(starts, base + row, addresses[3])),
            t.write_data.eq(Mux(starts, start, new)),
            self.likely.eq(found),
        ]
        m.d.sync += found.eq(t.read_data)
        with m.If(valid[4]):
            m.d.sync += new.eq(old + (way >> p.T_SHIFT))
