# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The mailbox's commands, each a function of its input: from docs/cxl.md, "The mailbox"."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from kelp_spec.cxlio.commands import (
    CEL_UUID,
    COMMANDS,
    KNOB_BYTES,
    Opcode,
    ReturnCode,
    cel,
    knob_uuid,
)
from kelp_spec.cxlio.config import CxlIoConfig
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.cxlio.knobs import KNOBS

__all__ = ["Event", "Mailbox"]

LOGS = 4
_UUIDS = (
    "fbcd0a77c260417f85a9088b1621eba6",
    "601dcbb39c064eabb8af4e9bfb5c9624",
    "fe927475dd594339a58679bab113b774",
    "4b454c50000140008000000000000001",
)
_PROGRAMMABLE = 0x0F


class Refused(Exception):
    """A command that ends with a return code other than success."""

    def __init__(self, code: ReturnCode):
        self.code = code


@dataclass
class Event:
    log: int
    kind: int = 0
    flags: int = 0
    poison: int = 0  #: the line of `dpa` is, or with `lost` there was no room for one
    quiet: int = 0  #: no record
    source: int = 0
    lost: int = 0
    healed: int = 0  #: it is no more
    dpa: int = 0
    word: int = 0
    more: int = 0


@dataclass
class Log:
    records: list[tuple[int, int, Event]] = field(default_factory=list)
    handle: int = 0
    lost: int = 0
    lost_first: int = 0
    lost_last: int = 0


