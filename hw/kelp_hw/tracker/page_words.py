# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Page words: metadata SRAM, SECDED, forwarding and the reset scrub (spec §4, docs/design.md §1,
§2). One op a cycle; its word follows `look` after 3 cycles."""

from __future__ import annotations

from functools import reduce
from operator import xor
from types import SimpleNamespace

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from kelp_spec.config import Config
from kelp_spec.metadata import PageState

from ..layouts import Layouts
from ..lib.secded import Secded
from ..lib.sram import Sram

__all__ = ["PageWords"]


class PageWords(wiring.Component):
    """Reads a page word at MA, hands it over at M3 and takes the op's new one there (spec §4).

    Latency: `LATENCY` cycles from `look` to `word`; one op in each cycle (`INTERVAL`), never
    stalls.

    Cycle t (MA): `look`. Cycle t + 3 (M3): `word` (repaired) with `corrected`, `uncorrected`;
    `new`, the word after the op, in the same cycle, with `write` when it must be stored. An op sees
    the words of all earlier ops, also of the one just before it. `word` of an uncorrectable error
    is as it was read. `states`: bit s, the word's state is s, LOST when it is uncorrectable.

    The SRAM is banked by the low page bits, as far as needed to scrub within `SCRUB_CYCLES`; all
    banks are scrubbed together after reset, then `ready` rises. A word is encoded in the cycle
    after M3 and written in the one after that. A bank of more than `PART_ROWS` rows is an SRAM for
    each `PART_ROWS` of them, up to `MOST_PARTS` (a larger one is not in an FPGA's block RAM): a
    tool would choose between them behind their outputs. As many rows of one bit are in a block RAM
    of an ECP5, so the parts are as few as they can be; each is a macro for every
    slice of bits that fills a block RAM, for a wider one would be made of shallower ones again.

    Parameters
    ----------
    config : Config

    Members
    -------
    look : in, always-ready stream of page
    word : out
        The page's word.
    corrected, uncorrected : out
        It had one flipped bit, or two.
    states : out
        Its state, one-hot.
    new : in
        The word after the op, whether the op changed it or not.
    write : in
        `new` is stored.
    flip : in
        For verification: what it holds in the cycle after M3 is XORed into the code word on its way
        to the SRAM. Tied to zero it costs nothing.
    ready : out
        The reset scrub is over.
    """

    LATENCY = 3
    INTERVAL = 1
    SCRUB_CYCLES = 700_000
    CLEARS = ("bank_*",)  #: memories in it that are written whole before it is ready
    PART_ROWS, MOST_PARTS = 16384, 4

    def __init__(self, *, config: Config):
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.banks = 1
        while config.page_words // self.banks > self.SCRUB_CYCLES and self.banks < config.pages:
            self.banks *= 2
        self.rows = rows = config.page_words // self.banks
        split = self.PART_ROWS if rows <= self.MOST_PARTS * self.PART_ROWS else rows
        self.parts = tuple(min(split, rows - first) for first in range(0, rows, split))
        self.code = Secded(layouts.page_word.size)
        super().__init__(
            {
                "look": In(stream.Signature(layouts.page, always_ready=True)),
                "word": Out(layouts.page_word),
                "corrected": Out(1),
                "uncorrected": Out(1),
                "states": Out(len(PageState)),
                "new": In(layouts.page_word),
                "write": In(1),
                "flip": In(self.code.code_bits),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        code, page, word, parts = self.code, self.layouts.page, self.layouts.page_word, self.parts
        bank_bits = (self.banks - 1).bit_length()
        banks = []
        for b in range(self.banks):
            banks.append(
                [
                    Sram(
                        depth=depth,
                        shape=code.code_bits,
                        macro=len(parts) > 1 or depth > Sram.MACRO_ABOVE,
                        transparent=False,
                        slice_bits=(self.PART_ROWS >> ceil_log2(depth) if len(parts) > 1 else None),
                    )
                    for depth in parts
                ]
            )
            for k, sram in enumerate(banks[-1]):
                m.submodules[f"bank_{b}_part_{k}" if len(parts) > 1 else f"bank_{b}"] = sram

        def row(p):
            return Cat(p.page, p.squeue)[bank_bits:]

        def inside(row, k):
            """Whether a row is in part `k`."""
            return row[ceil_log2(parts[0]) :] == k if len(parts) > 1 else 1

        def sum_of(values):
            return reduce(xor, (Value.cast(value) for value in values))

        def bank(p):
            """Whose page this is: a bit for each bank."""
            return (
                Cat(p.page[:bank_bits] == b for b in range(self.banks))
                if bank_bits
                else Const(1, 1)
            )

        # The op's page and whether it looked at a word, stage by stage; F1 is the cycle after M3,
        # F2 the next, in which the SRAM is written.
        stages = ("m1", "m2", "m3", "f1", "f2")
        at = {stage: Signal(page, name=f"page_{stage}") for stage in stages}
        valid = {stage: Signal(name=f"valid_{stage}") for stage in stages}
        m.d.sync += [at["m1"].eq(self.look.p), valid["m1"].eq(self.look.valid)]
        m.d.sync += [
            known[after].eq(known[before])
            for known in (at, valid)
            for before, after in zip(stages, stages[1:], strict=False)
        ]
        f1_word, f1_write, f2_word, f3_word = Signal(word), Signal(), Signal(word), Signal(word)
        m.d.sync += [
            f1_word.eq(self.new),
            f1_write.eq(self.write),
            f2_word.eq(f1_word),
            f3_word.eq(f2_word),
        ]
        # `s`: signals that the methods below share, under the names that they have there.
        s = SimpleNamespace()
        s.code, s.word, s.parts, s.bank_bits, s.banks = code, word, parts, bank_bits, banks
        s.row, s.inside, s.sum_of, s.bank, s.stages, s.at = row, inside, sum_of, bank, stages, at
        s.valid, s.f1_word, s.f1_write, s.f2_word = valid, f1_word, f1_write, f2_word
        s.f3_word = f3_word
        self._read(m, s)
        self._repair(m, s)
        return m

    def _read(self, m: Module, s: SimpleNamespace) -> None:
        """MA, M1: the SRAM."""
        banks, row, stages, valid, at, parts = s.banks, s.row, s.stages, s.valid, s.at, s.parts
        inside, code, word, bank_bits, sum_of = s.inside, s.code, s.word, s.bank_bits, s.sum_of
        f1_word, f2_word, f3_word = s.f1_word, s.f2_word, s.f3_word
        # MA, M1: the SRAM. When this op is at M1, its answer lacks what the ops at M3, F1 and F2
        # write. It means nothing where the op behind F2 has the same page: that was written while
        # this one was read. What ops write that are not at M3 yet is forwarded at M2.
        for srams in banks:
            m.d.comb += [
                wire
                for sram in srams
                for wire in (
                    sram.read_en.eq(self.look.valid),
                    sram.read_address.eq(row(self.look.p)),
                )
            ]

        # Whether an op in M1 follows one on its page, and which part has the word that it wants, is
        # worked out a cycle earlier.
        follows, hides = {}, 0
        for before, stage in zip(stages, (*stages[1:], "f3"), strict=True):
            follows[stage], same = Signal(name=f"follows_{stage}"), Signal(name=f"same_{stage}")
            m.d.comb += same.eq(valid[before] & (at[before].as_value() == self.look.p.as_value()))
            m.d.sync += follows[stage].eq(same)
            if stage != "m2":
                hides |= same
        wanted = Signal(len(parts))
        m.d.sync += [
            bit.eq(self.look.valid & inside(row(self.look.p), k) & ~hides)
            for k, bit in enumerate(wanted)
        ]

        # Critical path: the block RAM's answer is registered here, and is zero where it is not
        # wanted, so two parts have one register, one table before it. So M2
        # need not choose, and where no word was read, or an older op's is taken, it finds zeros,
        # which are a code word. `new` is the word after its op whether that changed it or not, so
        # forwarding need not wait for the decision.
        read = [Signal(code.layout, name=f"read_{k}") for k in range(0, len(parts), 2)]
        early, forward = Signal(word), Signal()
        for both, first in zip(read, range(0, len(parts), 2), strict=True):
            pair = []
            for k in range(first, min(first + 2, len(parts))):
                raw = (
                    Array(srams[k].read_data for srams in banks)[at["m1"].page[:bank_bits]]
                    if bank_bits
                    else banks[0][k].read_data
                )
                pair.append(Value.cast(raw) & wanted[k].replicate(code.code_bits))
            m.d.sync += both.eq(sum_of(pair))
        m.d.sync += [
            early.eq(
                Mux(
                    follows["m3"],
                    self.new,
                    Mux(
                        follows["f1"],
                        f1_word,
                        Mux(follows["f2"], f2_word, Mux(follows["f3"], f3_word, 0)),
                    ),
                )
            ),
            forward.eq(follows["m2"]),
        ]
        s.read, s.early, s.forward = read, early, forward

    def _repair(self, m: Module, s: SimpleNamespace) -> None:
        """M2: repair, or take the word of an older op; F2: the write port."""
        code, sum_of, read, word, early = s.code, s.sum_of, s.read, s.word, s.early
        forward, row, at, f1_word, banks = s.forward, s.row, s.at, s.f1_word, s.banks
        f1_write, bank, inside = s.f1_write, s.bank, s.inside
        # M2: repair, or take the word of the op at M3 or of one that was there when this op was at
        # M1.
        whole, syndrome = Signal(code.layout), Signal(code.check_bits)
        m.d.comb += [whole.eq(sum_of(read)), syndrome.eq(code.syndrome(whole))]
        fixed, single, double = code.repair(whole, syndrome)
        found = word(sum_of((early, fixed)))
        m.d.sync += [
            self.word.eq(Mux(forward, self.new, found)),
            self.corrected.eq(single & ~forward),
            self.uncorrected.eq(double & ~forward),
        ]
        for s in PageState:
            m.d.sync += self.states[s].eq(
                Mux(
                    forward, self.new.state == s, Mux(double, s == PageState.LOST, found.state == s)
                )
            )

        # F2: the SRAM's write port, which the scrub has until `ready`. All of it comes from
        # registers.
        scrub, written, f2_code = (
            Signal(range(self.rows)),
            Signal(range(self.rows)),
            Signal(code.code_bits),
        )
        with m.If(~self.ready):
            m.d.sync += scrub.eq(scrub + 1)
            with m.If(scrub == self.rows - 1):
                m.d.sync += self.ready.eq(1)
        m.d.sync += [
            written.eq(Mux(self.ready, row(at["f1"]), scrub)),
            f2_code.eq(Mux(self.ready, code.encode(f1_word) ^ self.flip, 0)),
        ]
        for b, srams in enumerate(banks):
            for k, sram in enumerate(srams):
                write = Signal(name=f"write_{b}_{k}")
                m.d.sync += write.eq(
                    Mux(
                        self.ready,
                        f1_write & bank(at["f1"])[b] & inside(row(at["f1"]), k),
                        inside(scrub, k),
                    )
                )
                m.d.comb += [
                    sram.write_en.eq(write),
                    sram.write_address.eq(written),
                    sram.write_data.eq(f2_code),
                ]
