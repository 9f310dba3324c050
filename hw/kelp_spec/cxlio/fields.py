# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What a register of CXL.io is: fields with access and reset, registers of 1 to 8 bytes, blocks of
registers. The RTL's decoder, the Python reference and the tables of docs/cxl.md are made of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Access", "Block", "Field", "Register", "constant"]

LANE = 8  #: bytes of the port: a register lies in one lane


class Access(Enum):
    CONSTANT = "RO"  #: reads its reset value
    DEVICE = "RO, device's"  #: reads what the hardware says
    RW = "RW"
    W1C = "RW1C"  #: the device sets a bit, the host clears it by writing one
    W1S = "RW1S"  #: the host sets a bit; it stays until reset
    SHARED = "RW, and the device's"  #: the device writes it, too
    COUNT = "RW, counts"  #: the device adds to it
    PRESS = "RW1S, device clears"  #: reads what the hardware says; a one written is a pulse
    STROBE = "WO"  #: reads zero; what is written is a pulse


@dataclass(frozen=True)
class Field:
    name: str
    low: int
    bits: int
    access: Access = Access.CONSTANT
    reset: int = 0
    doc: str = ""
    lock: str = ""  #: instead of the register's

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1


@dataclass(frozen=True)
class Register:
    """`size` bytes at `offset` of its block. `lock` names a bit that the hardware drives: while it
    is on, writes are dropped. `watch`: the hardware hears of each write. `function`: a
    function-level reset resets it."""

    name: str
    offset: int
    size: int
    fields: tuple[Field, ...]
    doc: str = ""
    lock: str = ""
    watch: bool = False
    function: bool = False

    @property
    def lane(self) -> int:
        return self.offset // LANE

    @property
    def shift(self) -> int:
        """Its lowest bit in its lane."""
        return 8 * (self.offset % LANE)

    @property
    def reset(self) -> int:
        return sum(f.reset << f.low for f in self.fields)

    def key(self, field: Field) -> str:
        """The field's name among all of the block."""
        return self.name if field.name == "value" else f"{self.name}_{field.name}"


class Block:
    """Registers by ascending offset in `size` bytes; `by_name`, and `fields`: key → (register,
    field). What lies between them reads zero and ignores writes."""

    def __init__(self, name: str, size: int, registers):
        self.name, self.size = name, size
        self.registers = tuple(sorted(registers, key=lambda r: r.offset))
        self.by_name = {r.name: r for r in self.registers}
        self.fields = {r.key(f): (r, f) for r in self.registers for f in r.fields}
        if len(self.by_name) != len(self.registers):
            raise ValueError(f"{name}: two registers of one name")
        end = 0
        for r in self.registers:
            if r.offset < end or r.offset % r.size or r.offset + r.size > size or r.size > LANE:
                raise ValueError(f"{name}.{r.name} at {r.offset:#x} is not in a place of its own")
            end, used = r.offset + r.size, 0
            for f in r.fields:
                if used & f.mask << f.low or f.low + f.bits > 8 * r.size or f.reset & ~f.mask:
                    raise ValueError(f"{name}.{r.name}.{f.name} does not fit")
                used |= f.mask << f.low

    def keys(self, *access: Access) -> dict[str, int]:
        """Keys of the fields of these kinds → bits."""
        return {key: f.bits for key, (_, f) in self.fields.items() if f.access in access}

    @property
    def locks(self) -> tuple[str, ...]:
        used = (f.lock or r.lock for r, f in self.fields.values())
        return tuple(dict.fromkeys(lock for lock in used if lock))

    @property
    def function(self) -> tuple[Register, ...]:
        """Registers that a function-level reset resets."""
        return tuple(r for r in self.registers if r.function)

    @property
    def watched(self) -> tuple[str, ...]:
        return tuple(r.name for r in self.registers if r.watch)


def constant(name: str, offset: int, size: int, value: int, doc: str) -> Register:
    """A register that reads `value`."""
    return Register(name, offset, size, (Field("value", 0, 8 * size, reset=value),), doc)
