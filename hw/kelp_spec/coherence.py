# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""HDM-DB: what the directory says of a line, the directory's sizes, and how a line's address is cut
(docs/coherence.md). Plain Python."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

from .errors import ConfigError

__all__ = [
    "BI_TAG_BITS",
    "Coherence",
    "CoherenceEvent",
    "DirectoryOp",
    "DirectoryOutcome",
    "Held",
    "MetaField",
    "MetaValue",
    "SIZES",
    "SnpType",
    "least_limit",
    "least_reserve",
    "sizes_of",
]

BI_TAG_BITS = 12


class Held(IntEnum):
    """What the host may hold of a line."""

    NONE = 0
    SHARED = 1  #: S
    ANY = 2  #: S, E or M
    STALE = 3  #: a copy of a line that the device has rounded since


class MetaField(IntEnum):
    META0 = 0
    NO_OP = 3


class MetaValue(IntEnum):
    INVALID = 0
    ANY = 2
    SHARED = 3


class SnpType(IntEnum):
    NO_OP = 0
    DATA = 1
    CUR = 2
    INV = 3


class DirectoryOp(IntEnum):
    """What comes to the directory."""

    REQUEST = 0
    WRITE = 1
    ASK = 2  #: a sector is to be held by nobody
    FINISH = 3  #: a recall has ended


class DirectoryOutcome(IntEnum):
    DONE = 0
    WAIT = 1  #: nothing has changed; to be tried again
    RECALL = 2  #: a recall has begun, and the op is to be tried again
    #: done, and a recall has begun: of the set's oldest sector, ahead of need, or of the one asked
    DONE_RECALL = 3


class CoherenceEvent(IntEnum):
    UNASKED = 0  #: a BIRsp that belongs to no BISnp, or of a Blk form where that was of one line
    REFUSED = 1  #: the host keeps what it was told to give back
    SILENT = 2  #: no BIRsp came in time
    UNGRANTED = 3  #: a MemWr keeps a copy that was never granted


def _log2(n: int) -> int:
    return (n - 1).bit_length()


class _Config(Protocol):
    """What sizes must fit, of a `kelp_spec.config.Config`, which asks here whether they do."""

    name: str
    frames: tuple[int, int, int, int]
    half_lines: int
    aperture_bits: int
    coherence: bool
    directory_sets: int


@dataclass(frozen=True, kw_only=True)
class Coherence:
    """Sizes of the coherent front."""

    sets: int = 256  #: of the directory; a power of two
    ways: int = 4  #: entries of a set
    sector: int = 32  #: host lines of an entry; a power of two
    recalls: int = 4  #: sectors that are called back at once; a power of two
    pending: int = 128  #: grants under way: rate × latency of a read; a power of two
    #: MemRd Shared of a line that nobody has is answered Cmp-E, not Cmp-S; only for a device whose
    #: every line has a place of its own
    eager: bool = True

    def __post_init__(self) -> None:
        for field, low, high, power in (
            ("sets", 2, 1 << 20, True),
            ("ways", 2, 8, True),
            ("sector", 2, 32, True),
            ("recalls", 2, 16, True),
            ("pending", 4, 512, True),
        ):
            value = getattr(self, field)
            good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            if not good or power and value & (value - 1):
                raise ConfigError(
                    f"coherence: {field} = {value!r} is refused; legal: {low} … {high}, "
                    + "a power of two"
                )

        if not isinstance(self.eager, bool):
            raise ConfigError(f"coherence: eager = {self.eager!r} is refused; legal: True, False")

    @property
    def sectors(self) -> int:
        """Entries of the directory: so many pages, at most, have lines that the host may hold."""
        return self.sets * self.ways

    @property
    def lines(self) -> int:
        """Host lines that the directory can hold."""
        return self.sectors * self.sector

    @property
    def set_bits(self) -> int:
        return _log2(self.sets)

    @property
    def way_bits(self) -> int:
        return _log2(self.ways)

    @property
    def sector_bits(self) -> int:
        return _log2(self.sector)

    @property
    def recall_bits(self) -> int:
        return _log2(self.recalls)

    @property
    def pending_bits(self) -> int:
        return _log2(self.pending)

    @property
    def generation_bits(self) -> int:
        """Of a BI-Tag: generation | recall | line of the sector."""
        return BI_TAG_BITS - self.recall_bits - self.sector_bits

    def sector_address_bits(self, config: _Config) -> int:
        """Of the number of a sector in the KV aperture."""
        bits = config.aperture_bits - 6 - self.sector_bits
        if self.sector > config.half_lines:
            raise ConfigError(
                f"coherence: sector = {self.sector} is refused; legal: at most "
                + f"half_lines = {config.half_lines} of configuration {config.name!r}"
            )
        if bits <= self.set_bits:
            raise ConfigError(
                f"coherence: sets = {self.sets} is refused; legal: less than the "
                + f"{1 << bits} sectors of configuration {config.name!r}"
            )
        return bits

    def tag_bits(self, config: _Config) -> int:
        return self.sector_address_bits(config) - self.set_bits

    def row_bits(self, config: _Config) -> int:
        """A set: of each way its tag, two bits for each line, and whether it is being called back;
        the way whose turn it is, and whether a request has found no room."""
        entry = self.tag_bits(config) + 2 * self.sector + 1
        return self.ways * entry + self.way_bits + 1


