# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The hotness monitoring unit (register locator block 5, BAR4 + 64 KiB): CXL 3.2's registers as the
proposals for QEMU and Linux read and write them (hw/cxl/cxl-chmu.c, drivers/cxl/hmu.c, both by J.
Cameron): one instance, 16 bytes behind the common capability."""

from __future__ import annotations

from .config import CxlIoConfig
from .fields import Access, Block, Field, Register, constant

__all__ = [
    "CHMU_LIST",
    "CHMU_SCORE_BITS",
    "Mode",
    "TICK_NS",
    "TRACK_ALL",
    "chmu_registers",
    "unit_bits",
]

CHMU_LIST = 0x800  #: where the hot list begins
CHMU_SCORE_BITS = 16  #: "counter width" of an entry; the unit's address is above them
TICK_NS = 100_000  #: epoch length, scale 1; each scale above it is ten times that
TRACK_ALL = 3  #: reads and writes that are none of a TEE
_INSTANCE, _SCALES = 0x10, 5
RW, W1C = Access.RW, Access.W1C


class Mode:
    """Reporting modes."""

    EPOCH, ALWAYS = range(2)


def unit_bits(c: CxlIoConfig) -> int:
    """Bits of a unit's address: a page of KELP's, as its device address says."""
    return max(1, (c.bytes - 1).bit_length() - c.hot_unit)


def chmu_registers(c: CxlIoConfig) -> Block:
    at = _INSTANCE
    capability = (
        c.chmu_vector
        | 0b11 << 4  # interrupts: overflow, fill
        | 1 << 10  # tracks reads and writes together
        | _SCALES << 16
        | 0xFFF << 20
        | 1 << 32
        | 1 << 36
        | c.hot_entries << 48
    )
    sizes = 1 << c.hot_unit - 8 | 1 << 33 | 0b11 << 48  # one unit, no down-sampling, both modes
    configuration = (
        Field("what", 0, 8, RW, doc="3: tracked; others: nothing is"),
        Field("random", 8, 1, RW, doc="no effect"),
        Field("overflow_irq", 9, 1, RW),
        Field("fill_irq", 10, 1, RW),
        Field("enable", 16, 1, RW),
        Field("reset", 17, 1, Access.STROBE, doc="empties list and epoch"),
        Field("threshold", 32, 32, RW, doc="a score that is hot"),
    )
    how = (
        Field("unit", 0, 32, RW, doc="no effect: there is one size"),
        Field("sampling", 32, 8, RW, doc="no effect"),
        Field("mode", 40, 8, RW, doc="0 at the end of each epoch, 1 when it becomes hot"),
        Field("scale", 48, 4, RW, doc="100 us × 10^(n - 1)"),
        Field("length", 52, 12, RW, doc="of an epoch; 0: it never ends"),
    )
    status = (
        Field("enabled", 0, 1, Access.DEVICE),
        Field("operation", 16, 16, Access.DEVICE, doc="1: it is being emptied"),
        Field("counter_bits", 32, 8, reset=CHMU_SCORE_BITS),
        Field("overflow", 40, 1, W1C, doc="a hot unit found the list full"),
        Field("filled", 41, 1, W1C, doc="more entries than the threshold"),
    )
    entry = (c.hot_entries - 1).bit_length()
    length = CHMU_LIST - at + 8 * c.hot_entries
    return Block(
        "chmu",
        CHMU_LIST,
        [
            constant("chmu_common", 0, 8, 1 | 1 << 8, "version 1, one instance"),
            constant("chmu_instance_length", 8, 8, length, "bytes of an instance"),
            constant("chmu_capability", at, 8, capability, "interrupts, epochs, list"),
            constant("chmu_sizes", at + 0x08, 8, sizes, "units, modes"),
            constant("chmu_ranges_at", at + 0x10, 8, 0x70, "of the instance"),
            constant("chmu_list_at", at + 0x18, 8, CHMU_LIST - at, "of the instance"),
            Register("chmu", at + 0x40, 8, configuration, "what is hot"),
            Register("chmu_how", at + 0x48, 8, how, "epochs"),
            Register("chmu_fill", at + 0x50, 8, (Field("value", 0, 16, RW),), "entries"),
            Register("chmu_status", at + 0x60, 8, status, "state", watch=True),
            Register(
                "chmu_head", at + 0x68, 2, (Field("value", 0, entry, Access.SHARED),), "next read"
            ),
            Register(
                "chmu_tail", at + 0x6A, 2, (Field("value", 0, entry, Access.DEVICE),), "next filled"
            ),
            Register(
                "chmu_ranges",
                at + 0x70,
                8,
                (Field("value", 0, 64, RW),),
                "a bit for each 256 MiB: tracked",
            ),
        ],
    )