class Mailbox:
    """`ask(kind, line, data)` is the data path: 0 done, 1 no such line, 2 try again, 3 failed, None
    lost. `interrupt(vector)` is MSI-X. `now()` is the time, `set_now` sets it."""

    def __init__(self, config: CxlIoConfig):
        self.config = config
        self.ask: Callable = lambda kind, line, data: 0
        self.interrupt: Callable = lambda vector: None
        self.now: Callable = lambda: 0
        self.set_now: Callable = lambda value: None
        #: status, media, additional, life, temperature, corrected errors
        self.condition = (0, 0, 0, 0, 0, 0)
        self.policy = [0] * LOGS
        self.logs = [Log() for _ in range(LOGS)]
        self.poisons: list[tuple[int, int]] = []
        self.poison_lost: int | None = None
        self.poison_more: tuple[int, int, int] | None = None
        self.enabled, self.alerts = 0, [0, 0, 0, 0]
        self.shutdown = 0
        self.labels = bytearray(config.lsa)
        self.defaults = [k.default if config.wired else 0 for k in KNOBS[: config.knobs]]
        self.defaults += [0] * (config.knobs - len(self.defaults))
        self.knobs = list(self.defaults)
        self.sanitizing = False
        #: The data path has not taken a request that is too late already.
        self.offered = False

    @property
    def event_status(self) -> int:
        return sum(bool(log.records) << i for i, log in enumerate(self.logs))

    def run(self, opcode: int, given: bytes | int) -> tuple[int, bytes]:
        """Return code and answer; a `given` that is a number is a length beyond the payload."""
        if opcode not in self.config.commands:
            return ReturnCode.UNSUPPORTED, b""
        command = COMMANDS[Opcode(opcode)]
        length = given if isinstance(given, int) else len(given)
        if not command.least <= length <= min(command.most, self.config.payload):
            return ReturnCode.LENGTH, b""
        try:
            return ReturnCode.SUCCESS, getattr(self, Opcode(opcode).name.lower())(given)
        except Refused as refused:
            return refused.code, b""

    def event(self, event: Event) -> None:
        if not event.quiet:
            self._record(event)
        if event.poison and event.lost:
            self._overflow()
        elif event.poison and event.healed:
            self._unlist(event.dpa & ~63)
        elif event.poison:
            self._list(event.dpa & ~63, event.source)

    def _record(self, event: Event) -> None:
        log, now = self.logs[event.log], self.now()
        if len(log.records) == self.config.events:
            if not log.lost:
                log.lost_first = now
            log.lost, log.lost_last = min(log.lost + 1, 0xFFFF), now
        else:
            log.handle = log.handle % 0xFFFF + 1
            log.records.append((log.handle, now, event))
            if len(log.records) == 1 and self.policy[event.log]:
                self.interrupt(self.config.event_vector)

    def _list(self, address: int, source: int) -> None:
        if address in (a for a, _ in self.poisons):
            return
        if len(self.poisons) < self.config.poisons:
            self.poisons.append((address, source))
            self.poison_more = None
        else:
            self._overflow()

    def _overflow(self) -> None:
        if self.poison_lost is None:
            self.poison_lost = self.now()

    def get_events(self, given: bytes) -> bytes:
        if given[0] >= LOGS:
            raise Refused(ReturnCode.INPUT)
        log = self.logs[given[0]]
        shown = log.records[: (self.config.payload - 32) // 128]
        flags = bool(log.lost) | (len(shown) < len(log.records)) << 1
        times = (log.lost_first, log.lost_last) if log.lost else (0, 0)
        header = struct.pack("<BxHQQH10x", flags, log.lost, *times, len(shown))
        return header + b"".join(
            bytes.fromhex(_UUIDS[e.kind])
            + struct.pack("<IHHQ16x", 0x80 | e.flags << 8, handle, 0, time)
            + struct.pack("<QII64x", e.dpa, e.word, e.more)
            for handle, time, e in shown
        )

    def clear_events(self, given: bytes) -> bytes:
        number, flags, count = given[:3]
        if number >= LOGS or flags > 1 or bool(flags) == bool(count):
            raise Refused(ReturnCode.INPUT)
        log = self.logs[number]
        if flags:
            count = len(log.records)
        else:
            if len(given) != 6 + 2 * count:
                raise Refused(ReturnCode.LENGTH)
            handles = struct.unpack(f"<{count}H", given[6:])
            if handles != tuple(h for h, _, _ in log.records[:count]):
                raise Refused(ReturnCode.HANDLE)
        del log.records[:count]
        log.lost = 0
        return b""

    def get_interrupt_policy(self, given: bytes) -> bytes:
        return bytes(mode | self.config.event_vector << 4 if mode else 0 for mode in self.policy)

    def set_interrupt_policy(self, given: bytes) -> bytes:
        modes = [byte & 3 for byte in given[:LOGS]]
        if max(modes) > 1:
            raise Refused(ReturnCode.INPUT)
        self.policy = modes
        return b""

    def firmware_info(self, given: bytes) -> bytes:
        name = self.config.firmware.encode().ljust(16, b"\0")
        return bytes([1, 1]) + bytes(14) + name + bytes(48)

    def get_timestamp(self, given: bytes) -> bytes:
        return self.now().to_bytes(8, "little")

    def set_timestamp(self, given: bytes) -> bytes:
        self.set_now(int.from_bytes(given, "little"))
        return b""

    def supported_logs(self, given: bytes) -> bytes:
        return struct.pack("<H6x16sI", 1, CEL_UUID, len(cel(self.config.commands)))

    def get_log(self, given: bytes) -> bytes:
        uuid, offset, length = struct.unpack("<16sII", given)
        log = cel(self.config.commands)
        if uuid != CEL_UUID:
            raise Refused(ReturnCode.LOG)
        if offset + length > len(log) or length > self.config.payload:
            raise Refused(ReturnCode.INPUT)
        return log[offset : offset + length]

    def identify(self, given: bytes) -> bytes:
        c = self.config
        poisons = c.poisons if Opcode.POISON_LIST in c.commands else 0
        return (
            c.firmware.encode().ljust(16, b"\0")
            + struct.pack("<4Q", c.capacity, c.capacity, 0, 0)
            + struct.pack("<4HI", *[c.events] * 4, c.lsa)
            + poisons.to_bytes(3, "little")
            + struct.pack("<HBB", poisons, bool(poisons), 0)
        )

    def partition_info(self, given: bytes) -> bytes:
        return struct.pack("<4Q", self.config.capacity, 0, 0, 0)

    def get_lsa(self, given: bytes) -> bytes:
        offset, length = struct.unpack("<II", given)
        if offset + length > self.config.lsa or length > self.config.payload:
            raise Refused(ReturnCode.INPUT)
        return bytes(self.labels[offset : offset + length])

    def set_lsa(self, given: bytes) -> bytes:
        offset, data = int.from_bytes(given[:4], "little"), given[8:]
        if offset + len(data) > self.config.lsa:
            raise Refused(ReturnCode.INPUT)
        self.labels[offset : offset + len(data)] = data
        return b""

    def health(self, given: bytes) -> bytes:
        *bytes_, temperature, corrected = self.condition
        if Opcode.SET_ALERTS in self.config.commands:
            bytes_[2] += self._beyond()
        return struct.pack("<4BHIII", *bytes_, temperature, 0, corrected, 0)

    def _beyond(self) -> int:
        """Bits of the additional status: a warning or a critical threshold is reached."""

        def signed(half):
            return half - 0x10000 if half > 0x7FFF else half

        life, temperature, corrected = (self.condition[i] for i in (3, 4, 5))
        temperature = signed(temperature)
        worn, over, under, errors = self.alerts
        warned = [self.enabled >> i & 1 for i in range(4)]
        lives = 2 if life >= 100 else 1 if warned[0] and life >= worn else 0
        hot = warned[1] and temperature >= signed(over)
        cold = warned[2] and temperature <= signed(under)
        degrees = 2 if not 0 <= temperature < 85 else 1 if hot or cold else 0
        return lives | degrees << 2 | bool(warned[3] and corrected >= errors) << 4

    def get_alerts(self, given: bytes) -> bytes:
        life, over, under, corrected = self.alerts
        return struct.pack(
            "<4B6H", self.enabled, _PROGRAMMABLE, 100, life, 85, 0, over, under, corrected, 0
        )

    def set_alerts(self, given: bytes) -> bytes:
        valid, enable, life, over, under, corrected = struct.unpack("<3Bx3H2x", given)
        if valid & ~_PROGRAMMABLE:
            raise Refused(ReturnCode.INPUT)
        self.enabled = self.enabled & ~valid | enable & valid
        for i, value in enumerate((life, over, under, corrected)):
            if valid >> i & 1:
                self.alerts[i] = value
        return b""

    def get_shutdown(self, given: bytes) -> bytes:
        return bytes([self.shutdown])

    def set_shutdown(self, given: bytes) -> bytes:
        if given[0] > 1:
            raise Refused(ReturnCode.INPUT)
        self.shutdown = given[0]
        return b""

    def poison_list(self, given: bytes) -> bytes:
        offset, length = struct.unpack("<QQ", given)
        if offset % 64:
            raise Refused(ReturnCode.INPUT)
        start = 0
        if self.poison_more and self.poison_more[:2] == (offset, length):
            start = self.poison_more[2]
        self.poison_more = None
        most = (self.config.payload - 32) // 16
        found = []
        for i, (address, source) in enumerate(self.poisons[start:], start):
            if address < offset or (address - offset) // 64 >= length:
                continue
            if len(found) == most:
                self.poison_more = (offset, length, i)
                break
            found.append((address, source))
        lost = self.poison_lost
        flags = bool(self.poison_more) | (lost is not None) << 1
        header = struct.pack("<BxQH20x", flags, lost or 0, len(found))
        return header + b"".join(struct.pack("<QI4x", a | s, 1) for a, s in found)

    def _line(self, given: bytes) -> int:
        if self.sanitizing:
            raise Refused(ReturnCode.MEDIA_DISABLED)
        address = int.from_bytes(given[:8], "little")
        if address % 64:
            raise Refused(ReturnCode.INPUT)
        if address >= self.config.bytes:
            raise Refused(ReturnCode.ADDRESS)
        return address

    def _unlist(self, address: int) -> None:
        left = [each for each in self.poisons if each[0] != address]
        if len(left) < len(self.poisons):
            self.poisons, self.poison_more = left, None

    @staticmethod
    def _answer(code: int | None) -> bytes:
        if code == 0:
            return b""
        raise Refused({1: ReturnCode.ADDRESS, 2: ReturnCode.RETRY}.get(code, ReturnCode.INTERNAL))

    def inject_poison(self, given: bytes) -> bytes:
        address = self._line(given)
        listed = address in (a for a, _ in self.poisons)
        if not listed and len(self.poisons) == self.config.poisons:
            raise Refused(ReturnCode.POISON_LIMIT)
        if self.offered:
            raise Refused(ReturnCode.RETRY)
        code = self.ask(1, address // 64, b"")
        if code == 1:
            self._unlist(address)
        if code in (0, None):
            self._list(address, PoisonSource.INJECTED)
        return self._answer(code)

    def clear_poison(self, given: bytes) -> bytes:
        address = self._line(given)
        if self.offered:
            raise Refused(ReturnCode.RETRY)
        code = self.ask(2, address // 64, given[8:])
        if code in (0, 1):
            self._unlist(address)
        return self._answer(code)

    def sanitize(self, given: bytes) -> bytes:
        if self.sanitizing:
            raise Refused(ReturnCode.BUSY)
        if self.offered:
            raise Refused(ReturnCode.RETRY)
        self.sanitizing = True
        raise Refused(ReturnCode.BACKGROUND)

    def sanitized(self, code: int) -> int:
        """The data path has answered: the background command's return code."""
        self.sanitizing = False
        if code:
            return ReturnCode.INTERNAL
        self.poisons, self.poison_more, self.poison_lost = [], None, None
        return ReturnCode.SUCCESS

    def supported_features(self, given: bytes) -> bytes:
        count, start = struct.unpack("<IH2x", given)
        if count < 8 or start >= len(self.knobs):
            raise Refused(ReturnCode.INPUT)
        room = (min(count, self.config.payload) - 8) // 48
        shown = range(start, min(len(self.knobs), start + room))
        return struct.pack("<HH4x", len(shown), len(self.knobs)) + b"".join(
            knob_uuid(i) + struct.pack("<HHHIBBH18x", i, KNOB_BYTES, KNOB_BYTES, 1, 1, 1, 4)
            for i in shown
        )

    def _knob(self, uuid: bytes) -> int:
        uuids = [knob_uuid(i) for i in range(len(self.knobs))]
        if uuid not in uuids:
            raise Refused(ReturnCode.UNSUPPORTED)
        return uuids.index(uuid)

    def get_feature(self, given: bytes) -> bytes:
        uuid, offset, count, selector = struct.unpack("<16sHHB", given)
        knob = self._knob(uuid)
        if selector > 1:
            raise Refused(ReturnCode.FEATURE_SELECTOR)
        if not count or offset + count > KNOB_BYTES:
            raise Refused(ReturnCode.INPUT)
        if self.config.wired and not selector:
            self._answer(self._asked_knob(4, knob, b""))
        value = self.defaults[knob] if selector else self.knobs[knob]
        return value.to_bytes(KNOB_BYTES, "little")[offset : offset + count]

    def set_feature(self, given: bytes) -> bytes:
        uuid, flags, offset, version = struct.unpack("<16sIHB", given[:23])
        knob = self._knob(uuid)
        if flags & 7 in (2, 3, 4):
            raise Refused(ReturnCode.TRANSFER_ORDER)
        if flags:
            raise Refused(ReturnCode.INPUT)
        if version != 1:
            raise Refused(ReturnCode.FEATURE_VERSION)
        if offset:
            raise Refused(ReturnCode.INPUT)
        if len(given) != 32 + KNOB_BYTES:
            raise Refused(ReturnCode.LENGTH)
        value = int.from_bytes(given[32:], "little")
        if self.config.wired:
            if value >> KNOBS[knob].bits:
                raise Refused(ReturnCode.INPUT)
            self._answer(self._asked_knob(5, knob, given[32:]))
        self.knobs[knob] = value
        return b""

    def _asked_knob(self, kind: int, knob: int, data: bytes) -> int | None:
        if self.sanitizing:
            raise Refused(ReturnCode.BUSY)
        if self.offered:
            raise Refused(ReturnCode.RETRY)
        return self.ask(kind, knob, data)
