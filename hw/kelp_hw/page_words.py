# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Page words: metadata SRAM, SECDED, forwarding and the reset scrub (spec §4, docs/design.md §1, §2)."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config
from kelp_spec.metadata import PageState

from .layouts import Layouts
from .secded import Secded
from .sram import Sram

__all__ = ["PageWords"]


class PageWords(wiring.Component):
    """Reads a page word at MA, hands it over at M3 and takes the op's new one there; one op per cycle, rigid.

    Cycle t (MA): `look` and `look_valid`. Cycle t + 3 (M3): `word` (repaired) with `corrected`, `uncorrected`; `new`, the word after the op, in the
    same cycle, with `write` when it must be stored. An op sees the words of all earlier ops, also of the one just before it. `word` of an
    uncorrectable error is as it was read. `states`: bit s, the word's state is s, LOST when it is uncorrectable.

    The SRAM is banked by the low page bits, as far as needed to scrub within `SCRUB_CYCLES`; all banks are scrubbed together after reset,
    then `ready` rises. A word is encoded in the cycle after M3 and written in the one after that.

    `flip` is for verification: what it holds in the cycle after M3 is XORed into the code word on its way to the SRAM. Tied to zero it costs nothing.

    Parameters
    ----------
    config : Config

    Members
    -------
    look, look_valid : in
    word, corrected, uncorrected, states : out
    new, write : in
    flip : in
    ready : out
    """

    SCRUB_CYCLES = 700_000

    def __init__(self, *, config: Config):
        self.config = config
        self.layouts = layouts = Layouts(config)
        self.banks = 1
        while config.page_words // self.banks > self.SCRUB_CYCLES and self.banks < config.pages:
            self.banks *= 2
        self.code = Secded(layouts.page_word.size)
        super().__init__({
            "look": In(layouts.page), "look_valid": In(1),
            "word": Out(layouts.page_word), "corrected": Out(1), "uncorrected": Out(1), "states": Out(len(PageState)),
            "new": In(layouts.page_word), "write": In(1),
            "flip": In(self.code.code_bits),
            "ready": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        c, code, page, word = self.config, self.code, self.layouts.page, self.layouts.page_word
        bank_bits = (self.banks - 1).bit_length()
        rows = c.page_words // self.banks
        banks = []
        for b in range(self.banks):
            m.submodules[f"bank_{b}"] = bank = Sram(depth=rows, shape=code.code_bits)
            banks.append(bank)

        def row(p):
            return Cat(p.page, p.squeue)[bank_bits:]

        # The op's page and whether it looked at a word, stage by stage; F1 is the cycle after M3, F2 the next, in which the SRAM is written.
        stages = ("m1", "m2", "m3", "f1", "f2")
        at = {stage: Signal(page, name=f"page_{stage}") for stage in stages}
        valid = {stage: Signal(name=f"valid_{stage}") for stage in stages}
        m.d.sync += [at["m1"].eq(self.look), valid["m1"].eq(self.look_valid)]
        m.d.sync += [known[after].eq(known[before]) for known in (at, valid) for before, after in zip(stages, stages[1:], strict=False)]
        f1_word, f1_write, f2_word, f2_code, f2_write = Signal(word), Signal(), Signal(word), Signal(code.code_bits), Signal()
        m.d.sync += [
            f1_word.eq(self.new), f1_write.eq(self.write),
            f2_word.eq(f1_word), f2_write.eq(f1_write), f2_code.eq(code.encode(f1_word) ^ self.flip),
        ]

        # MA, M1: the SRAM. Of the ops before this one, the SRAM's answer lacks those that are at M3, F1 or F2 in M1; those behind will be forwarded at M2.
        for bank in banks:
            m.d.comb += [bank.read_en.eq(self.look_valid), bank.read_address.eq(row(self.look))]
        raw = Array(bank.read_data for bank in banks)[at["m1"].page[:bank_bits]] if bank_bits else banks[0].read_data

        # Whether an op in M1 follows one on its page is worked out a cycle earlier.
        follows = {}
        for before, stage in zip(stages, stages[1:], strict=False):
            follows[stage] = Signal(name=f"follows_{stage}")
            m.d.sync += follows[stage].eq(valid[before] & (at[before].as_value() == self.look.as_value()))

        # `new` is the word after its op whether that changed it or not, so forwarding need not wait for the decision.
        code_m2, early, early_hit, forward = Signal(code.layout), Signal(word), Signal(), Signal()
        m.d.sync += [
            code_m2.eq(raw),
            early.eq(Mux(follows["m3"], self.new, Mux(follows["f1"], f1_word, f2_word))),
            early_hit.eq(follows["m3"] | follows["f1"] | follows["f2"]),
            forward.eq(follows["m2"]),
        ]

        # M2: repair, or take the word of the op at M3 or of one that was there when this op was at M1.
        fixed, single, double = code.repair(code_m2, code.syndrome(code_m2))
        m.d.sync += [
            self.word.eq(Mux(forward, self.new, Mux(early_hit, early, fixed))),
            self.corrected.eq(single & ~forward & ~early_hit & valid["m2"]),
            self.uncorrected.eq(double & ~forward & ~early_hit & valid["m2"]),
        ]
        for s in PageState:
            read = Mux(double & valid["m2"], s == PageState.LOST, word(fixed).state == s)
            m.d.sync += self.states[s].eq(Mux(forward, self.new.state == s, Mux(early_hit, early.state == s, read)))

        # F2: the SRAM's write port, which the scrub has until `ready`.
        scrub = Signal(range(rows))
        with m.If(~self.ready):
            m.d.sync += scrub.eq(scrub + 1)
            with m.If(scrub == rows - 1):
                m.d.sync += self.ready.eq(1)
        for b, bank in enumerate(banks):
            here = at["f2"].page[:bank_bits] == b if bank_bits else 1
            m.d.comb += [
                bank.write_en.eq(~self.ready | (f2_write & here)),
                bank.write_address.eq(Mux(self.ready, row(at["f2"]), scrub)),
                bank.write_data.eq(Mux(self.ready, f2_code, 0)),
            ]
        return m
