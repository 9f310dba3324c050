# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Storage and decoder of a block of CXL.io registers, made from `kelp_spec.cxlio`. A read is
answered after 1 cycle, a write done in the next; one access a cycle."""

from __future__ import annotations

from amaranth.hdl import Assert, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kelp_spec.cxlio.fields import LANE, Block
from kelp_spec.cxlio.fields import Access as Kind

from .signatures import Access

__all__ = ["RegisterBank"]

_KEPT = (Kind.RW, Kind.W1C, Kind.W1S, Kind.SHARED, Kind.COUNT)
_ADD_BITS = 6


class RegisterBank(wiring.Component):
    """The registers of `block`. Bytes that no register has read zero and ignore writes.

    Latency: `LATENCY` cycle from `lane` to `read_data`, and from a write to `values`; `written`,
    `strobes` and `clears` come with the write. Interval: `INTERVAL`.

    Parameters
    ----------
    block : kelp_spec.cxlio.fields.Block

    Members
    -------
    access : In Access
    values : out
        What is kept: fields RW, RW1C, RW1S, and those shared with the device.
    inputs : in
        Fields that the device shows.
    sets : in
        Bits of RW1C fields that are set; a set wins over a clear of the same cycle.
    clears : out
        Those that a write clears, in its cycle, whether they are set or not.
    loads, load : in
        Shared fields, taken when `load`; that wins over a write.
    adds : in
        What a counting field adds; lost in the cycle of a write to it.
    strobes : out
        The ones written to fields that keep nothing.
    locks : in
        By name; a field whose lock is on is not written.
    written : out
        Registers that are watched: some byte of it is written, lock or not.
    function_reset : in, where the block has registers of it
        What a function-level reset resets has its reset values in the next cycle; that wins over
        all else.
    """

    LATENCY = 1
    INTERVAL = 1

    def __init__(self, *, block: Block):
        self.block = block
        self.lane_bits = (block.size // LANE - 1).bit_length()
        # A layout without fields has no bits, and no port: one spare bit.
        kept = block.keys(*_KEPT)
        resets = {key: block.fields[key][1].reset for key in kept}
        layouts = {
            "inputs": (In, block.keys(Kind.DEVICE, Kind.PRESS)),
            "sets": (In, block.keys(Kind.W1C)),
            "clears": (Out, block.keys(Kind.W1C)),
            "loads": (In, block.keys(Kind.SHARED)),
            "adds": (In, dict.fromkeys(block.keys(Kind.COUNT), _ADD_BITS)),
            "strobes": (Out, block.keys(Kind.PRESS, Kind.STROBE)),
            "locks": (In, dict.fromkeys(block.locks, 1)),
            "written": (Out, dict.fromkeys(block.watched, 1)),
        }
        super().__init__(
            {
                "access": In(Access(lane_bits=self.lane_bits)),
                "load": In(1),
                **({"function_reset": In(1)} if block.function else {}),
                "values": Out(data.StructLayout(kept or {"unused": 1}), init=resets),
                **{
                    name: flow(data.StructLayout(bits or {"unused": 1}))
                    for name, (flow, bits) in layouts.items()
                },
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes: dict[int, list] = {}
        here = {}
        for r in self.block.registers:
            lanes.setdefault(r.lane, []).append(r)
        read = Signal(64)
        m.d.sync += self.access.read_data.eq(read)
        with m.Switch(self.access.lane):
            for lane, registers in lanes.items():
                here[lane] = Signal(name=f"lane_{lane:x}")
                with m.Case(lane):
                    m.d.comb += [read.eq(self._shown(registers)), here[lane].eq(self.access.write)]
        for lane, registers in lanes.items():
            for register in registers:
                self._written(m, register, here[lane])
        return m

    def _field(self, key, field):
        if field.access in _KEPT:
            return self.values[key]
        if field.access in (Kind.DEVICE, Kind.PRESS):
            return self.inputs[key]
        return Const(0 if field.access is Kind.STROBE else field.reset, field.bits)

    def _shown(self, registers):
        """A lane as it is read."""
        parts, at = [], 0
        for register in registers:
            for field in sorted(register.fields, key=lambda f: f.low):
                low = register.shift + field.low
                parts += [Const(0, low - at), self._field(register.key(field), field)]
                at = low + field.bits
        return Cat(*parts)

    def _written(self, m, register, here):
        access = self.access
        first = register.shift // 8
        touched = here & access.strobe[first : first + register.size].any()
        if register.watch:
            m.d.comb += self.written[register.name].eq(touched)
        for field in register.fields:
            key, low = register.key(field), register.shift + field.low
            if field.access in (Kind.CONSTANT, Kind.DEVICE):
                continue
            lock = field.lock or register.lock
            free = ~self.locks[lock] if lock else 1
            mask = Cat(here & free & access.strobe[(low + bit) // 8] for bit in range(field.bits))
            given = access.write_data[low : low + field.bits]
            if field.access in (Kind.PRESS, Kind.STROBE):
                m.d.comb += self.strobes[key].eq(given & mask)
                continue
            kept = self.values[key]
            if field.access is Kind.W1C:
                was_set, sets = Signal.like(self.sets[key]), self.sets[key]
                m.d.sync += [
                    was_set.eq(Mux(self.function_reset, 0, sets) if register.function else sets),
                    Assert((was_set & ~kept) == 0, "a set is lost"),
                ]
                m.d.comb += self.clears[key].eq(given & mask)
                value = (kept & ~self.clears[key]) | sets
            elif field.access is Kind.W1S:
                value = kept | (given & mask)
            else:
                value = (kept & ~mask) | (given & mask)
            if field.access is Kind.COUNT:
                value = Mux(mask.any(), value, kept + self.adds[key])
            if field.access is Kind.SHARED:
                value = Mux(self.load, self.loads[key], value)
            m.d.sync += kept.eq(value)
            if register.function:
                with m.If(self.function_reset):
                    m.d.sync += kept.eq(field.reset)
