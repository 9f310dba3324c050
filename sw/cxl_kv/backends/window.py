# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""A register window in software: storage, access rights and session commands by the rules of
docs/registers.md, for cores that are not hardware.

The owner of a :class:`RegisterWindow` says what read-only registers hold and carries out the
commands; this class decides who may touch what, and what a descriptor must look like for OPEN.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kelp_spec.config import POOLS, Config
from kelp_spec.formats import Format
from kelp_spec.geometry import smallest_pool, stored_lines
from kelp_spec.metadata import LAYER_RANGES, Event
from kelp_spec.registers import (
    EVENT_ARGUMENT_BITS,
    EVENT_RECORDS,
    SESSION_BASE,
    SESSION_STRIDE,
    Access,
    RegisterMap,
    Scope,
    SessionCommand,
)

from ..registers import unpack

__all__ = ["EventLog", "QueueLayout", "RegisterWindow", "queue_layouts"]


class EventLog:
    """Sixteen records at most, until they are taken, and whether more were lost; `irq` is pending
    from a record that `irq_enable` names until the log is empty."""

    def __init__(self):
        self.records: deque[tuple[int, int]] = deque()  # (record, time)
        self.overflow = self.irq = False
        self.irq_enable = self.time = 0

    def log(
        self, code: Event, *, ld_id: int = 0, squeue: int = 0, page: int = 0, argument: int = 0
    ) -> None:
        if len(self.records) == EVENT_RECORDS:
            self.overflow = True
            return
        self.records.append(
            (
                int(code)
                | ld_id << 8
                | squeue << 12
                | page << 28
                | (argument & (1 << EVENT_ARGUMENT_BITS) - 1) << 44,
                self.time & 0xFFFFFFFF,
            )
        )
        self.irq |= bool(self.irq_enable >> code & 1)

    @property
    def status(self) -> int:
        """Its bits of the register `status`."""
        return self.irq << 2 | self.overflow << 3

    def clear(self) -> None:
        self.records.clear()
        self.overflow = self.irq = False

    def take(self, count: int, overflow: bool) -> None:
        """The `count` oldest records were read, all where there are fewer; with `overflow`, that
        some were lost, too."""
        for _ in range(min(count, len(self.records))):
            self.records.popleft()
        self.overflow &= not overflow
        self.irq &= bool(self.records)


class QueueLayout(tuple):
    """(format_k, format_v, pool) of one queue."""

    __slots__ = ()
    format_k = property(lambda self: self[0])
    format_v = property(lambda self: self[1])
    pool = property(lambda self: self[2])


def queue_layouts(
    config: Config, shape: dict[str, int], formats: dict[str, int]
) -> list[QueueLayout] | None:
    """Of each queue of a descriptor; None when the device refuses it."""
    queues = shape["layers"] * shape["kv_heads"]
    if not (
        0 < queues <= config.queues
        and 0 < shape["used_lines"] <= config.half_lines
        and 0 < shape["used_pages"] <= config.pages
    ):
        return None
    ranges = []
    for r in range(LAYER_RANGES):
        k, v = formats[f"format_k_{r}"], formats[f"format_v_{r}"]
        if not {k, v} <= set(config.formats):
            return None
        lines = stored_lines(Format(k), Format(v), shape["used_lines"], bool(shape["k_only"]))
        try:
            pool = smallest_pool(config.frame_lines, lines)
        except ValueError:
            pool = 0
        ranges.append((formats[f"last_layer_{r}"], QueueLayout((k, v, pool))))
    out = []
    for layer in range(shape["layers"]):
        out += [next((layout for last, layout in ranges if layer <= last), ranges[-1][1])] * shape[
            "kv_heads"
        ]
    return out


