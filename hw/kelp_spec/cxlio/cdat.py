# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The CDAT: what the device's memory is, how fast, how a host should use it (DSMAS, DSLBIS, DSEMTS;
layouts as in ACPICA's actbl1.h and QEMU's cxl_cdat.h)."""

from __future__ import annotations

from .config import CxlIoConfig

__all__ = ["cdat_entries"]

_READ_LATENCY, _WRITE_LATENCY, _READ_BANDWIDTH, _WRITE_BANDWIDTH = 1, 2, 4, 5
#: Units of an entry, in the table's own: picoseconds, MB/s.
_PS_A_NS, _MB = 1000, 1
_SPECIFIC_PURPOSE = 1  #: EFI memory type attribute


def _entry(kind: int, body: bytes) -> bytes:
    size = 4 + len(body)
    return bytes([kind, 0]) + size.to_bytes(2, "little") + body


def _performance(kind: int, unit: int, value: int) -> bytes:
    body = bytes([0, 0, kind, 0]) + unit.to_bytes(8, "little")
    return _entry(1, body + value.to_bytes(2, "little") + bytes(6))


def cdat_entries(c: CxlIoConfig) -> list[bytes]:
    """The header and the structures, one for each handle."""
    size = c.bytes.to_bytes(8, "little")
    structures = [
        _entry(0, bytes(4) + bytes(8) + size),
        _performance(_READ_LATENCY, _PS_A_NS, c.latency_ns),
        _performance(_WRITE_LATENCY, _PS_A_NS, c.latency_ns),
        _performance(_READ_BANDWIDTH, _MB, c.bandwidth_mb),
        _performance(_WRITE_BANDWIDTH, _MB, c.bandwidth_mb),
        _entry(4, bytes([0, _SPECIFIC_PURPOSE]) + bytes(2) + bytes(8) + size),
    ]
    length = 16 + sum(map(len, structures))
    header = length.to_bytes(4, "little") + bytes([1, 0]) + bytes(10)
    total = sum(header) + sum(map(sum, structures))
    header = header[:5] + bytes([-total & 0xFF]) + header[6:]
    return [header, *structures]
