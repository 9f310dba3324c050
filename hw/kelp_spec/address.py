# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The address map (spec §3): `session | queue | page | K/V | line | byte`, the hint aperture and
the register window above it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .config import Config
from .select import select_offset_bits

__all__ = ["Region", "KvAddress", "AddressMap", "HINT_BYTES", "REGISTER_BYTES"]

HINT_BYTES = 1 << 12  #: hint aperture; every line of it takes hint lines alike
REGISTER_BYTES = 1 << 16  #: register window


class Region(IntEnum):
    """Value of the address bits above the KV aperture."""

    KV = 0
    HINT = 1
    REGISTER = 2
    OUTSIDE = 3
    SELECT = 4  #: with `Config.select` alone (docs/select.md)
    GATHER = 5  #: the same


@dataclass(frozen=True)
class KvAddress:
    session: int
    queue: int
    page: int
    kv: int  #: 0 key, 1 value
    line: int


@dataclass(frozen=True)
class AddressMap:
    """Byte addresses of one configuration's device, relative to its HDM base.

    The bits from aperture_bits on select the region. Offsets of hints, registers and SELECT beyond
    their sizes are outside, and so are the regions of a choice where there is none.
    """

    config: Config

    @property
    def hint_base(self) -> int:
        return 1 << self.config.aperture_bits

    @property
    def register_base(self) -> int:
        return 2 << self.config.aperture_bits

    @property
    def select_base(self) -> int:
        return Region.SELECT << self.config.aperture_bits

    def gather(
        self, session: int, queue: int, generation: int, kv: int, slot: int, line: int
    ) -> int:
        """Byte address of a line of the GATHER window (docs/select.md); a generation counts modulo
        its bits."""
        c = self.config
        x = (session << c.queue_bits) | queue
        x = (x << c.generation_bits) | generation % (1 << c.generation_bits)
        x = (((x << 1) | kv) << c.slot_bits) | slot
        x = (x << c.half_line_bits) | line
        return (Region.GATHER << c.aperture_bits) | x << 6

    def encode(self, a: KvAddress) -> int:
        """Byte address of a KV line; ValueError names a field outside its range."""
        c = self.config
        for field, value, limit in (
            ("session", a.session, c.sessions),
            ("queue", a.queue, c.queues),
            ("page", a.page, c.pages),
            ("kv", a.kv, 2),
            ("line", a.line, c.half_lines),
        ):
            if not 0 <= value < limit:
                raise ValueError(
                    f"{field} = {value} is outside configuration {c.name!r}; legal: 0 … {limit - 1}"
                )
        x = (a.session << c.queue_bits) | a.queue
        x = (x << c.page_bits) | a.page
        x = (x << 1) | a.kv
        x = (x << c.half_line_bits) | a.line
        return x << 6

    def decode(self, address: int) -> tuple[Region, KvAddress | int]:
        """Region and either the KV address or the byte offset in the region; of what is outside,
        the address. A session or queue, of KV and GATHER, may still exceed the configuration."""
        c = self.config
        region = address >> c.aperture_bits
        offset = address & ((1 << c.aperture_bits) - 1)
        sizes = {Region.HINT: HINT_BYTES, Region.REGISTER: REGISTER_BYTES}
        if c.select:
            sizes |= {
                Region.SELECT: 64 << select_offset_bits(c),
                Region.GATHER: 1 << c.aperture_bits,
            }
        if offset < sizes.get(region, 0):
            return Region(region), offset
        if region != Region.KV:
            return Region.OUTSIDE, address
        x = offset >> 6
        line, x = x & (c.half_lines - 1), x >> c.half_line_bits
        kv, x = x & 1, x >> 1
        page, x = x & (c.pages - 1), x >> c.page_bits
        queue, session = x & ((1 << c.queue_bits) - 1), x >> c.queue_bits
        return Region.KV, KvAddress(session, queue, page, kv, line)
