# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""CRC-32 (IEEE 802.3, reflected), a byte a cycle: the register's next value."""

from __future__ import annotations

from amaranth.hdl import Cat, Value

__all__ = ["INITIAL", "crc32_step"]

INITIAL = 0xFFFFFFFF
_POLYNOMIAL = 0xEDB88320


def crc32_step(crc: Value, byte: Value) -> Value:
    """`crc` (32 bits, from INITIAL on) after `byte`. What is sent is its complement, least
    significant byte first."""
    bits = list(crc)
    for k in range(8):
        feedback = bits[0] ^ byte[k]
        bits = [*bits[1:], 0]
        bits = [bit ^ feedback if _POLYNOMIAL >> n & 1 else bit for n, bit in enumerate(bits)]
    return Cat(*bits)
