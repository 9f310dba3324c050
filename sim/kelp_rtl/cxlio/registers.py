# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Register accesses of 1 to 8 bytes and mailbox commands, by a model's transfers of the port."""

from __future__ import annotations

from kelp_spec.cxlio.config import Space

from ..timing import DriverError

__all__ = ["RegisterAccess"]

_BASES = {
    "component": Space.COMPONENT,
    "device": Space.DEVICE,
    "pmu": Space.PMU,
    "configuration": Space.CONFIGURATION,
    "chmu": Space.CHMU,
}
_READY = (0x200, 0x10)  #: register and bit of the mailbox' readiness
_BOOT_CYCLES = 30_000
_COMMAND, _STATUS, _CONTROL, _PAYLOAD = 0x1008, 0x1010, 0x1004, 0x1020
_DOORBELL_CYCLES = 200_000


class RegisterAccess:
    """For a model with `access(address, write, data, strobe)`, `clock(cycles)` and `cycles`."""

    def wait_for_mailbox(self) -> None:
        """After a reset; memory enable is off again afterwards."""
        self.write("configuration", 4, 2, 2)
        for _ in range(_BOOT_CYCLES // 50):
            if self.read("device", _READY[0], 8)[0] & _READY[1]:
                break
            self.clock(50)
        else:
            raise DriverError("the mailbox is never ready", self.cycles)
        self.write("configuration", 4, 2, 0)

    def read(self, space: str, offset: int, size: int) -> tuple[int, int]:
        """(value, answer code) of an access that lies in 8 aligned bytes."""
        value, code = self.access(_BASES[space] + offset, False, 0, 0)
        return value >> 8 * (offset % 8) & (1 << 8 * size) - 1, code

    def write(self, space: str, offset: int, size: int, value: int) -> int:
        """The answer's code of an access that lies in 8 aligned bytes."""
        data = value << 8 * (offset % 8) & (1 << 64) - 1
        strobe = ((1 << size) - 1) << offset % 8
        return self.access(_BASES[space] + offset, True, data, strobe)[1]

    def command(self, opcode: int, payload: bytes = b"", poll: int = 16) -> tuple[int, bytes]:
        """(return code, answer) of a mailbox command as a driver sends it."""
        for i in range(0, len(payload), 4):
            word = payload[i : i + 4]
            self.write("device", _PAYLOAD + i, len(word), int.from_bytes(word, "little"))
        self.write("device", _COMMAND, 8, opcode | len(payload) << 16)
        self.write("device", _CONTROL, 4, 1)
        started = self.cycles
        while self.read("device", _CONTROL, 4)[0] & 1:
            self.clock(poll)
            if self.cycles - started > _DOORBELL_CYCLES:
                raise DriverError(f"command {opcode:04x} hangs", self.cycles)
        code = self.read("device", _STATUS, 8)[0] >> 32 & 0xFFFF
        length = self.read("device", _COMMAND, 8)[0] >> 16
        answer = b""
        for i in range(0, length, 8):
            answer += self.read("device", _PAYLOAD + i, 8)[0].to_bytes(8, "little")
        return code, answer[:length]
