# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""What a CXL type 3 device says of itself where the standard leaves no choice: the same questions
to any device, answers by name. Sources: docs/cxl.md."""

from __future__ import annotations

from typing import Protocol

from kelp_spec.cxlio.commands import CEL_UUID

__all__ = ["Port", "probe"]

_DVSEC, _CXL_VENDOR = 0x23, 0x1E98
_MAILBOX, _STATUS, _MEMORY_STATUS = 2, 1, 0x4000
_CM = 0x1000  #: component registers that the cache and memory part has
_RAS, _HDM = 2, 5
_POLLS = 2000
_SIZE = 256 << 20


class Port(Protocol):
    """A device's registers. Spaces: "configuration", "component", "device"."""

    def read(self, space: str, offset: int, size: int) -> tuple[int, int]:
        """(value, answer code) of an access of 1, 2, 4 or 8 bytes."""

    def write(self, space: str, offset: int, size: int, value: int) -> int:
        """The answer's code."""

    def clock(self, cycles: int) -> None:
        """Let time pass."""


class _Device:
    def __init__(self, port: Port):
        self.port = port

    def get(self, space: str, offset: int, size: int = 4) -> int:
        return self.port.read(space, offset, size)[0]

    def dvsecs(self) -> dict[int, int]:
        """CXL's DVSECs: id → offset."""
        found, at = {}, 0x100
        while at:
            header = self.get("configuration", at)
            if header & 0xFFFF == _DVSEC and (
                self.get("configuration", at + 4) & 0xFFFF == _CXL_VENDOR
            ):
                found[self.get("configuration", at + 8, 2)] = at
            at = header >> 20
        return found

    def capabilities(self) -> dict[int, int]:
        """Of the device registers: id → offset."""
        count = self.get("device", 0, 8) >> 32 & 0xFFFF
        return {
            self.get("device", 0x10 * i, 2): self.get("device", 0x10 * i + 4)
            for i in range(1, count + 1)
        }

    def component(self) -> dict[int, int]:
        """Of the component registers: id → offset."""
        entries = [
            self.get("component", _CM + 4 * i)
            for i in range(1, (self.get("component", _CM) >> 24) + 1)
        ]
        return {entry & 0xFFFF: _CM + (entry >> 20) for entry in entries}

    def command(self, mailbox: int, opcode: int, payload: bytes = b"") -> tuple[int, bytes]:
        """(return code, answer) as a driver sends it."""
        for i in range(0, len(payload), 4):
            word = payload[i : i + 4].ljust(4, b"\0")
            self.port.write("device", mailbox + 0x20 + i, 4, int.from_bytes(word, "little"))
        self.port.write("device", mailbox + 8, 8, opcode | len(payload) << 16)
        self.port.write("device", mailbox + 4, 4, 1)
        for _ in range(_POLLS):
            if not self.get("device", mailbox + 4) & 1:
                break
            self.port.clock(16)
        else:
            return -1, b""
        code = self.get("device", mailbox + 0x10, 8) >> 32 & 0xFFFF
        length = self.get("device", mailbox + 8, 8) >> 16 & 0x1FFFFF
        out = b"".join(
            self.get("device", mailbox + 0x20 + i, 8).to_bytes(8, "little")
            for i in range(0, length, 8)
        )
        return code, out[:length]


def _configuration(device: _Device, dvsecs: dict[int, int]) -> dict:
    main = dvsecs[0]
    device.port.write("configuration", main + 0xC, 2, 4)
    control = device.get("configuration", main + 0xC, 2)
    capability = device.get("configuration", main + 0xA, 2)
    size = [device.get("configuration", main + 0x18 + 4 * i) for i in range(2)]
    locator = dvsecs[8]
    blocks = (device.get("configuration", locator + 4) >> 20) - 0xC >> 3
    ids = [device.get("configuration", locator + 0xD + 8 * i, 1) for i in range(blocks)]
    return {
        "class": device.get("configuration", 8) >> 8,
        "header type": device.get("configuration", 0xE, 1),
        "DVSECs of a device, of GPF, of the flex bus, of registers": [
            i in dvsecs for i in (0, 5, 7, 8)
        ],
        "DVSECs of a port": sorted({3, 4, 6} & set(dvsecs)),
        "cache, io, memory": [capability >> i & 1 for i in range(3)],
        "memory enable is taken": control >> 2 & 1,
        "range 1: valid, active": size[1] & 3,
        "range 1: bytes": size[0] << 32 | size[1] & 0xF0000000,
        "located: component, device": [i in ids for i in (1, 3)],
    }


