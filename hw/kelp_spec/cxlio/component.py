# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Component registers (register locator block 1, BAR0): HDM decoders and RAS."""

from __future__ import annotations

from enum import IntEnum

from .config import CxlIoConfig
from .fields import Access, Block, Field, Register, constant

__all__ = [
    "CM",
    "HDM",
    "HEADER_WORDS",
    "RAS",
    "Correctable",
    "Uncorrectable",
    "component_registers",
]

CM = 0x1000  #: where the CXL.cachemem registers begin
RAS, HDM, BI = CM + 0x80, CM + 0x110, CM + 0x1C0
HEADER_WORDS = 16  #: of 32 bits in the header log
RW, W1C, DEVICE = Access.RW, Access.W1C, Access.DEVICE


class Uncorrectable(IntEnum):
    """Bits of the uncorrectable error status."""

    CACHE_DATA_PARITY = 0
    CACHE_ADDRESS_PARITY = 1
    CACHE_BYTE_ENABLE_PARITY = 2
    CACHE_DATA_ECC = 3
    MEM_DATA_PARITY = 4
    MEM_ADDRESS_PARITY = 5
    MEM_BYTE_ENABLE_PARITY = 6
    MEM_DATA_ECC = 7
    REINIT_THRESHOLD = 8
    RESERVED_ENCODING = 9
    POISON_RECEIVED = 10
    RECEIVER_OVERFLOW = 11
    INTERNAL = 14
    IDE_TRANSMIT = 15
    IDE_RECEIVE = 16


class Correctable(IntEnum):
    CACHE_DATA_ECC = 0
    MEM_DATA_ECC = 1
    CRC_THRESHOLD = 2
    RETRY_THRESHOLD = 3
    CACHE_POISON = 4
    MEM_POISON = 5
    PHYSICAL = 6


_HOST_ONLY = ("must be 1: HDM-H", "1: HDM-H; 0: HDM-DB")
_BACK_INVALIDATE = ("must be 0", "must be 1 for HDM-DB, 0 for HDM-H")


def component_registers(c: CxlIoConfig) -> Block:
    registers = [
        constant("cm_header", CM, 4, 1 | 1 << 16 | 1 << 20 | (2 + c.coherent) << 24, "how many"),
        constant("cm_ras", CM + 4, 4, 2 | 2 << 16 | (RAS - CM) << 20, "RAS, version 2"),
        constant("cm_hdm", CM + 8, 4, 5 | 1 << 16 | (HDM - CM) << 20, "HDM decoders, version 1"),
        *_ras(),
        *_hdm(c),
        *(_back_invalidate() if c.coherent else ()),
    ]
    return Block("component", 1 << 16, registers)


def _bits(enum, access: Access, reset: int = 0) -> tuple[Field, ...]:
    return tuple(Field(e.name.lower(), e, 1, access, reset) for e in enum)


def _back_invalidate():
    """The BI decoder of an endpoint, version 1, as QEMU's: nothing to commit."""
    yield constant("cm_bi", CM + 0xC, 4, 12 | 1 << 16 | (BI - CM) << 20, "BI decoder, version 1")
    yield constant("bi_capability", BI, 4, 0, "no explicit commit")
    enable = (Field("enable", 1, 1, RW, doc="BISnp may leave; without it no line is granted"),)
    yield Register("bi_control", BI + 4, 4, enable, "control")
    yield constant("bi_status", BI + 8, 4, 0, "status of a commit: there is none")


def _ras():
    yield Register("uncorrectable", RAS, 4, _bits(Uncorrectable, W1C), "status")
    yield Register(
        "uncorrectable_mask", RAS + 4, 4, _bits(Uncorrectable, RW, 1), "1: not signalled"
    )
    yield Register("severity", RAS + 8, 4, _bits(Uncorrectable, RW, 1), "1: fatal")
    yield Register("correctable", RAS + 0xC, 4, _bits(Correctable, W1C), "status")
    yield Register("correctable_mask", RAS + 0x10, 4, _bits(Correctable, RW, 1), "1: not signalled")
    first = (Field("first", 0, 6, DEVICE, doc="the bit whose header is held"),)
    yield Register("error_control", RAS + 0x14, 4, first, "first error pointer")
    for i in range(HEADER_WORDS):
        word = (Field("value", 0, 32, DEVICE),)
        yield Register(f"header{i}", RAS + 0x18 + 4 * i, 4, word, "header log")


def _hdm(c: CxlIoConfig):
    models = 0b11 << 21 if c.coherent else 0  # device-coherent and host-only
    interleaves = 0 if c.coherent else 0b11 << 8  # by address bits 11:8 and 14:12
    capability = 0 if c.decoders == 1 else c.decoders // 2
    capability |= interleaves | c.nxm << 20 | models
    yield constant(
        "hdm_capability",
        HDM,
        4,
        capability,
        "decoders" + "; interleave at 256 B … 16 KiB" * (not c.coherent) + "; MemData-NXM outside",
    )
    enable = (
        Field("poison", 0, 1, RW, doc="no effect: capability bit 10 is 0"),
        Field("enable", 1, 1, RW, doc="decoders, not DVSEC ranges, decode"),
    )
    yield Register("hdm_control", HDM + 4, 4, enable, "global control")
    for i in range(c.decoders):
        yield from _decoder(i, HDM + 0x10 + 0x20 * i, c.coherent)


def _decoder(i: int, at: int, coherent: bool):
    p, locked, held = f"decoder{i}_", f"decoder{i}_locked", f"decoder{i}_held"
    low, high = (Field("value", 28, 4, RW),), (Field("value", 0, 32, RW),)
    yield Register(p + "base", at, 4, low, "multiple of 256 MiB", held)
    yield Register(p + "base_high", at + 4, 4, high, "", held)
    yield Register(p + "size", at + 8, 4, low, "multiple of 256 MiB", held)
    yield Register(p + "size_high", at + 0xC, 4, high, "", held)
    yield Register(
        p + "control",
        at + 0x10,
        4,
        (
            Field("granularity", 0, 4, RW, doc="256 B << n, n to 6"),
            Field("ways", 4, 4, RW, doc="2^n, n to 3; others are refused at commit"),
            Field("lock", 8, 1, RW, doc="once committed, all is frozen until reset"),
            Field("commit", 9, 1, RW, lock=locked),
            Field("committed", 10, 1, DEVICE),
            Field("error", 11, 1, DEVICE, doc="the last commit was refused"),
            Field("host_only", 12, 1, RW, doc=_HOST_ONLY[coherent]),
            Field("back_invalidate", 13, 1, RW, doc=_BACK_INVALIDATE[coherent]),
            Field("uio", 14, 1, RW, doc="must be 0"),
        ),
        "control",
        held,
        watch=True,
    )
    yield Register(p + "skip", at + 0x14, 4, low, "device memory passed over", held)
    yield Register(p + "skip_high", at + 0x18, 4, high, "", held)
