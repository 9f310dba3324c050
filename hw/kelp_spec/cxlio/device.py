# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Device registers (register locator block 3, BAR2): capability array, device status, mailbox,
memory device status. The payload, the MSI-X table and its pending bits lie beside them."""

from __future__ import annotations

from .config import CxlIoConfig
from .fields import Access, Block, Field, Register, constant

__all__ = ["MAILBOX", "PAYLOAD", "device_registers"]

_STATUS, _MEMORY, MAILBOX = 0x100, 0x200, 0x1000
PAYLOAD = MAILBOX + 0x20
RW, DEVICE = Access.RW, Access.DEVICE
BUSY = "busy"  #: the doorbell is on: the mailbox is the device's


def device_registers(c: CxlIoConfig) -> Block:
    return Block("device", 1 << 16, (*_array(c), *_status(), *_mailbox(c)))


def _array(c: CxlIoConfig):
    yield constant("array", 0x00, 8, 1 << 16 | 3 << 32, "three capabilities")
    for i, (number, offset, length, title) in enumerate(
        (
            (1, _STATUS, 8, "device status"),
            (2, MAILBOX, 0x20 + c.payload, "mailbox"),
            (0x4000, _MEMORY, 8, "memory device status"),
        ),
        1,
    ):
        yield constant(f"capability{i}", 16 * i, 4, number | 1 << 16, f"{title}: id, version")
        yield constant(f"capability{i}_offset", 16 * i + 4, 4, offset, "where it lies")
        yield constant(f"capability{i}_length", 16 * i + 8, 4, length, "its bytes")


def _status():
    logs = ("info", "warning", "failure", "fatal")
    flags = tuple(Field(name, i, 1, DEVICE) for i, name in enumerate(logs))
    yield Register("event_status", _STATUS, 4, flags, "logs that are not empty")
    yield Register(
        "memory_status",
        _MEMORY,
        8,
        (
            Field("fatal", 0, 1, DEVICE),
            Field("halt", 1, 1, reset=0, doc="firmware halt"),
            Field("media", 2, 2, DEVICE, doc="0 not ready, 1 ready, 2 error, 3 disabled"),
            Field("mailbox", 4, 1, DEVICE, doc="the mailbox answers"),
            Field("reset", 5, 3, reset=0, doc="no reset needed"),
        ),
        "state of the memory",
    )


def _mailbox(c: CxlIoConfig):
    capability = c.payload_bits | (0x60 if c.mailbox_irq else 0)
    yield constant("mailbox_capability", MAILBOX, 4, capability, "payload 2^n bytes")
    irq = (
        (
            Field("doorbell_irq", 1, 1, RW, doc="message 0 when the doorbell clears"),
            Field("background_irq", 2, 1, RW, doc="message 0 when a background command ends"),
        )
        if c.mailbox_irq
        else ()
    )
    doorbell = Field("doorbell", 0, 1, Access.PRESS, doc="begin")
    yield Register("mailbox_control", MAILBOX + 4, 4, (doorbell, *irq), "control", BUSY)
    command = (
        Field("opcode", 0, 16, RW),
        Field("length", 16, 21, Access.SHARED, doc="input bytes; then the answer's"),
    )
    yield Register("mailbox_command", MAILBOX + 8, 8, command, "command", BUSY)
    status = (
        Field("background", 0, 1, DEVICE, doc="a background command runs"),
        Field("code", 32, 16, DEVICE, doc="return code"),
    )
    yield Register("mailbox_status", MAILBOX + 0x10, 8, status, "return code")
    background = (
        Field("opcode", 0, 16, DEVICE),
        Field("percent", 16, 7, DEVICE),
        Field("code", 32, 16, DEVICE, doc="return code once it has ended"),
    )
    yield Register("background", MAILBOX + 0x18, 8, background, "background command")
