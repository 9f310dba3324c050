# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Arithmetic of policy 2's tables: what a turn makes of a page's frequencies and which entry of V
it is in then; its entry of T and what a guess says that it is worth (docs/select_tables.md). A
page a cycle: 4 cycles to the entry, 3 to a guess's value."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec import policy2 as p
from kelp_spec.policy import LOG_BITS, LOG_MOST

from ..lib.log2 import Log2

__all__ = [
    "COHORT",
    "COUNT_BITS",
    "ENTRY",
    "FACTOR_BITS",
    "FREQUENCY_BITS",
    "GUESSED_BITS",
    "MARK",
    "NO_SIDES",
    "PAGE",
    "SIDES",
    "VALUE_BITS",
    "GuessedValue",
    "PageFrequencies",
    "later",
    "side",
    "times",
]

FREQUENCY_BITS, COUNT_BITS, VALUE_BITS = 12, 7, 16
FACTOR_BITS = 17  #: of what idle steps leave, UQ1.16
GUESSED_BITS = 14  #: of what a guess says that a page is worth, as of policy `kelp`'s value
#: an entry of V: buckets of fast, slow and count
ENTRY = data.StructLayout({"count": 3, "slow": 3, "fast": 2})
#: an entry of T: octaves of value and mass
SIDES = data.StructLayout({"mass": 4, "value": 4})
#: where a page is in LRU's shadow: the step in which it was last wanted, mod 256; whether it is
COHORT = data.StructLayout({"step": 8, "held": 1})
#: what is kept of a page, beside what has a memory of its own; `met`: it has had a turn
PAGE = data.StructLayout(
    {
        "fast": FREQUENCY_BITS,
        "slow": FREQUENCY_BITS,
        "before": ENTRY,
        "met": 1,
        "cohort": COHORT,
    }
)
#: of a page that a guess scored
MARK = data.StructLayout({"mass": 4, "absent": 1})
NO_SIDES = SIDES.const({"mass": 15, "value": 15})  #: no guess


def later(m: Module, first, cycles: int, name: str) -> list:
    """`first`, and what it was 1 … `cycles` cycles ago, in registers without reset."""
    stages = [first]
    for k in range(1, cycles + 1):
        stages.append(Signal(first.shape(), name=f"{name}_{k}", reset_less=True))
        m.d.sync += stages[-1].eq(stages[-2])
    return stages


def times(x, factor: int):
    """x · factor in adders: a multiplier of an FPGA is slower than the few that there are."""
    terms = [x << bit for bit in range(factor.bit_length()) if factor >> bit & 1]
    return sum(terms[1:], terms[0])


def _octaves(m: Module, x, out, least: int) -> None:
    """`out` is how far the octave of x is above `least`, 0 where it is not."""
    most = (1 << len(out)) - 1
    for bit in range(least + 1, len(x)):
        with m.If(x[bit]):
            m.d.comb += out.eq(min(bit - least, most))


def side(m: Module, x, name: str):
    """The octave of a value or mass of 16 bits, as T has it: 0 … 11, combinational."""
    out = Signal(4, name=name)
    _octaves(m, x, out, VALUE_BITS - p.T_SIDE)
    return out


class PageFrequencies(wiring.Component):
    """What a turn makes of a page: both frequencies folded by the idle steps, a read added, and the
    entry of V that follows.

    fast = (fast · `fast_factor` >> 16), with a read + ((4095 − fast) · 56 + 128 >> 8); slow with 8;
    count halved where it `fades`, + 1 with a read, at most 127.

    Latency: `LATENCY` cycles from all inputs to all outputs. One page in each cycle (`INTERVAL`).
    No error cases.

    Members
    -------
    fast, slow : in
        UQ0.12, as of the queue's last turn.
    count : in
        Of the queue's profile, at the page's distance.
    fast_factor, slow_factor : in
        What the idle steps leave of either, UQ1.16, at most 1.
    fades, read : in
        The profile is halved; the page was chosen or wanted.
    new_fast, new_slow, new_count, entry : out
    """

    LATENCY = 4
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "fast": In(FREQUENCY_BITS),
                "slow": In(FREQUENCY_BITS),
                "count": In(COUNT_BITS),
                "fast_factor": In(FACTOR_BITS),
                "slow_factor": In(FACTOR_BITS),
                "fades": In(1),
                "read": In(1),
                "new_fast": Out(FREQUENCY_BITS),
                "new_slow": Out(FREQUENCY_BITS),
                "new_count": Out(COUNT_BITS),
                "entry": Out(ENTRY),
            }
        )

    def elaborate(self, platform):
        m = Module()
        reads = later(m, self.read, 2, "read")
        fast3 = self._frequency(m, "fast", self.fast, self.fast_factor, p.FAST, reads[2])
        slow3 = self._frequency(m, "slow", self.slow, self.slow_factor, p.SLOW, reads[2])
        count1, count2, count3 = (
            Signal(COUNT_BITS, name=f"count{k}", reset_less=True) for k in (1, 2, 3)
        )
        m.d.sync += [
            count1.eq(Mux(self.fades, self.count >> 1, self.count)),
            count2.eq(count1),
            count3.eq(count2 + (reads[2] & ~count2.all())),
            self.new_fast.eq(fast3),
            self.new_slow.eq(slow3),
            self.new_count.eq(count3),
        ]
        entry3 = Signal(ENTRY)
        _octaves(m, fast3, entry3.fast, 5)
        _octaves(m, slow3, entry3.slow, 4)
        with m.If(count3[0]):
            m.d.comb += entry3.count.eq(1)
        for bit in range(1, COUNT_BITS):
            with m.If(count3[bit]):
                m.d.comb += entry3.count.eq(bit + 1)
        m.d.sync += self.entry.eq(entry3)
        return m

    @staticmethod
    def _frequency(m, name, x, factor, weight, read2):
        product = Signal(FREQUENCY_BITS + FACTOR_BITS, name=f"{name}_product", reset_less=True)
        folded, kept = Signal(FREQUENCY_BITS), Signal(FREQUENCY_BITS, reset_less=True)
        missing, gain = Signal(FREQUENCY_BITS), Signal(FREQUENCY_BITS + 7, reset_less=True)
        new = Signal(FREQUENCY_BITS, name=f"{name}3", reset_less=True)
        m.d.comb += [folded.eq(product[16:]), missing.eq(~folded)]  # all ones less what is there
        m.d.sync += [
            product.eq(x * factor),
            kept.eq(folded),
            gain.eq(missing * weight + 128),
            new.eq(kept + Mux(read2, gain[8:], 0)),
        ]
        return new


class GuessedValue(wiring.Component):
    """What a guess says that a page is worth, as policy `kelp` counts: 6144 + log2(t >> 4), 0 where
    t < 16.

    Latency: `LATENCY` cycles. One page in each cycle (`INTERVAL`). No error cases.

    Members
    -------
    likely : in
        t, what T says.
    value : out
    """

    LATENCY = 1 + Log2.LATENCY
    INTERVAL = 1

    def __init__(self):
        super().__init__({"likely": In(VALUE_BITS), "value": Out(GUESSED_BITS)})

    def elaborate(self, platform):
        m = Module()
        often = self.likely[p.GUESS_SHIFT :]
        m.submodules.log = log = Log2(bits=len(often), least=0)
        some = later(m, often.any(), Log2.LATENCY, "some")
        read_each_step = LOG_MOST - (2 << LOG_BITS)  # idle for four quarters of a step
        m.d.comb += log.x.eq(often)
        m.d.sync += self.value.eq(Mux(some[-1], read_each_step + log.o, 0))
        return m