#: Sizes that go with the named configurations: 32 MiB of host cache for the large ones, 512 KiB for
#: that of the recordings.
SIZES: dict[str, Coherence] = {
    "unit": Coherence(sets=4, ways=2, sector=4, recalls=2, pending=16),
    "unit_cxl": Coherence(sets=4, ways=2, sector=4, recalls=2, pending=16, eager=False),
    "unit_cxl_coherent": Coherence(sets=4, ways=2, sector=4, recalls=2, pending=16, eager=False),
    "unit_flit": Coherence(sets=4, ways=2, sector=4, recalls=2, pending=16),
    "unit_select": Coherence(sets=4, ways=2, sector=4, recalls=2, pending=16),
    "unit_select_coherent": Coherence(sets=4, ways=2, sector=4, recalls=2, pending=16, eager=False),
    "trace_select": Coherence(sets=128, ways=4, sector=16, recalls=4, pending=128),
    "unit_coherent": Coherence(sets=4, ways=2, sector=4, recalls=2, pending=16, eager=False),
    "trace": Coherence(sets=128, ways=4, sector=16, recalls=4, pending=128),
    "smollm2": Coherence(sets=512, ways=4, sector=32, recalls=8, pending=128),
    "ulx3s": Coherence(sets=64, ways=2, sector=16, recalls=2, pending=16),
    "64x64": Coherence(sets=32, ways=4, sector=32, recalls=8, pending=128),
    "llama70b": Coherence(sets=4096, ways=4, sector=32, recalls=8, pending=128),
    "llama70b_select": Coherence(sets=4096, ways=4, sector=32, recalls=8, pending=128),
    "640x8192": Coherence(sets=32, ways=4, sector=32, recalls=8, pending=128),
}


def sizes_of(config: _Config) -> Coherence:
    """The sizes of a configuration's coherent front, which grants E only where a page has a frame:
    those of its name, or of another name as large as its pools and its map allow, up to 32 768
    lines, with `Config.directory_sets` sets where that is not 0; a ConfigError where the host could
    hold a pool whole."""
    sizes = SIZES.get(config.name) or _fitting(config)
    if config.directory_sets:
        sizes = replace(sizes, sets=config.directory_sets)
    # Else the host could hold lines of every page of a pool, and none could leave.
    if min(config.frames) <= sizes.sectors:
        raise ConfigError(
            f"configuration {config.name!r}: frames = {config.frames!r} is refused with coherence; "
            + f"legal: in each pool more than the directory's {sizes.sectors} sectors"
        )
    return replace(sizes, eager=False)


def least_reserve(config: _Config) -> int:
    """Frames of a pool that pins and slots never take, whatever register `reserve` says. With
    coherence one more than the host can hold sectors: so a page that is neither pinned nor held can
    always leave."""
    return sizes_of(config).sectors + 1 if config.coherence else 0


def least_limit(config: _Config) -> int:
    """Frames that a pool may use, whatever its register `pool_limit_…` says: more than the host can
    hold sectors."""
    return max(1, least_reserve(config))


def _fitting(config: _Config) -> Coherence:
    """Four ways of half a page, fewer where a pool has less than nine frames; half as many sets as
    the map has sectors at most."""
    sector, ways = min(32, config.half_lines), 4 if min(config.frames) > 8 else 2
    mapped = 1 << config.aperture_bits - 6 - _log2(sector)
    sets = 2
    while 2 * sets * ways < min(config.frames) and 2 * sets < min(mapped, 2048 // ways):
        sets *= 2
    few = sets * ways < 64
    return Coherence(
        sets=sets, ways=ways, sector=sector, recalls=2 if few else 8, pending=16 if few else 128
    )
