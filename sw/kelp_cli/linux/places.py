# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Where the second PCI segment lies in the machine's address space."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "BRIDGE_BYTES",
    "ECAM_BYTES",
    "MMIO_BYTES",
    "Places",
    "SEGMENT",
    "WINDOW_BYTES",
]

SEGMENT = 1
ECAM_BYTES = 2 << 20  #: configuration space of two buses
MMIO_BYTES = 8 << 20  #: the host bridge's registers, then what the root port forwards
WINDOW_BYTES = 256 << 20  #: host addresses that a decoder may be set to
BRIDGE_BYTES = 64 << 10


@dataclass(frozen=True)
class Places:
    """Bases of configuration space, registers and memory window: the three BARs of the stand-in
    behind which the emulator hands accesses out."""

    ecam: int
    mmio: int
    window: int
