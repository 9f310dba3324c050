# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What policy `kelp` keeps in the score engine: two frequencies of a page, a profile of its queue,
the turn of its session (docs/policy.md). One access a cycle: frequencies and count follow after 3
cycles, the look-up of a turn is combinational."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.policy import (
    ALPHA_FAST,
    ALPHA_SLOW,
    COMMON_BITS,
    EPOCH_BITS,
    FAST_BITS,
    FOLDED,
    PROFILE_BITS,
    SCORE_WORD_BITS,
    SLOW_BITS,
    WEIGHT_FAST,
)

from ..lib.split_sram import SplitSram

__all__ = ["Frequencies", "Profile", "Turns", "frequencies_layout", "remains"]

#: A page's word: UQ0.9 and UQ0.12.
frequencies_layout = data.StructLayout({"fast": FAST_BITS, "slow": SLOW_BITS})
_IDLE_BITS = FOLDED.bit_length()
_SHORT = 32  #: entries of a table that needs no memory


def remains(alpha: int, bits: int) -> list[int]:
    """[FOLDED + 1]: 2^bits · (1 − alpha/256)^n, rounded half up, in integers."""
    kept, rows, whole = 256 - alpha, [], 256
    for n in range(FOLDED + 1):
        rows.append(((kept**n << bits + 1) + whole**n) // (2 * whole**n))
    return rows


class Frequencies(wiring.Component):
    """Folds idle steps into a word's two frequencies, and adds an access (docs/policy.md).

    Latency: `LATENCY` cycles from `word` to `common`, `TOUCHED_LATENCY` to `touched`; `idle` comes
    `IDLE_LATENCY` cycles before its `common`, so two before its `word`. One word in each cycle
    (`INTERVAL`). No error cases.

    Members
    -------
    idle : in
        Steps without an access, at most FOLDED.
    word : in
    common : out
        6 · fast + slow of the folded frequencies.
    touched : out
        The word after an access; of word 0, that of a new page.
    """

    LATENCY = 3
    TOUCHED_LATENCY = 4
    IDLE_LATENCY = 5
    INTERVAL = 1

    def __init__(self):
        super().__init__(
            {
                "idle": In(_IDLE_BITS),
                "word": In(frequencies_layout),
                "common": Out(COMMON_BITS),
                "touched": Out(frequencies_layout),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # What n steps leave needs one bit more than what it is multiplied with; that bit is n = 0.
        factors = {}
        for name, alpha, bits in (("fast", ALPHA_FAST, FAST_BITS), ("slow", ALPHA_SLOW, SLOW_BITS)):
            rows = remains(alpha, bits)
            # Where nothing is left the table need not go on: the fast one is so short that logic
            # holds it.
            depth = 1 << (rows.index(0) - 1).bit_length()
            factor = Signal(bits + 1, name=f"{name}_factor")
            if depth <= _SHORT:
                read = Signal(bits + 1, name=f"{name}_read")
                m.d.sync += [
                    read.eq(
                        Mux(
                            self.idle < depth,
                            Array(rows[:depth])[self.idle[: depth.bit_length() - 1]],
                            0,
                        )
                    ),
                    factor.eq(read),
                ]
            else:
                m.submodules[f"{name}_table"] = table = memory.Memory(
                    shape=bits + 1, depth=len(rows), init=rows
                )
                port = table.read_port()
                m.d.comb += port.addr.eq(self.idle)
                m.d.sync += factor.eq(port.data)  # a block RAM is slow to answer
            product, part = (
                Signal(2 * bits + 1, name=f"{name}_product", reset_less=True),
                getattr(self.word, name),
            )
            folded = Signal(bits, name=f"{name}_folded", reset_less=True)
            m.d.sync += [product.eq(part * factor), folded.eq(product[bits:])]
            factors[name] = folded
            missing, step = (
                Signal(bits, name=f"{name}_missing"),
                Signal(bits + 7, name=f"{name}_step", reset_less=True),
            )
            kept = Signal(bits, name=f"{name}_kept", reset_less=True)
            m.d.comb += missing.eq(~folded)  # all ones less what is there
            m.d.sync += [
                step.eq(missing * alpha + 128),
                kept.eq(folded),
                getattr(self.touched, name).eq(kept + step[8:]),
            ]
        m.d.sync += self.common.eq(WEIGHT_FAST * factors["fast"] + factors["slow"])
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
    over : out
        The page's turn has passed.
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
            }
        )

    def elaborate(self, platform):
        m = Module()
        place = Cat(self.page, self.squeue)
        turns = Array(
            [Signal(len(place) + 8, name=f"turn{k}") for k in range(self.config.sessions)]
        )
        turn = Signal(len(place) + 8)
        m.d.comb += [
            turn.eq(turns[self.session]),
            self.over.eq((turn[len(place) :] == self.step) & (place < turn[: len(place)])),
        ]
        with m.If(self.accessed | self.forgets):
            m.d.sync += turns[self.session].eq(Mux(self.forgets, 0, Cat(place, self.step)))
        return m


assert frequencies_layout.size == SCORE_WORD_BITS
