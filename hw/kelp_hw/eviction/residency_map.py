# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""One bit per page: is it listed (resident)? One word is read a cycle, and given after 1 cycle
(docs/design.md §6)."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.config import Config

from ..lib.sram import Sram
from .signatures import MapRead, word_pages

__all__ = ["ResidencyMap"]


class ResidencyMap(wiring.Component):
    """Words of up to 64 pages of one squeue; one page is set or cleared at a time, whole words are
    read.

    Latency: `LATENCY` cycles from a granted request to its word. Interval: `INTERVAL` for reads.

    `update` reads the page's word in its cycle and writes it two cycles later, when `was` tells the
    bit before; one update in two cycles, of any page. A word is read per cycle, but waits (not
    `granted`) while an update reads; `word` follows a cycle after. After reset the map
    clears itself, one word per cycle, until `ready`.

    Parameters
    ----------
    config : Config

    Members
    -------
    update, squeue, page, value : in
        The page's bit becomes `value`.
    was : out
        What it was, two cycles after `update`.
    read : in, MapRead
    ready : out
        The clearing after reset is over.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, config: Config):
        self.config = config
        self.word_pages = word_pages(config)
        self.words = config.pages // self.word_pages
        super().__init__(
            {
                "update": In(1),
                "squeue": In(config.squeue_bits),
                "page": In(config.page_bits),
                "value": In(1),
                "was": Out(1),
                "read": In(MapRead(config)),
                "ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        c = self.config
        m.submodules.words = words = Sram(depth=c.squeues * self.words, shape=self.word_pages)
        bit_bits = (self.word_pages - 1).bit_length()
        index_bits = (self.words - 1).bit_length()

        request = self.read.request
        place = Cat(self.page[bit_bits:], self.squeue)
        updating, changing = Signal(), Signal()
        bit, value, address = Signal(bit_bits), Signal(), Signal(words.address_bits)
        # critical path: registered here, behind the block RAM
        raw, changed = Signal(self.word_pages, reset_less=True), Signal(self.word_pages)
        m.d.comb += [
            self.read.granted.eq(~self.update & self.ready),
            words.read_en.eq(1),  # a word is taken in the cycle in which it comes
            words.read_address.eq(
                Mux(self.update, place, Cat(request.index[:index_bits], request.squeue))
            ),
            self.read.word.eq(words.read_data),
            self.was.eq(raw.bit_select(bit, 1)),
            changed.eq(raw),
            changed.bit_select(bit, 1).eq(value),
        ]
        m.d.sync += [
            updating.eq(self.update),
            changing.eq(updating),
            raw.eq(words.read_data),
            Assert(~(self.update & updating), "an update came before the last one was read"),
        ]
        with m.If(self.update):
            m.d.sync += [bit.eq(self.page), value.eq(self.value), address.eq(place)]

        clear = Signal(range(words.depth))
        with m.If(~self.ready):
            m.d.comb += [words.write_en.eq(1), words.write_address.eq(clear)]
            m.d.sync += [
                Assert(~self.update),
                clear.eq(clear + 1),
                self.ready.eq(clear == words.depth - 1),
            ]
        with m.Else():
            m.d.comb += [
                words.write_en.eq(changing),
                words.write_address.eq(address),
                words.write_data.eq(changed),
            ]
        return m
