# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A caching host beside an LD-ID 0 that writes registers without pause: any register, any value
that docs/registers.md allows, in any part, also what is refused. Agents must not notice.
`python -m kelp_verif.coherence.meddling_driver --transactions 20000`."""

from __future__ import annotations

import functools
import random
import sys
from collections import Counter

import numpy as np

from kelp_rtl.program import PARTIAL, POISON, Program
from kelp_spec.config import Config
from kelp_spec.metadata import Event
from kelp_spec.registers import Access, Register, SessionCommand

from .endpoint_bench import CachingDriver, each_weather, weather

__all__ = ["MeddlingDriver", "main", "meddled_weather"]

#: Registers whose small values lose data by contract, and what is no such value: cycles in which
#: the tier answers, and in which a frame is found.
_LEAST = {"cold_timeout": 1 << 14, "starve_limit": 1 << 17}
_WRITES = 6  #: registers that are written one behind the other
#: Half of them can be carried out.
_COMMANDS = (
    *(n for n in range(16) if n != SessionCommand.CLOSE),
    *3 * (SessionCommand.ADVANCE, SessionCommand.APPLY_QUEUE, SessionCommand.APPLY_ALL),
    *3 * (SessionCommand.PEEK,),
)


class MeddlingDriver(CachingDriver):
    """:class:`CachingDriver` beside whose traffic LD-ID 0 writes registers. An AssertionError names
    a register that reads back as something else, or says how many refusals have no event.

    Parameters
    ----------
    counted : Counter
        Where `writes`, `refused` ones, `commands` and the cycles of the `longest` are counted.
    """

    def __init__(self, config: Config, *, counted: Counter, seed: int = 1, **options):
        self.rng, self.meddled = random.Random(seed), counted
        super().__init__(config, seed=seed, **options)
        by_line: dict[int, list[Register]] = {}
        for register in self.registers.values():
            by_line.setdefault(register.offset // 64, []).append(register)
        self._known = by_line
        #: Lines of which every register may be written with anything.
        self._harmless = [
            line
            for line in range(0x400)
            if all(register.access is Access.RO for register in by_line.get(line, ()))
        ]
        self._writable = [r for r in self.registers.values() if r.access is not Access.RO]

    def play(self, transactions: int) -> None:
        goal = self.figures().transactions + transactions
        kept = [r.name for r in self._writable if r.access is Access.RW]
        self._values = dict(zip(kept, self.read_registers(kept), strict=True))
        self.act(True)
        while self.figures().transactions < goal:
            self._meddle()
            self.until(lambda: True)
        self.act(False)
        found = dict(zip(kept, self.read_registers(kept), strict=True))
        wrong = {n: (hex(v), hex(found[n])) for n, v in self._values.items() if v != found[n]}
        assert not wrong, f"registers read back as other than was written: {wrong}"

    def finish(self) -> None:
        """Each refusal was told."""
        told = self.told()
        for code in (Event.REGISTER_REFUSED, Event.OPEN_REFUSED):
            events = ((told["code"] == code) & (told["ld_id"] == 0)).sum()
            assert events == self.meddled[code.name], (
                f"{events} events {code.name} of LD-ID 0, {self.meddled[code.name]} refusals"
            )

    def _meddle(self):
        """A few writes, each behind the one before."""
        rows = [self._write() for _ in range(self.rng.randrange(1, _WRITES))]
        offset, enable, data, poison = zip(*rows, strict=True)
        before = self.time
        self.run(
            Program(
                opcode=PARTIAL,
                address=np.array([self.addresses.register_base + at for at in offset], np.uint64),
                group=np.arange(len(rows)),
                data=np.frombuffer(b"".join(data), np.uint8).reshape(-1, 64),
                byte_enable=np.array(enable, np.uint64),
                flags=[POISON * bad for bad in poison],
            )
        )
        self.meddled["writes"] += len(rows)
        self.meddled["longest"] = max(self.meddled["longest"], (self.time - before) // len(rows))

    def _write(self):
        """(offset of the line, byte enable, the line, poison) of one."""
        rng, poison = self.rng, self.rng.random() < 0.1
        if rng.random() < 0.2:
            line, enable = rng.choice(self._harmless), rng.getrandbits(64)
            data = rng.randbytes(64)
            touched = sum(enable >> r.offset % 64 & 0xFF != 0 for r in self._known.get(line, ()))
            self.meddled["REGISTER_REFUSED"] += poison * touched
            return 64 * line, enable, data, poison
        register = rng.choice(self._writable)
        value, lanes = self._value(register), 0xFF if rng.random() < 0.8 else rng.getrandbits(8)
        if register.name in _LEAST or "command" in register.name:
            lanes = 0xFF  # a part of such a value is another
        if lanes and poison:
            self.meddled["REGISTER_REFUSED"] += 1
        elif lanes:
            self._written(register, value, sum(0xFF << 8 * b for b in range(8) if lanes >> b & 1))
        at = register.offset % 64
        data = bytes(at) + value.to_bytes(8, "little") + bytes(56 - at)
        return register.offset - at, lanes << at, data, poison

    def _value(self, register):
        name, value = register.name, self.rng.getrandbits(64)
        if self.rng.random() < 0.5:  # most of a register's values are large: small ones, too
            value &= 15
        if name.endswith("_policy") and self.rng.random() < 0.5:
            value = value & ~0x1FF | self.rng.randrange(1, 257)
        if name in _LEAST:
            value |= _LEAST[name]
        if name.endswith("_command"):
            value = value & ~15 | self.rng.choice(_COMMANDS)
        return value

    def _written(self, register, value, mask):
        """What the register holds from now on, and whether a command is refused."""
        name = register.name
        used = sum((1 << f.bits) - 1 << f.low for f in register.fields)
        if register.access is Access.RW:
            self._values[name] = ((self._values[name] & ~mask) | (value & mask)) & used
        if not name.endswith("_command"):
            return
        self.meddled["commands"] += 1
        prefix, command = name.removesuffix("command"), value & 15
        policy = self.unpack(prefix + "policy", self._values[prefix + "policy"])
        queue = self.unpack(prefix + "queue", self._values[prefix + "queue"])["queue"]
        one = command in (SessionCommand.APPLY_QUEUE, SessionCommand.PEEK)
        applies = command in (SessionCommand.APPLY_QUEUE, SessionCommand.APPLY_ALL)
        # Every session is open, with all queues.
        refused = (
            command not in (*SessionCommand,)
            or command == SessionCommand.OPEN
            or (one and queue >= self.config.queues)
            or (applies and not 1 <= policy["alpha"] <= 256)
        )
        self.meddled["OPEN_REFUSED"] += refused


def meddled_weather(name: str, *, driver=MeddlingDriver, **options) -> dict:
    """A `weather` beside an LD-ID 0 that writes registers; what was counted."""
    counted = Counter()
    figures = weather(name, driver=functools.partial(driver, counted=counted), **options)
    return figures | counted


def main(argv=None) -> int:
    return each_weather("meddling_driver", meddled_weather, argv)


if __name__ == "__main__":
    sys.exit(main())