def _component(device: _Device, found: dict[int, int]) -> dict:
    ras, hdm = found[_RAS], found[_HDM]
    write = device.port.write
    write("component", hdm + 4, 4, 2)
    before = device.get("component", hdm + 0x20)
    # committed as memory that the host alone caches, one way
    for offset, value in ((0x14, 0x4), (0x10, 0), (0x1C, 0), (0x18, _SIZE), (0x20, 0x1200)):
        write("component", hdm + offset, 4, value)
    for _ in range(_POLLS):
        control = device.get("component", hdm + 0x20)
        if control & 0xC00:
            break
        device.port.clock(16)
    return {
        "cache and memory registers": device.get("component", _CM) & 0xFFFFF,
        "RAS and decoders": [i in found for i in (_RAS, _HDM)],
        "nothing uncorrectable, nothing corrected": [
            device.get("component", ras + at) for at in (0, 0xC)
        ],
        "decoders on": device.get("component", hdm + 4) >> 1 & 1,
        "decoder 0 before: committed, error": before >> 10 & 3,
        "decoder 0: committed, error": control >> 10 & 3,
        "decoder 0: base": device.get("component", hdm + 0x14),
        "decoder 0: size": device.get("component", hdm + 0x18),
    }


def _u(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def _mailbox(device: _Device, found: dict[int, int]) -> dict:
    box = found[_MAILBOX]

    def ask(opcode, payload=b""):
        return device.command(box, opcode, payload)

    memory = device.get("device", found[_MEMORY_STATUS], 8)
    said = {
        "capability array": device.get("device", 0, 8) & 0xFFFFFF,
        "status, mailbox, memory status": [i in found for i in (_STATUS, _MAILBOX, _MEMORY_STATUS)],
        "no event waits": device.get("device", found[_STATUS]) & 0xF,
        "media ready, mailbox ready": [memory >> 2 & 3, memory >> 4 & 1],
        "a payload of 256 bytes at least": device.get("device", box) & 0x1F >= 8,
        "FFFF": ask(0xFFFF),
        "timestamp, with a byte": ask(0x0300, b"\0")[0],
        "set timestamp, of 4 bytes": ask(0x0301, bytes(4))[0],
        "set timestamp": ask(0x0301, _u(1 << 60, 8)),
    }
    code, answer = ask(0x0300)
    now = int.from_bytes(answer, "little")
    said["timestamp goes on from there"] = [code, len(answer), 0 <= now - (1 << 60) < 1 << 40]
    code, logs = ask(0x0400)
    entries = {
        logs[8 + 20 * i : 24 + 20 * i]: logs[24 + 20 * i : 28 + 20 * i] for i in range(logs[0])
    }
    said["logs"] = [code, len(logs) == 8 + 20 * logs[0], CEL_UUID in entries]
    size = int.from_bytes(entries.get(CEL_UUID, b""), "little")
    code, cel = ask(0x0401, CEL_UUID + _u(0, 4) + _u(size, 4))
    said["command effects log"] = [code, len(cel) == size, size % 4]
    for at in range(0, len(cel), 4):
        opcode, effects = (int.from_bytes(cel[at + n : at + n + 2], "little") for n in (0, 2))
        said[f"effects of {opcode:04x}"] = effects
    said["an unknown log"] = ask(0x0401, bytes(16) + _u(0, 4) + _u(4, 4))
    said["a log, of 8 bytes"] = ask(0x0401, bytes(8))[0]
    code, identity = ask(0x4000)
    parts = [int.from_bytes(identity[at : at + 8], "little") for at in (0x10, 0x18, 0x20)]
    said["identify"] = [code, len(identity), parts[0] * _SIZE, parts[1] + parts[2] == parts[0]]
    code, partition = ask(0x4100)
    active = [int.from_bytes(partition[at : at + 8], "little") for at in (0, 8)]
    said["partition"] = [code, len(partition), sum(active) == parts[0]]
    labels = int.from_bytes(identity[0x38:0x3C], "little")
    data = bytes(range(16))
    said["set labels"] = ask(0x4103, _u(64, 4) + bytes(4) + data)
    said["labels"] = ask(0x4102, _u(64, 4) + _u(16, 4)) == (0, data)
    said["labels beyond the end"] = ask(0x4102, _u(labels, 4) + _u(16, 4))
    said["events of an empty log"] = ask(0x0100, b"\0")
    said["interrupts of events: none"] = [
        (code, [mode & 3 for mode in answer[:4]]) for code, answer in [ask(0x0102)]
    ]
    said["background"] = device.get("device", box + 0x10, 8) & 1
    return said


def probe(port: Port) -> dict[str, object]:
    """Answers by name. The device is out of reset, its memory space enabled, no decoder committed;
    it has one afterwards, and labels. Effects are of the commands that it lists."""
    device = _Device(port)
    return (
        _configuration(device, device.dvsecs())
        | _mailbox(device, device.capabilities())
        | _component(device, device.component())
    )
