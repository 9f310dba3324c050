# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A block of registers as bytes: what is kept, by the access that each field has."""

from __future__ import annotations

from kelp_spec.cxlio.fields import Access, Block

__all__ = ["Registers"]

_KEPT = (Access.RW, Access.W1C, Access.W1S, Access.SHARED, Access.COUNT)


class Registers:
    """`values`: field → what the host reads; the device writes there too. `locked(name)` says
    whether a lock is on. `written(register, strobes)` is called after a write that reached a
    register, with what was written to fields that keep nothing."""

    def __init__(self, block: Block):
        self.block = block
        self.values = {key: f.reset for key, (_, f) in block.fields.items()}
        self.locked = lambda name: False
        self.written = lambda register, strobes: None

    def read(self, offset: int, size: int) -> int:
        value = 0
        for register in self._at(offset, size):
            whole = sum(
                self.values[register.key(f)] << f.low
                for f in register.fields
                if f.access is not Access.STROBE
            )
            value |= whole << 8 * register.offset
        return value >> 8 * offset & (1 << 8 * size) - 1

    def write(self, offset: int, size: int, value: int) -> None:
        # One access: locks are what they were before it, in each of the registers that it reaches,
        # and what it causes sees all of them written.
        reached = [(register, self._locks(register)) for register in self._at(offset, size)]
        strobes = [self._keep(register, locks, offset, size, value) for register, locks in reached]
        for (register, _), pressed in zip(reached, strobes, strict=True):
            self.written(register, pressed)

    def _locks(self, register) -> list[bool]:
        """Of each field, whether its lock is on."""
        names = (f.lock or register.lock for f in register.fields)
        return [bool(name) and self.locked(name) for name in names]

    def _keep(self, register, locks, offset: int, size: int, value: int) -> dict[str, int]:
        """Write what the access has of a register: what was written to fields that keep nothing."""
        first = max(offset, register.offset)
        last = min(offset + size, register.offset + register.size)
        mask = ((1 << 8 * (last - first)) - 1) << 8 * (first - register.offset)
        given = value >> 8 * (first - offset) << 8 * (first - register.offset)
        strobes = {}
        for f, lock in zip(register.fields, locks, strict=True):
            touched, new = mask >> f.low & f.mask, given >> f.low & f.mask
            if lock:
                continue
            key = register.key(f)
            old = self.values[key]
            if f.access is Access.W1C:
                self.values[key] = old & ~(new & touched)
            elif f.access is Access.W1S:
                self.values[key] = old | (new & touched)
            elif f.access in _KEPT:
                self.values[key] = (old & ~touched) | (new & touched)
            elif f.access in (Access.PRESS, Access.STROBE):
                strobes[f.name] = new & touched
        return strobes

    def function_reset(self) -> None:
        """A function-level reset: what it resets has its reset values."""
        for register in self.block.function:
            for f in register.fields:
                if f.access in _KEPT:
                    self.values[register.key(f)] = f.reset

    def _at(self, offset: int, size: int):
        return [
            r
            for r in self.block.registers
            if r.offset < offset + size and offset < r.offset + r.size
        ]
