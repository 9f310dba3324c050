# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Bits that flip in the memories of a block on Verilator, and what the block says of them."""

from collections import Counter
from functools import reduce

from cocotb.triggers import RisingEdge

from kelp_hw.export.packing import Packing
from kelp_hw.lib.protected import BlockFault

__all__ = ["PUBLIC", "Faults", "Fenced"]

#: What a model must show (`Model.public`): the rows of small memories and FIFOs.
PUBLIC = (("top.*", "memory"), ("top.*", "storage"))


class Fenced(Exception):
    """A fault that is beyond repair: nothing after it means anything."""


class Faults:
    """Flips bits in a block's memories and listens to its `fault`, a BlockFault."""

    def __init__(self, dut, rng):
        self._dut, self._rng, self._fault = dut, rng, Packing(BlockFault)
        self.flipped = 0  #: bits of each row
        self.told = Counter()

    def clear(self):
        """After a reset."""
        self.flipped = 0
        self.told.clear()

    def flip(self, path: str, bits: int, *, within: int | None = None):
        """Flips `bits` bits, any of the lowest `within`, of each row of the memory at `path`. None
        may be written in the cycle before: a bench sees it as it was."""
        self.flipped = bits
        for row in reduce(getattr, path.split("."), self._dut):
            flips = self._rng.sample(range(within or len(row)), bits)
            row.value = int(row.value) ^ sum(1 << bit for bit in flips)

    def hear(self):
        """In the read-only phase of each cycle. Fenced where a fault is beyond repair."""
        fault = self._fault.unpack(self._dut.fault.value)
        self.told.update(name for name, told in fault.items() if told)
        assert self.flipped or not any(fault.values()), f"{fault}, and no bit has flipped"
        if fault["fatal"] or fault["poisoned"]:
            raise Fenced(fault)

    async def expect(self, path: str, bits: int, counted: int, traffic):
        """Awaits `traffic`, during which `bits` bits of each row of the memory at `path` are
        flipped. One changes nothing and is counted with each use of a row, `counted` times; two
        are fatal, no later than a row is used."""
        fenced = False
        try:
            await traffic
        except Fenced:
            fenced = True
            await RisingEdge(self._dut.clk)
        assert fenced == (bits == 2), f"{path}: {bits} flipped in each row, {self.told}"
        told = self.told["corrected"]
        assert fenced or told == counted, f"{path}: {told} corrected of {counted}"
