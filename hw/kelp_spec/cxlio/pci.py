# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Configuration space of the function: header, PCI Express and MSI-X capabilities, DVSECs, serial
number, DOE. What a PCIe core keeps to itself (link training, AER) is not here."""

from __future__ import annotations

from dataclasses import replace

from .config import CXL_VENDOR, CxlIoConfig
from .fields import Access, Block, Field, Register, constant

__all__ = ["DOE", "DVSEC_DEVICE", "MSIX_PENDING", "MSIX_TABLE", "configuration_space"]

_PCIE, _MSIX = 0x40, 0x7C
DVSEC_DEVICE, _LOCATOR, _SERIAL, _GPF, _FLEX_BUS, _FUNCTIONS, DOE = (
    0x100,
    0x140,
    0x170,
    0x180,
    0x190,
    0x1B0,
    0x1E0,
)
_BAR_BYTES = 1 << 16
MSIX_TABLE, MSIX_PENDING = 0x8000, 0x9000  #: in BAR2
RW, W1C = Access.RW, Access.W1C


def configuration_space(c: CxlIoConfig) -> Block:
    return Block(
        "configuration",
        4096,
        (
            *(replace(r, function=c.flr) for r in (*_header(c), *_pci_express(c), *_msix(c))),
            *_extended(c),
        ),
    )


def _header(c: CxlIoConfig):
    yield constant("vendor_id", 0x00, 2, c.vendor, "vendor")
    yield constant("device_id", 0x02, 2, c.device, "device")
    yield Register(
        "command",
        0x04,
        2,
        (
            Field("memory", 1, 1, RW, doc="BARs answer"),
            Field("bus_master", 2, 1, RW, doc="MSI-X leaves"),
            Field("parity", 6, 1, RW),
            Field("serr", 8, 1, RW),
            Field("intx_disable", 10, 1, RW, doc="there is no INTx"),
        ),
        "command",
    )
    yield constant("status", 0x06, 2, 0x10, "capability list")
    yield constant("class_revision", 0x08, 4, 0x0502_1000, "CXL memory device, revision 0")
    yield Register("cache_line", 0x0C, 1, (Field("value", 0, 8, RW),), "no effect")
    for index in range(3 if c.pmu else 2):
        bits = 17 if index == 2 and c.hot_entries else 16
        low = (
            Field("type", 0, 4, reset=4, doc="64 bits, not prefetchable"),
            Field("base", bits, 32 - bits, RW, doc=f"{1 << bits - 10} KiB"),
        )
        yield Register(f"bar{2 * index}", 0x10 + 8 * index, 4, low, "base address")
        high = (Field("value", 0, 32, RW),)
        yield Register(f"bar{2 * index}_high", 0x14 + 8 * index, 4, high, "base address, high")
    yield constant("subsystem_vendor", 0x2C, 2, c.vendor, "vendor of the board")
    yield constant("subsystem", 0x2E, 2, 1, "board")
    yield constant("capabilities", 0x34, 1, _PCIE, "first capability")
    yield Register("interrupt_line", 0x3C, 1, (Field("value", 0, 8, RW),), "no effect")


def _pci_express(c: CxlIoConfig):
    yield constant("pcie_header", _PCIE, 4, 0x0002_0010 | _MSIX << 8, "endpoint, version 2")
    able, what = 0x8000 | c.flr << 28, "role-based errors" + ", function-level reset" * c.flr
    yield constant("pcie_device_capabilities", _PCIE + 0x04, 4, able, what)
    flr = Field("flr", 15, 1, Access.STROBE, doc="resets what docs/cxl.md says of CXL.io")
    yield Register(
        "pcie_device_control",
        _PCIE + 0x08,
        2,
        (
            Field("correctable", 0, 1, RW, doc="ERR_COR leaves"),
            Field("non_fatal", 1, 1, RW, doc="ERR_NONFATAL leaves"),
            Field("fatal", 2, 1, RW, doc="ERR_FATAL leaves"),
            Field("unsupported", 3, 1, RW),
            Field("other", 4, 11, RW, doc="relaxed order, payload and read sizes: the core's"),
            *((flr,) if c.flr else ()),
        ),
        "reporting of errors",
    )
    yield Register(
        "pcie_device_status",
        _PCIE + 0x0A,
        2,
        (
            Field("correctable", 0, 1, W1C, doc="an error of RAS was signalled"),
            Field("non_fatal", 1, 1, W1C),
            Field("fatal", 2, 1, W1C),
        ),
        "errors signalled",
    )
    yield constant("pcie_link_capabilities", _PCIE + 0x0C, 4, 0x15, "32 GT/s, one lane")
    link = (Field("value", 0, 12, RW),)
    yield Register("pcie_link_control", _PCIE + 0x10, 2, link, "held, no effect")
    yield constant("pcie_link_status", _PCIE + 0x12, 2, 0x15, "32 GT/s, one lane")
    control = (Field("value", 0, 16, RW),)
    yield Register("pcie_device_control2", _PCIE + 0x28, 2, control, "held, no effect")
    yield Register("pcie_link_control2", _PCIE + 0x30, 2, control, "held, no effect")


def _msix(c: CxlIoConfig):
    yield constant("msix_header", _MSIX, 2, 0x0011, "last capability")
    yield Register(
        "msix_control",
        _MSIX + 2,
        2,
        (
            Field("vectors", 0, 11, reset=c.vectors - 1, doc="vectors - 1"),
            Field("mask", 14, 1, RW, doc="masks every vector"),
            Field("enable", 15, 1, RW),
        ),
        "message control",
    )
    yield constant("msix_table", _MSIX + 4, 4, MSIX_TABLE | 2, "table: BAR2")
    yield constant("msix_pending", _MSIX + 8, 4, MSIX_PENDING | 2, "pending bits: BAR2")


def _extended(c: CxlIoConfig):
    at = [DVSEC_DEVICE, _LOCATOR, _SERIAL, _GPF, _FLEX_BUS]
    at += [_FUNCTIONS] * c.function_map + [DOE] * c.doe
    following = dict(zip(at, [*at[1:], 0], strict=True))
    yield from _dvsec(DVSEC_DEVICE, following, number=0, revision=1, length=0x38)
    yield from _device(c)
    # BAR, block id, 64 KiB units into the BAR.
    blocks = [(0, 1, 0), (2, 3, 0), (4, 4, 0) if c.pmu else (0, 0, 0)]
    blocks += [(4, 5, 1)] if c.hot_entries else []
    length = 0x0C + 8 * len(blocks)
    yield from _dvsec(_LOCATOR, following, number=8, revision=0, length=length)
    for i, (bar, block, offset) in enumerate(blocks):
        where = _LOCATOR + 0x0C + 8 * i
        value = bar | block << 8 | offset << 16
        yield constant(f"locator{i}", where, 4, value, "BAR, block id, offset in the BAR")
        yield constant(f"locator{i}_high", where + 4, 4, 0, "offset in the BAR, high")
    header = 3 | 1 << 16 | following[_SERIAL] << 20
    yield constant("serial_header", _SERIAL, 4, header, "capability of the serial number")
    yield constant("serial_low", _SERIAL + 4, 4, c.serial & 0xFFFF_FFFF, "serial number")
    yield constant("serial_high", _SERIAL + 8, 4, c.serial >> 32, "serial number, high")
    yield from _dvsec(_GPF, following, number=5, revision=0, length=0x10)
    yield from _dvsec(_FLEX_BUS, following, number=7, revision=2, length=0x20)
    yield constant("flex_bus_capability", _FLEX_BUS + 0x0A, 2, 0x26, "CXL.io, CXL.mem, 68 B")
    yield constant("flex_bus_control", _FLEX_BUS + 0x0C, 2, 0x02, "the link is the core's")
    yield constant("flex_bus_status", _FLEX_BUS + 0x0E, 2, 0x26, "as capable")
    if c.function_map:
        yield from _dvsec(_FUNCTIONS, following, number=2, revision=0, length=0x2C)
    if c.doe:
        yield from _doe(following)


#: What the DVSECs of CXL are about, by number.
_DVSECS = {
    0: "a CXL device",
    2: "functions that are not CXL's",
    5: "global persistent flush",
    7: "flex bus",
    8: "where blocks of registers lie",
}


def _dvsec(at: int, following: dict, *, number: int, revision: int, length: int):
    title, header = _DVSECS[number], CXL_VENDOR | revision << 16 | length << 20
    here = 0x23 | 1 << 16 | following[at] << 20
    yield constant(f"dvsec{number}", at, 4, here, f"DVSEC: {title}; where the next capability is")
    yield constant(f"dvsec{number}_header", at + 4, 4, header, "its vendor, revision and length")
    yield constant(f"dvsec{number}_id", at + 8, 2, number, "its number")


def _device(c: CxlIoConfig):
    """DVSEC 0: what the device is, and the ranges that a host without decoders uses."""
    at, lock = DVSEC_DEVICE, "config_lock"
    capability = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4
    yield constant("cxl_capability", at + 0x0A, 2, capability, "io, mem, hardware init, 1 range")
    control = (
        Field("io", 1, 1, reset=1),
        Field("mem", 2, 1, RW, doc="CXL.mem answers"),
        Field("viral", 14, 1, RW),
    )
    yield Register("cxl_control", at + 0x0C, 2, control, "enable", lock)
    status = (Field("viral", 14, 1, W1C),)
    yield Register("cxl_status", at + 0x0E, 2, status, "viral")
    yield constant("cxl_control2", at + 0x10, 2, 0, "no cache, no initiated reset")
    yield constant("cxl_status2", at + 0x12, 2, 0, "of what `cxl_control2` begins: nothing")
    bit = (Field("lock", 0, 1, Access.W1S, doc="until reset"),)
    yield Register("cxl_lock", at + 0x14, 2, bit, "locks control and range bases")
    ready = (
        Field("valid", 0, 1, Access.DEVICE, doc="the sizes can be read"),
        Field("active", 1, 1, Access.DEVICE, doc="the memory can be used"),
        Field("size", 28, 4, reset=c.bytes >> 28 & 0xF),
    )
    yield constant("range0_size_high", at + 0x18, 4, c.bytes >> 32, "size, high")
    yield Register("range0_size", at + 0x1C, 4, ready, "size and state")
    base = (Field("value", 0, 32, RW),)
    low = (Field("value", 28, 4, RW),)
    yield Register("range0_base_high", at + 0x20, 4, base, "decoded while no decoder is", lock)
    yield Register("range0_base", at + 0x24, 4, low, "multiple of 256 MiB", lock)


def _doe(following: dict):
    """A data object exchange for discovery and the CDAT."""
    header = 0x2E | 1 << 16 | following[DOE] << 20
    yield constant("doe_header", DOE, 4, header, "capability of the data object exchange")
    yield constant("doe_capability", DOE + 4, 4, 0, "no interrupt")
    control = (
        Field("abort", 0, 1, Access.STROBE),
        Field("go", 31, 1, Access.STROBE),
    )
    yield Register("doe_control", DOE + 8, 4, control, "request")
    status = (
        Field("busy", 0, 1, Access.DEVICE),
        Field("error", 2, 1, Access.DEVICE),
        Field("ready", 31, 1, Access.DEVICE, doc="an answer waits"),
    )
    yield Register("doe_status", DOE + 0xC, 4, status, "state")
    word = (Field("value", 0, 32, Access.STROBE),)
    yield Register("doe_write", DOE + 0x10, 4, word, "a word of the request", watch=True)
    answer = (Field("value", 0, 32, Access.DEVICE),)
    what = "a word of the answer; a write takes it"
    yield Register("doe_read", DOE + 0x14, 4, answer, what, watch=True)
