# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A memory with check bits that nobody writes. A read is answered after 1 cycle; one a cycle."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .protected import CheckedWord, Fault

__all__ = ["ConstantMemory"]

_WORD = 32


class ConstantMemory(wiring.Component):
    """Words of 32 bits that nobody writes, with check bits.

    Latency: `LATENCY` cycle from an address to its word. Interval: `INTERVAL`.

    Parameters
    ----------
    content : list of int
    protect : bool

    Members
    -------
    address : in
        One that there is not reads zero.
    read_data : out
    fault : out, Fault
        Of that word: the owner says whether it is used.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, content, protect: bool):
        self.content = list(content)
        self.word = CheckedWord(_WORD, protect=protect)
        super().__init__(
            {
                "address": In(range(max(2, len(self.content)))),
                "read_data": Out(_WORD),
                "fault": Out(Fault),
            }
        )

    def elaborate(self, platform):
        m = Module()
        word = self.word
        m.submodules.memory = self.memory_rows = rows = memory.Memory(
            shape=word.code_bits,
            depth=len(self.content),
            init=[self._coded(each) for each in self.content],
        )
        read = rows.read_port()
        row, single, double = word.decode(m, read.data)
        m.d.comb += [
            read.en.eq(1),
            read.addr.eq(self.address),
            self.read_data.eq(row),
            self.fault.corrected.eq(single.any()),
            self.fault.uncorrected.eq(double.any()),
        ]
        return m

    def _coded(self, value: int) -> int:
        """The code word of `value`: the code is linear, so each of its ones adds its column."""
        checks = 0
        for bit, column in enumerate(self.word.columns[0][:_WORD] if self.word.protect else ()):
            checks ^= column if value >> bit & 1 else 0
        return value | checks << _WORD
