# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What policy `kelp` keeps in the score engine: a frequency of each page, a profile of its queue,
the turn of its session, and what these say a page is worth (docs/policy.md). One access a cycle:
frequency and count follow after 4 and 3 cycles, the value after 4; the look-up of a turn is
combinational."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import STEP_BITS
from kelp_spec.policy import (
    ALPHA,
    EPOCH_BITS,
    FOLDED,
    FREQUENCY_BITS,
    LATE,
    LOG_BITS,
    LOG_MOST,
    ONCE,
    PROFILE_BITS,
    PROFILE_SHIFT,
)

from ..lib.log2 import Log2
from ..lib.power_of_two import power_of_two
from ..lib.split_sram import SplitSram

__all__ = ["AGE_BITS", "Age", "Frequency", "Profile", "Turns", "remains"]

_IDLE_BITS = FOLDED.bit_length()
_ONCE_BITS = power_of_two("ONCE", ONCE).bit_length() - 1
_TOP = (1 << FREQUENCY_BITS) - 1
_OFTEN_BITS = (_TOP + ((1 << PROFILE_BITS) - 1 << PROFILE_SHIFT) + ONCE).bit_length()
AGE_BITS = 13  #: of the part of a value that falls with time


def remains(alpha: int, bits: int) -> list[int]:
    """[FOLDED + 1]: 2^bits · (1 − alpha/256)^n, rounded half up, in integers."""
    kept, rows, whole = 256 - alpha, [], 256
    for n in range(FOLDED + 1):
        rows.append(((kept**n << bits + 1) + whole**n) // (2 * whole**n))
    return rows


class Frequency(wiring.Component):
    """Folds idle steps into a page's frequency; adds an access, or its queue's profile and takes
    the logarithm (docs/policy.md).

    `often` = log2(ONCE + ((word + (count << PROFILE_SHIFT)) · F[idle] >> 12)) − log2(ONCE).

    Latency: `LATENCY` cycles from `word` and `count` to `often`, `TOUCHED_LATENCY` to `touched`;
    `idle` comes `IDLE_LATENCY` cycles before its `often`, so two before its `word`. One word in
    each cycle (`INTERVAL`). No error cases.

    Members
    -------
    idle : in
        Steps that are folded in, at most FOLDED.
    word : in
        UQ0.12.
    count : in
        Of the profile; counts for `often` alone.
    often : out
        LOG_BITS of it after the point.
    touched : out
        The word after an access.
    """

    LATENCY = 2 + Log2.LATENCY
    TOUCHED_LATENCY = 4
    IDLE_LATENCY = 2 + LATENCY
    INTERVAL = 1

    def __init__(self):
        self.log = Log2(bits=_OFTEN_BITS, least=_ONCE_BITS)
        super().__init__(
            {
                "idle": In(_IDLE_BITS),
                "word": In(FREQUENCY_BITS),
                "count": In(PROFILE_BITS),
                "often": Out(self.log.o.shape()),
                "touched": Out(FREQUENCY_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # What n steps leave needs one bit more than what it is multiplied with; that bit is n = 0.
        rows = remains(ALPHA, FREQUENCY_BITS)
        m.submodules.table = table = memory.Memory(
            shape=FREQUENCY_BITS + 1, depth=len(rows), init=rows
        )
        port = table.read_port()
        factor = Signal(FREQUENCY_BITS + 1)
        m.d.comb += port.addr.eq(self.idle)
        m.d.sync += factor.eq(port.data)  # a block RAM is slow to answer
        product, counted = (
            Signal(2 * FREQUENCY_BITS + 1, reset_less=True),
            Signal(PROFILE_BITS + FREQUENCY_BITS + 1, reset_less=True),
        )
        m.d.sync += [product.eq(self.word * factor), counted.eq(self.count * factor)]

        # an access
        folded, kept = (
            Signal(FREQUENCY_BITS, reset_less=True),
            Signal(FREQUENCY_BITS, reset_less=True),
        )
        missing, step = Signal(FREQUENCY_BITS), Signal(FREQUENCY_BITS + 7, reset_less=True)
        m.d.comb += missing.eq(~folded)  # all ones less what is there
        m.d.sync += [
            folded.eq(product[FREQUENCY_BITS:]),
            step.eq(missing * ALPHA + 128),
            kept.eq(folded),
            self.touched.eq(kept + step[8:]),
        ]

        # a value: the profile's part is added behind the multipliers, so that an access need not
        # wait for the sum
        both = Signal(2 * FREQUENCY_BITS + 2)
        often = Signal(_OFTEN_BITS, reset_less=True)
        m.submodules.log = log = self.log
        m.d.comb += [
            both.eq(product + (counted << PROFILE_SHIFT)),
            log.x.eq(often + ONCE),
            self.often.eq(log.o),
        ]
        m.d.sync += often.eq(both[FREQUENCY_BITS:])
        return m


class Age(wiring.Component):
    """The part of a page's value that falls with time: LOG_MOST + log2(ONCE) − log2(4 · (n + 1) +
    (LATE if over)), n = idle + 1 where its turn in this step has passed without an access
    (docs/policy.md).

    Latency: `LATENCY` cycles. One page in each cycle (`INTERVAL`). No error cases.

    Members
    -------
    idle : in
        Whole steps since its last access.
    same : in
        That was in this step, and `idle` is 0.
    over : in
        Its turn in this step has passed.
    o : out
    """

    LATENCY = 3 + Log2.LATENCY
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "idle": In(STEP_BITS),
                "same": In(1),
                "over": In(1),
                "o": Out(AGE_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # Quarters of a step beside the idle ones, by `over` and not `same`.
        late = (4, 4 + LATE, 4, 4 + 4 + LATE)
        most = (4 << STEP_BITS) + LATE
        m.submodules.log = log = Log2(bits=most.bit_length(), least=2)
        idle, more = Signal(STEP_BITS, reset_less=True), Signal(range(max(late) + 1))
        quarters = Signal(range(most + 1), reset_less=True)
        m.d.comb += log.x.eq(quarters)
        m.d.sync += [
            idle.eq(self.idle),
            more.eq(Array(late)[Cat(self.over, ~self.same)]),
            quarters.eq((idle << 2) + more),
            self.o.eq(LOG_MOST + (_ONCE_BITS - 2 << LOG_BITS) - log.o),
        ]
        return m


class Profile(wiring.Component):
    """How often each queue's pages were read at each distance from its newest one: a count that
    halves every 64 steps, and the epoch of its last count (docs/policy.md).

    Latency: the entry is read in the cycle of `valid`, `count` follows `LATENCY` cycles later and
    `entry` `ENTRY_LATENCY`, in which cycle it is written when `counts` or `clears`. One event in
    each cycle (`INTERVAL`); one on an entry that is still to be written gets the old one, so the
    engine keeps it back for `BUSY` cycles.

    Parameters
    ----------
    config : Config

    Members
    -------
    valid : in
        An event.
    squeue, distance : in
        Its entry; `distance` is in pages.
    epoch : in
        The step it belongs to, without its low bits.
    counts, clears : in
        It is an access; the entry starts from nothing.
    count : out
        The count as of that epoch, before this access.
    entry : out
        What is written, or what was read.
    ready : out
        The reset scrub is over, one entry a cycle; no event may come before.
    """

    LATENCY = 3
    ENTRY_LATENCY = 4
    INTERVAL = 1
    CLEARS = ("rows",)  #: memories in it that are written whole before it is ready
    BUSY = 3  #: cycles after an event in which its entry must not be read

    def __init__(self, *, config: Config):
        self.config = config
        self.entry_layout = data.StructLayout({"count": PROFILE_BITS, "epoch": EPOCH_BITS})
        super().__init__(
            {
                "valid": In(1),
                "squeue": In(config.squeue_bits),
                "distance": In(config.page_bits),
                "epoch": In(EPOCH_BITS),
                "counts": In(1),
                "clears": In(1),
                "count": Out(PROFILE_BITS),
                "entry": Out(self.entry_layout),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.rows = rows = SplitSram(depth=self.config.page_words, shape=self.entry_layout)
        address = Cat(self.distance, self.squeue)
        event = data.StructLayout(
            {"valid": 1, "address": len(address), "epoch": EPOCH_BITS, "counts": 1, "clears": 1}
        )
        e1, e2, e3 = (Signal(event, name=f"e{k}") for k in (1, 2, 3))
        found, passed, count = Signal(self.entry_layout), Signal(EPOCH_BITS), Signal(PROFILE_BITS)
        address4, write4 = Signal(len(address)), Signal()
        m.d.comb += [
            rows.read_en.eq(1),
            rows.read_address.eq(address),
            passed.eq(e3.epoch - found.epoch),
            count.eq(found.count >> passed),
            self.count.eq(count),
        ]
        m.d.sync += [
            e1.valid.eq(self.valid),
            e1.address.eq(address),
            *(e1[name].eq(getattr(self, name)) for name in ("epoch", "counts", "clears")),
            e2.eq(e1),
            e3.eq(e2),
            found.eq(rows.read_data),
            self.entry.epoch.eq(Mux(e3.counts | e3.clears, e3.epoch, found.epoch)),
            self.entry.count.eq(
                Mux(e3.clears, 0, Mux(e3.counts, count + ~count.all(), found.count))
            ),
            address4.eq(e3.address),
            write4.eq(e3.valid & (e3.counts | e3.clears)),
        ]
        scrub = Signal(range(rows.depth))
        m.d.comb += [
            rows.write_en.eq(write4 | ~self.ready),
            rows.write_address.eq(Mux(self.ready, address4, scrub)),
            rows.write_data.eq(Mux(self.ready, self.entry.as_value(), 0)),
        ]
        with m.If(~self.ready):
            m.d.sync += [scrub.eq(scrub + 1), self.ready.eq(scrub == rows.depth - 1)]
        return m


class Turns(wiring.Component):
    """Whose turn it is in each session's step: the latest access. A page before it in (queue, page)
    has had its turn in this step (docs/policy.md).

    Look-up: combinational (`LATENCY` 0), one in each cycle (`INTERVAL`); an access counts from the
    next cycle on.

    Parameters
    ----------
    config : Config

    Members
    -------
    session, squeue, page : in
        The page that is looked up or accessed.
    step : in
        Low byte of the session's step.
    accessed : in
        This is an access: the turn is here from the next cycle on.
    forgets : in
        The session closes: from the next cycle on no turn has passed.
    over, finished : out
        The page's turn has passed; its whole queue's has.
    """

    LATENCY = 0
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        super().__init__(
            {
                "session": In(config.session_bits),
                "squeue": In(config.squeue_bits),
                "page": In(config.page_bits),
                "step": In(8),
                "accessed": In(1),
                "forgets": In(1),
                "over": Out(1),
                "finished": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        place = Cat(self.page, self.squeue)
        turns = Array(
            [Signal(len(place) + 8, name=f"turn{k}") for k in range(self.config.sessions)]
        )
        turn = Signal(len(place) + 8)
        own = Signal()
        m.d.comb += [
            turn.eq(turns[self.session]),
            own.eq(turn[len(place) :] == self.step),
            self.over.eq(own & (place < turn[: len(place)])),
            self.finished.eq(own & (self.squeue < turn[len(self.page) : len(place)])),
        ]
        with m.If(self.accessed | self.forgets):
            m.d.sync += turns[self.session].eq(Mux(self.forgets, 0, Cat(place, self.step)))
        return m
