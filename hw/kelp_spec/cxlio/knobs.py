# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The vendor features of a device whose mailbox is joined to the endpoint: which register of the
endpoint's each one is. All of them have one field, from bit 0 on."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KNOBS", "Knob"]


@dataclass(frozen=True)
class Knob:
    """`register` of docs/registers.md, bits of it that may be set, its value after reset."""

    register: str
    bits: int
    default: int


#: In the order of their features' UUIDs. tests/hw/media/test_media_port.py compares them with the
#: register map.
KNOBS = (
    Knob("high_water", 16, 4),
    Knob("low_water", 16, 2),
    Knob("prefetch_enable", 5, 0),
    Knob("cold_retries", 4, 2),
    Knob("cold_timeout", 32, 0x100000),
    Knob("starve_limit", 32, 0x1000000),
)