class RegisterWindow:
    """The 64 KiB window.

    Parameters
    ----------
    config : Config
    command : callable
        (session, SessionCommand or int, argument, ld_id) → whether it was carried out.
    read : callable
        (register name, its session or None) → value of a read-only register, or None to leave it
        zero.
    written : callable
        (register name, value) after a read/write register has changed.
    owner : callable
        session → LD-ID of its owner, 0 while it is not open.
    """

    def __init__(
        self,
        config: Config,
        *,
        command: Callable,
        read: Callable,
        written: Callable,
        owner: Callable,
    ):
        self.config, self.events = config, EventLog()
        self._command, self._read, self._written, self._owner = command, read, written, owner
        self.registers = RegisterMap(config)
        self._by_index = {r.offset // 8: r for r in self.registers.registers}
        self._masks = {
            r.name: sum((1 << f.bits) - 1 << f.low for f in r.fields)
            for r in self.registers.registers
        }
        self.values = {r.name: r.reset for r in self.registers.registers if r.access is Access.RW}
        self.refused = [0] * config.sessions
        self._constants = {
            name: self.registers.by_name[name].reset for name in ("identity", "digest", "geometry")
        }

    def fields(self, name: str) -> dict[str, int]:
        return unpack(self.registers.by_name[name], self.values[name])

    def _session(self, register) -> int | None:
        return (
            (register.offset - SESSION_BASE) // SESSION_STRIDE
            if register.offset >= SESSION_BASE
            else None
        )

    def _allowed(self, register, ld_id):
        if register.scope is Scope.ALL:
            return True
        return (
            ld_id == 0
            or register.scope is Scope.SESSION
            and self._owner(self._session(register)) == ld_id
        )

    def load(self, line: int, ld_id: int) -> bytes:
        """The 64 bytes of line `line` of the window."""
        out, refused, served = bytearray(64), False, False
        for word in range(8):
            register = self._by_index.get(8 * line + word)
            if register is None:
                continue
            if not self._allowed(register, ld_id):
                refused = True
                continue
            served = True
            out[8 * word : 8 * word + 8] = (
                self._value(register) & self._masks[register.name]
            ).to_bytes(8, "little")
        if refused and not served:
            self.events.log(Event.REGISTER_REFUSED, ld_id=ld_id, argument=8 * line)
        return bytes(out)

    def _value(self, register) -> int:
        name = register.name
        if register.access is Access.RW:
            return self.values[name]
        if register.access is Access.WO:
            return 0
        if name in self._constants:
            return self._constants[name]
        records = self.events.records
        if name == "event_count":
            return len(records)
        if name.startswith("event_"):
            i, which = int(name.rpartition("_")[2]), int(name.startswith("event_time_"))
            return records[i][which] if i < len(records) else 0
        return self._read(name, self._session(register)) or 0

    def store(self, line: int, data: bytes, byte_enable: int, ld_id: int) -> None:
        """Write the enabled bytes of a line, register after register."""
        for word in range(8):
            enable = byte_enable >> 8 * word & 0xFF
            register = self._by_index.get(8 * line + word)
            if not enable or register is None:
                continue
            if not self._allowed(register, ld_id):
                self.events.log(Event.REGISTER_REFUSED, ld_id=ld_id, argument=8 * line + word)
                continue
            mask = int.from_bytes(bytes(0xFF if enable >> b & 1 else 0 for b in range(8)), "little")
            value = int.from_bytes(data[8 * word : 8 * word + 8], "little") & mask
            name = register.name
            if register.access is Access.RW:
                self.values[name] = (self.values[name] & ~mask | value) & self._masks[name]
                self._written(name, self.values[name])
                if name == "irq_enable":
                    self.events.irq_enable = self.values[name]
            elif name == "event_clear":
                if value & 1:
                    self.events.clear()
            elif name == "event_taken":
                taken = unpack(register, value)
                self.events.take(taken["count"], bool(taken["overflow"]))
            elif register.access is Access.WO:
                session = self._session(register)
                fields = unpack(register, value)
                done = self._command(session, fields["command"], fields["argument"], ld_id)
                self.refused[session] = int(not done)
                if not done:
                    self.events.log(Event.OPEN_REFUSED, ld_id=ld_id, argument=session)

    def forget(self, session: int) -> None:
        """The session is closed: its registers are as after a reset, but for `shape`."""
        for register in self.registers.session(session):
            if register.forgotten:
                self.values[register.name] = register.reset
                self._written(register.name, register.reset)

    def descriptor(self, session: int) -> tuple[dict[str, int], list[QueueLayout] | None]:
        """What OPEN would take: the shape's fields, and each queue's layout or None when the device
        refuses it."""
        shape = self.fields(f"s{session}_shape")
        return shape, queue_layouts(self.config, shape, self.fields(f"s{session}_formats"))


def session_command(code: int) -> SessionCommand | None:
    """The command of a value, None when there is no such command."""
    try:
        return SessionCommand(code)
    except ValueError:
        return None


def pool_of(name: str) -> int | None:
    """The pool that a register named `pool_limit_…` or `pool_used_…` is about."""
    tail = name.rpartition("_")[2]
    return POOLS.index(tail) if tail in POOLS else None
