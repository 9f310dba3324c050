# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The mailbox: opcodes, lengths, effects, return codes, and what a configuration's command effects
log says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "CEL_UUID",
    "COMMANDS",
    "Command",
    "Effect",
    "KNOB_BYTES",
    "Opcode",
    "ReturnCode",
    "cel",
    "knob_uuid",
]

#: In the order of its text, big-endian (as Linux compares it).
CEL_UUID = bytes.fromhex("0da9c0b5bf414b788f7996b1623b3f17")


class Opcode(IntEnum):
    GET_EVENTS = 0x0100
    CLEAR_EVENTS = 0x0101
    GET_INTERRUPT_POLICY = 0x0102
    SET_INTERRUPT_POLICY = 0x0103
    FIRMWARE_INFO = 0x0200
    GET_TIMESTAMP = 0x0300
    SET_TIMESTAMP = 0x0301
    SUPPORTED_LOGS = 0x0400
    GET_LOG = 0x0401
    SUPPORTED_FEATURES = 0x0500
    GET_FEATURE = 0x0501
    SET_FEATURE = 0x0502
    IDENTIFY = 0x4000
    PARTITION_INFO = 0x4100
    GET_LSA = 0x4102
    SET_LSA = 0x4103
    HEALTH = 0x4200
    GET_ALERTS = 0x4201
    SET_ALERTS = 0x4202
    GET_SHUTDOWN = 0x4203
    SET_SHUTDOWN = 0x4204
    POISON_LIST = 0x4300
    INJECT_POISON = 0x4301
    CLEAR_POISON = 0x4302
    SANITIZE = 0x4400


class ReturnCode(IntEnum):
    SUCCESS = 0
    BACKGROUND = 1
    INPUT = 2
    UNSUPPORTED = 3
    INTERNAL = 4
    RETRY = 5
    BUSY = 6
    MEDIA_DISABLED = 7
    HANDLE = 0xE
    ADDRESS = 0xF
    POISON_LIMIT = 0x10
    MEDIA_FAILURE = 0x11
    LENGTH = 0x16
    LOG = 0x17
    FEATURE_VERSION = 0x19
    FEATURE_SELECTOR = 0x1A
    TRANSFER_ORDER = 0x1C


class Effect(IntEnum):
    """Bits of an effects word of the command effects log."""

    CONFIGURATION = 2  #: immediate configuration change
    DATA = 4
    POLICY = 8
    LOG = 16
    SECURITY = 32
    BACKGROUND = 64


@dataclass(frozen=True)
class Command:
    """`least` … `most` bytes of input are legal; any other length answers LENGTH."""

    opcode: Opcode
    least: int
    most: int
    effects: int
    doc: str


KNOB_BYTES = 4  #: of a vendor feature
_ANY = 0xFFFF  #: no limit but the payload's size

COMMANDS: dict[Opcode, Command] = {
    c.opcode: c
    for c in (
        Command(Opcode.GET_EVENTS, 1, 1, 0, "records of one log, oldest first"),
        Command(Opcode.CLEAR_EVENTS, 6, _ANY, Effect.LOG, "handles, oldest first"),
        Command(Opcode.GET_INTERRUPT_POLICY, 0, 0, 0, "mode and message number of each log"),
        Command(Opcode.SET_INTERRUPT_POLICY, 4, 5, Effect.CONFIGURATION, "mode of each log"),
        Command(Opcode.FIRMWARE_INFO, 0, 0, 0, "one slot, active"),
        Command(Opcode.GET_TIMESTAMP, 0, 0, 0, "nanoseconds; 0 until it is set"),
        Command(Opcode.SET_TIMESTAMP, 8, 8, Effect.POLICY, "nanoseconds"),
        Command(Opcode.SUPPORTED_LOGS, 0, 0, 0, "the command effects log alone"),
        Command(Opcode.GET_LOG, 24, 24, 0, "a part of the command effects log"),
        Command(Opcode.SUPPORTED_FEATURES, 8, 8, 0, "the vendor feature of each policy knob"),
        Command(Opcode.GET_FEATURE, 21, 21, 0, "current or default value"),
        Command(Opcode.SET_FEATURE, 32, _ANY, Effect.CONFIGURATION, "a whole value"),
        Command(Opcode.IDENTIFY, 0, 0, 0, "capacity, sizes of the logs, limits"),
        Command(Opcode.PARTITION_INFO, 0, 0, 0, "all of it volatile"),
        Command(Opcode.GET_LSA, 8, 8, 0, "label storage"),
        Command(Opcode.SET_LSA, 8, _ANY, Effect.CONFIGURATION | Effect.DATA, "label storage"),
        Command(Opcode.HEALTH, 0, 0, 0, "status, life, temperature, corrected errors"),
        Command(Opcode.GET_ALERTS, 0, 0, 0, "thresholds"),
        Command(Opcode.SET_ALERTS, 12, 12, Effect.CONFIGURATION, "thresholds"),
        Command(Opcode.GET_SHUTDOWN, 0, 0, 0, "clean or dirty"),
        Command(Opcode.SET_SHUTDOWN, 1, 1, Effect.POLICY, "clean or dirty"),
        Command(Opcode.POISON_LIST, 16, 16, 0, "lines known to be poisoned in a range"),
        Command(Opcode.INJECT_POISON, 8, 8, Effect.DATA, "poison a line"),
        Command(Opcode.CLEAR_POISON, 72, 72, Effect.DATA, "write a line and clear its poison"),
        Command(
            Opcode.SANITIZE, 0, 0, Effect.DATA | Effect.SECURITY | Effect.BACKGROUND, "erase all"
        ),
    )
}


def cel(opcodes) -> bytes:
    """The command effects log of a device with these commands."""
    return b"".join(
        int(op).to_bytes(2, "little") + int(COMMANDS[op].effects).to_bytes(2, "little")
        for op in sorted(opcodes)
    )


def knob_uuid(index: int) -> bytes:
    """The UUID of vendor feature `index`, a policy knob."""
    return bytes.fromhex("4b454c50000240008000") + bytes(5) + bytes([index])
