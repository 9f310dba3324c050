# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Registers by name, over loads and stores of the register window; names and fields are those of
`kelp_spec.registers` (docs/registers.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from kelp_spec.address import AddressMap
from kelp_spec.config import Config
from kelp_spec.registers import RegisterMap, unlike

from .arguments import integer
from .core import Core, Status
from .errors import TransportError
from .process import NotCopied

__all__ = ["Registers", "pack", "refuse_unlike", "unpack"]


def pack(register, **fields: int) -> int:
    """A register's value; fields not named have their reset values. ValueError names a field out of
    range."""
    value, known = register.reset, {f.name: f for f in register.fields}
    for name, content in fields.items():
        if name not in known:
            raise ValueError(f"{register.name} has no field {name!r}; legal: {', '.join(known)}")
        f = known[name]
        content = integer(f"{register.name}.{name}", content, 0, (1 << f.bits) - 1)
        value = value & ~((1 << f.bits) - 1 << f.low) | content << f.low
    return value


def unpack(register, value: int) -> dict[str, int]:
    """A register's value as its fields."""
    return {f.name: value >> f.low & (1 << f.bits) - 1 for f in register.fields}


def refuse_unlike(core: Core, url: str) -> None:
    """TransportError unless the device's registers `identity` and `digest` are of `core.config`
    and of a register map that this host knows (docs/interface.md); by one load, before anything
    is asked of it that depends on them."""
    base = AddressMap(core.config).register_base
    with core.lock:
        loaded = core.load(np.array([base], np.uint64), 0)
    if loaded.status[0] != Status.DATA:
        raise TransportError(
            f"{url}: no registers answer where configuration {core.config.name!r} has them"
        )
    identity, digest = loaded.lines[0, :16].view("<u8").tolist()
    if (why := unlike(core.config, identity, digest)) is not None:
        raise TransportError(f"{url}: {why}")


class Registers(NotCopied):
    """Reads and writes 64-bit registers.

    Parameters
    ----------
    config : Config
    load : callable
        uint64[n] addresses → uint8[n, 64].
    store : callable
        (addresses, uint8[n, 64], byte enables uint64[n]); in order.
    """

    _uncopied = (
        "registers are of one process's device and are not copied or sent to another; open the "
        + "device there by its URL"
    )

    def __init__(self, config: Config, load: Callable, store: Callable):
        self.by_name = RegisterMap(config).by_name
        self._base, self._load, self._store = AddressMap(config).register_base, load, store

    def register(self, name: str):
        try:
            return self.by_name[name]
        except KeyError:
            raise KeyError(
                f"{name!r} is not a register of this configuration; docs/registers.md lists them"
            ) from None

    def read_many(self, names: Iterable[str]) -> list[int]:
        """Values in the order of `names`; each line of registers is loaded once."""
        offsets = [self.register(name).offset for name in names]
        lines = sorted({offset // 64 for offset in offsets})
        data = self._load(np.array([self._base + 64 * line for line in lines], np.uint64))
        words = {line: row.view("<u8") for line, row in zip(lines, data, strict=True)}
        return [int(words[offset // 64][offset % 64 // 8]) for offset in offsets]

    def read(self, name: str) -> int:
        return self.read_many([name])[0]

    def fields(self, name: str) -> dict[str, int]:
        return unpack(self.register(name), self.read(name))

    def write_many(self, values: Iterable[tuple[str, int]]) -> None:
        """Write registers in order, each with its effect before the next."""
        values = list(values)
        offsets = [self.register(name).offset for name, _ in values]
        for name, value in values:
            register = self.by_name[name]
            integer(name, value, 0, (1 << max(f.low + f.bits for f in register.fields)) - 1)
        rows = np.zeros((len(values), 8), "<u8")
        for row, offset, (_, value) in zip(rows, offsets, values, strict=True):
            row[offset % 64 // 8] = value
        self._store(
            np.array([self._base + offset // 64 * 64 for offset in offsets], np.uint64),
            rows.view(np.uint8),
            np.array([0xFF << offset % 64 for offset in offsets], np.uint64),
        )

    def write(self, name: str, value: int | None = None, **fields: int) -> None:
        """Write a whole value, or fields over the register's reset value."""
        self.write_many([(name, pack(self.register(name), **fields) if value is None else value)])

    def pack(self, name: str, **fields: int) -> int:
        return pack(self.register(name), **fields)
