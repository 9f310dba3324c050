# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Configurations: every size the hardware is built from, checked once, and the widths derived from
them (spec §4, §8).

Plain Python: the RTL, the golden model, the host library and the command line read the same object.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace

from .coherence import sizes_of
from .cxlio.commands import Opcode
from .cxlio.config import CXLIO, MOST_TRACKED, UNIT_BYTES, named_cxlio
from .errors import ConfigError
from .flit import CREDITS
from .formats import Format, formats_of
from .geometry import stored_lines
from .select import SelectMap

__all__ = ["Config", "ConfigError", "MOST_NAMED", "NAMED", "digest_text", "named", "POOLS"]

#: Pools in DRAM, one per stored page size; a page goes to the smallest whose frame holds its stored
#: lines. They are called after the pages that they fit with the usual `Config.pool_formats`.
POOLS = ("raw16", "fp8", "int8", "int4")

#: candidates of a choice: the pages that its query heads name, each `select_quota`
MOST_NAMED = 510


def _is_formats(text) -> bool:
    try:
        return bool(formats_of(text))
    except (ValueError, AttributeError):
        return False


def _log2(n: int) -> int:
    return max(0, (n - 1).bit_length())


@dataclass(frozen=True, kw_only=True)
class Config:
    """One endpoint's sizes. All counts; derived widths are properties."""

    name: str
    sessions: int = 1  #: sessions held at once
    queues: int = 640  #: (layer, KV head) pairs per session
    pages: int = 8192  #: pages per queue; a power of two
    #: host lines of a page's K half (and of its V half); a power of two
    half_lines: int = 64
    #: frames in the pools raw16, fp8, int8, int4
    frames: tuple[int, int, int, int] = (1024, 1024, 1024, 1024)
    #: the pages that each pool's frames fit, as a format or K/V apart (int8/int4); the first is
    #: raw16, which holds a page of any format
    pool_formats: tuple[str, str, str, str] = ("raw16", "fp8_e4m3", "int8", "int4")
    misses: int = 64  #: miss-table entries = fetches in flight
    parked: int = 1024  #: requests parked on fetching pages
    #: evictions under way, and so pages on their way to flash; bandwidth × latency of the flash's
    #: writes
    write_backs: int = 16
    line_slots: int = 128  #: DRAM data lines in flight or held for combining
    scale_slots: int = 64  #: DRAM scale lines in flight or held for combining
    write_slots: int = 512  #: 64-byte write payloads accepted and not yet stored
    hot_pages: int = 32  #: recently used page words held in registers
    hint_lines: int = 16  #: hint lines waiting to be absorbed
    prefetch_slots: int = 32  #: prefetch candidates queued
    candidates: int = 8  #: victims that one sweep keeps
    #: elements that the codec takes per cycle; a line takes 32 / lanes cycles, so fewer suit a slow
    #: memory
    codec_lanes: int = 32
    #: every stored format; False: raw16 alone, without quantiser, dequantiser and scale lines
    codecs: bool = True
    #: the data path's memories as wide as a line are block RAM, whatever their depth, but for the
    #: one of which a row is needed that is read in the cycle of its write
    wide_blocks: bool = False
    #: all per-queue counters of spec §9; False keeps hits, misses, evictions, prefetch useful
    wide_counters: bool = True
    #: SECDED on every memory whose bits decide what data are shown, kept, or whose they are
    #: (docs/protection.md); False leaves it to page words and scores, which always have it
    protect: bool = True
    #: slots of a (session, queue), for the pages that the device chooses near memory
    #: (docs/select.md); 0: no choice, and none of the fields `select_*` means anything
    select: int = 0
    select_heads: int = 4  #: query heads of a KV head
    select_lines: int = 4  #: lines of a token at most: ⌈head_dim / 32⌉
    select_quota: int = 16  #: pages that each query head names
    select_lanes: int = 16  #: lines of keys whose codes are scored in a cycle
    select_groups: int = 8  #: SELECTs of a session that may wait: the KV heads of a layer
    #: lines of keys, and with `select_port` of summaries, that are on their way to a choice
    select_looks: int = 64
    #: a page that is scored and absent has the mass that its summary says
    select_estimates: bool = False
    #: what policy 2 learns from choices and guesses, for the device's own pages
    #: (docs/select_tables.md); needs `select_estimates`
    select_tables: bool = False
    #: summaries are in memory, behind a port of their own (docs/select.md, "Summaries"); False: on
    #: the chip
    select_port: bool = False
    #: HDM-DB: a host may cache lines, and the device calls them back (docs/coherence.md); sizes are
    #: `kelp_spec.coherence.sizes_of` it. False: HDM-H
    coherence: bool = False
    #: sets of its directory, each of so many ways and lines as `sizes_of` says; 0: as it says, too
    directory_sets: int = 0
    #: CXL.io before it: the name of a kelp_spec.cxlio.config.CxlIoConfig (docs/cxl.md); "" none
    cxlio: str = ""
    #: the six channels on a link of flits: credits of each channel of the `FlitFront` that
    #: `kelp verilog` writes beside the rest (docs/cxl.md); 0 none
    flits: int = 0

    def __post_init__(self) -> None:
        def need(field: str, ok: bool, legal: str) -> None:
            if not ok:
                raise ConfigError(
                    f"configuration {self.name!r}: {field} = {getattr(self, field)!r} is "
                    + f"refused; legal: {legal}"
                )

        def power(n: int) -> bool:
            return n > 0 and n & (n - 1) == 0

        def span(field: str, low: int, high: int, pow2: bool = False) -> None:
            value = getattr(self, field)
            need(
                field,
                isinstance(value, int)
                and not isinstance(value, bool)
                and low <= value <= high
                and (not pow2 or power(value)),
                f"{low} … {high}" + (", a power of two" if pow2 else ""),
            )

        need("name", isinstance(self.name, str) and bool(self.name), "a non-empty string")
        span("sessions", 1, 16)
        span("queues", 1, 1024)
        span("pages", 4, 8192, True)
        span("half_lines", 4, 512, True)
        need(
            "frames",
            isinstance(self.frames, tuple)
            and len(self.frames) == len(POOLS)
            and all(isinstance(n, int) and 4 <= n <= 1 << 22 for n in self.frames),
            "four counts (raw16, fp8, int8, int4) of 4 … 4194304 each",
        )
        need(
            "pool_formats",
            isinstance(self.pool_formats, tuple)
            and len(self.pool_formats) == len(POOLS)
            and self.pool_formats[0] == Format.RAW16.label
            and all(map(_is_formats, self.pool_formats)),
            f"raw16 and three of {', '.join(f.label for f in Format)}, or K/V apart as int8/int4",
        )
        # M3 is promised eight free places before a request may enter (kelp_hw.pipeline.RESERVE); as
        # many again make the miss path a path.
        span("misses", 16, 1024, True)
        span("parked", 16, 16384, True)
        span("write_backs", 2, 64, True)
        span("line_slots", 8, 256, True)
        span("scale_slots", 4, 128, True)
        span("write_slots", 8, 1024, True)
        span("hot_pages", 2, 64, True)
        span("hint_lines", 2, 64, True)
        span("prefetch_slots", 4, 64, True)
        span("candidates", 1, 16)
        span("codec_lanes", 8, 32, True)
        span("select", 0, 64)
        if self.select:
            self._check_select(need, span)
        self._check_cxlio(need)
        need("flits", self.flits in (0, *CREDITS), f"0, {', '.join(map(str, CREDITS))}")
        flags = (
            "codecs",
            "wide_blocks",
            "wide_counters",
            "protect",
            "coherence",
            "select_estimates",
        )
        for field in (*flags, "select_tables", "select_port"):
            need(field, isinstance(getattr(self, field), bool), "True, False")
        need(
            "select_tables",
            not self.select_tables or (self.select > 0 and self.select_estimates),
            "False without select and select_estimates",
        )
        need("select_port", not self.select_port or self.select > 0, "False without select")
        need(
            "select_port",
            not (self.select_port and self.sanitizes),
            "False with a cxlio that sanitizes: nothing erases what lies behind that port",
        )
        need("directory_sets", self.coherence or self.directory_sets == 0, "0 without coherence")
        if self.directory_sets != 0:
            span("directory_sets", 2, 1 << 20, True)
        if self.coherence:
            sizes_of(self).sector_address_bits(self)

    def _check_select(self, need, span) -> None:
        """Sizes of a choice; `need(field, ok, legal)` and `span(field, low, high, pow2)` refuse."""
        span("select", 4, min(64, self.pages // 4), True)
        span("pages", 64, 8192, True)  # what a set of page marks holds
        span("select_heads", 1, 16)
        span("select_lines", 1, min(32, self.half_lines), True)
        span("select_quota", 1, 64)
        need(
            "select_quota",
            self.select_heads * self.select_quota <= MOST_NAMED,
            f"{MOST_NAMED} // select_heads = {MOST_NAMED // self.select_heads} at most: so "
            + "many candidates a choice has",
        )
        span("select_lanes", 1, 16, True)
        span("select_groups", 1, 16, True)
        span("select_looks", 4, 256, True)
        beyond = max(0, SelectMap(self).offset_bits + 6 - self.aperture_bits)
        need(
            "select_groups",
            not beyond,
            f"{self.select_groups >> beyond} at most: the SELECT region has the room of the KV "
            + "aperture",
        )

    def _check_cxlio(self, need) -> None:
        """A configuration of CXL.io that fits the device; `need(field, ok, legal)` refuses."""
        fitting = [name for name in CXLIO if named_cxlio(name).coherent == self.coherence]
        need("cxlio", self.cxlio in ("", *fitting), ", ".join(("''", *fitting)))
        need(
            "write_backs",
            not self.sanitizes or self.write_backs != self.misses,
            "any count but that of misses, with a cxlio that sanitizes: ERASE has an id of its own",
        )
        # A range bitmap of 64 bits says which 256 MiB are tracked (docs/cxl.md, "The hot list").
        need(
            "cxlio",
            not self.cxlio
            or not named_cxlio(self.cxlio).hot_entries
            or self.map_units <= MOST_TRACKED,
            f"one without a hot list, which covers {MOST_TRACKED} · 256 MiB, where the address "
            + f"map takes {self.map_units}",
        )

    # - derived counts -----------------------------------------------------------------------------
    @property
    def formats(self) -> tuple[Format, ...]:
        """Stored formats that a session may ask for."""
        return tuple(Format) if self.codecs else (Format.RAW16,)

    @property
    def sanitizes(self) -> bool:
        """Its mailbox has a sanitize."""
        return bool(self.cxlio) and Opcode.SANITIZE in named_cxlio(self.cxlio).commands

    @property
    def squeues(self) -> int:
        """(session, queue) pairs; index = session · queues + queue."""
        return self.sessions * self.queues

    @property
    def page_words(self) -> int:
        """Page words in the metadata SRAM; index = squeue · pages + page."""
        return self.squeues * self.pages

    @property
    def page_lines(self) -> int:
        """Host lines of a page, K then V."""
        return 2 * self.half_lines

    @property
    def total_frames(self) -> int:
        return sum(self.frames)

    @property
    def frame_lines(self) -> tuple[int, ...]:
        """DRAM lines of one frame, per pool."""
        return tuple(stored_lines(*formats_of(text), self.half_lines) for text in self.pool_formats)

    @property
    def pool_first_frame(self) -> tuple[int, ...]:
        """Global id of each pool's first frame."""
        return tuple(sum(self.frames[:p]) for p in range(len(POOLS)))

    @property
    def pool_base_line(self) -> tuple[int, ...]:
        """DRAM line address of each pool's first frame."""
        return tuple(
            sum(n * s for n, s in zip(self.frames[:p], self.frame_lines, strict=False))
            for p in range(len(POOLS))
        )

    @property
    def dram_lines(self) -> int:
        return sum(n * s for n, s in zip(self.frames, self.frame_lines, strict=True))

    @property
    def cold_slot_sectors(self) -> int:
        """512-byte sectors of one cold slot: the largest stored page plus one sector for its line
        mask."""
        return -(-max(self.frame_lines) * 64 // 512) + 1

    # - derived widths -----------------------------------------------------------------------------
    @property
    def session_bits(self) -> int:
        return max(1, _log2(self.sessions))

    @property
    def queue_bits(self) -> int:
        return max(1, _log2(self.queues))

    @property
    def squeue_bits(self) -> int:
        return max(1, _log2(self.squeues))

    @property
    def page_bits(self) -> int:
        return _log2(self.pages)

    @property
    def half_line_bits(self) -> int:
        return _log2(self.half_lines)

    @property
    def line_bits(self) -> int:
        """K/V bit and line: the index of a host line in its page."""
        return self.half_line_bits + 1

    @property
    def frame_bits(self) -> int:
        return _log2(self.total_frames)

    @property
    def offset_bits(self) -> int:
        """DRAM line within a frame."""
        return _log2(max(self.frame_lines))

    @property
    def dram_line_bits(self) -> int:
        return _log2(self.dram_lines)

    @property
    def miss_bits(self) -> int:
        return _log2(self.misses)

    @property
    def parked_bits(self) -> int:
        return _log2(self.parked)

    @property
    def write_slot_bits(self) -> int:
        return _log2(self.write_slots)

    @property
    def write_back_bits(self) -> int:
        return _log2(self.write_backs)

    @property
    def place_bits(self) -> int:
        """The page word's `place` field: a frame when resident, a miss-table entry when fetching,
        the lowest bits of the step of its eviction (5 and more) when cold."""
        return max(self.frame_bits, self.miss_bits, 5)

    @property
    def select_rows(self) -> int:
        """Lines of a page's summary, each of 16 lines of its keys (`select.CODED_LINES`)."""
        return max(1, self.half_lines // 16)

    @property
    def summary_lines(self) -> int:
        """Memory lines of all pages' summaries; a page's index = page word · select_rows."""
        return self.page_words * self.select_rows if self.select else 0

    @property
    def slot_bits(self) -> int:
        """A slot's number in its queue."""
        return _log2(self.select)

    @property
    def generation_bits(self) -> int:
        """The generation of a choice, as a GATHER address has it: beside the slot it fills the
        place of the page."""
        return self.page_bits - self.slot_bits

    @property
    def aperture_bits(self) -> int:
        """log2 of the KV aperture in bytes: session | queue | page | K/V | line | byte."""
        return self.session_bits + self.queue_bits + self.page_bits + self.line_bits + 6

    @property
    def map_units(self) -> int:
        """256 MiB that the address map takes, all regions: the capacity that a device with CXL.io
        has at least, since a host reaches nothing beyond."""
        apertures = 6 if self.select else 3
        return -(-(apertures << self.aperture_bits) // UNIT_BYTES)

    @property
    def digest(self) -> str:
        """Twelve hex digits that change with any field. Pools of the usual sizes add nothing, nor
        do `wide_blocks`, `select`, `select_estimates`, `select_tables`, `select_port`, `coherence`,
        `directory_sets`, `cxlio` and `flits` where they are off, so that devices from before there
        were others keep theirs."""
        values = asdict(self)
        if not self.select:
            values = {name: v for name, v in values.items() if not name.startswith("select")}
        else:
            for name in ("select_estimates", "select_tables", "select_port"):
                if not values[name]:
                    del values[name]
        for name in ("wide_blocks", "coherence", "directory_sets", "cxlio", "flits"):
            if not values[name]:
                del values[name]
        if self.pool_formats == Config.pool_formats:
            del values["pool_formats"]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]

    @classmethod
    def of_json(cls, values: dict) -> Config:
        """From what `dataclasses.asdict` gave, with lists for tuples; a ConfigError where it is
        refused, also for fields of another version of KELP."""
        if unknown := sorted(values.keys() - {f.name for f in fields(cls)}):
            raise ConfigError(
                f"configuration {values.get('name')!r} has fields that this version of KELP does "
                + f"not know: {', '.join(map(repr, unknown))}"
            )
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})

    def with_(self, **changes) -> Config:
        """A checked copy with some fields changed."""
        return replace(self, **changes)


_BIG = dict(
    misses=256,
    parked=4096,
    write_backs=64,
    line_slots=128,
    scale_slots=64,
    write_slots=512,
    hot_pages=32,
    half_lines=64,
)

_UNIT = Config(
    name="unit",
    sessions=2,
    queues=4,
    pages=8,
    half_lines=4,
    frames=(8, 8, 8, 8),
    misses=16,
    parked=32,
    write_backs=4,
    line_slots=16,
    scale_slots=8,
    write_slots=16,
    hot_pages=4,
    hint_lines=4,
    prefetch_slots=8,
    candidates=4,
)

_UNIT_SELECT = _UNIT.with_(
    name="unit_select",
    pages=64,
    frames=(32, 16, 16, 16),
    select=8,
    select_heads=2,
    select_lines=2,
    select_quota=4,
    select_lanes=8,
    select_groups=2,
    select_looks=16,
    select_estimates=True,
    select_tables=True,
    select_port=True,
)

_LLAMA70B = Config(
    name="llama70b",
    sessions=1,
    queues=640,
    pages=8192,
    frames=(262144, 262144, 262144, 262144),
    **_BIG,
)

#: Named configurations. `unit` is for proofs, `unit_select` for those of the choice near memory,
#: `trace_select` fits the small model that chooses, every page of which has a frame,
#: `unit_coherent` for a host that caches, `unit_cxl` with CXL.io before it, `unit_cxl_coherent`
#: with both, `unit_select_coherent` for a host that caches and lets its device choose, `unit_flit`
#: with a front for a link of flits, `trace` fits the recordings of the small model, `smollm2` those
#: of SmolLM2-135M, every page of which has a frame in each pool, `ulx3s` an ECP5-85F, `llama70b`
#: one 128K-token sequence of Llama-3-70B, `llama70b_select` that with the choice near memory;
#: `64x64` and `640x8192` are the two ends of the scaling benchmark. `ulx3s` leaves out `protect`:
#: encoders and decoders lie between its block RAMs and the registers behind them, where its clock
#: has no room for them.
NAMED: dict[str, Config] = {
    c.name: c
    for c in (
        _UNIT,
        _UNIT.with_(
            name="unit_coherent",
            frames=(16, 12, 12, 12),
            misses=32,
            parked=64,
            write_slots=32,
            coherence=True,
        ),
        _UNIT.with_(name="unit_cxl", cxlio="joined", codec_lanes=8),
        _UNIT.with_(
            name="unit_cxl_coherent",
            frames=(16, 12, 12, 12),
            misses=32,
            parked=64,
            write_slots=32,
            coherence=True,
            cxlio="joined_coherent",
            codec_lanes=8,
        ),
        _UNIT.with_(name="unit_flit", flits=16),
        _UNIT_SELECT,
        _UNIT_SELECT.with_(name="unit_select_coherent", coherence=True, codec_lanes=8),
        Config(
            name="trace_select",
            queues=12,
            pages=128,
            half_lines=16,
            frames=(1536, 4, 4, 4),
            misses=16,
            parked=32,
            write_backs=4,
            line_slots=128,
            scale_slots=8,
            write_slots=64,
            hot_pages=4,
            hint_lines=4,
            prefetch_slots=8,
            candidates=4,
            select=32,
            select_lines=1,
            select_quota=8,
            select_groups=2,
            select_looks=128,
        ),
        Config(
            name="trace",
            sessions=2,
            queues=16,
            pages=128,
            half_lines=16,
            frames=(2048, 2048, 2048, 2048),
            misses=64,
            parked=2048,
            line_slots=128,
            scale_slots=64,
            write_slots=512,
            hot_pages=32,
        ),
        Config(
            name="smollm2",
            sessions=1,
            queues=90,
            pages=256,
            half_lines=32,
            frames=(24576, 24576, 24576, 24576),
            misses=128,
            parked=4096,
            write_backs=32,
        ),
        Config(
            name="ulx3s",
            sessions=1,
            queues=640,
            pages=32,
            half_lines=16,
            frames=(1024, 512, 512, 1024),
            misses=16,
            parked=128,
            write_backs=4,
            line_slots=16,
            scale_slots=8,
            write_slots=16,
            hot_pages=16,
            hint_lines=4,
            prefetch_slots=8,
            candidates=4,
            codec_lanes=8,
            wide_counters=False,
            protect=False,
        ),
        _LLAMA70B,
        _LLAMA70B.with_(
            name="llama70b_select",
            select=64,
            select_heads=8,
            select_quota=32,
            select_looks=256,
            select_estimates=True,
            select_port=True,
        ),
        Config(name="64x64", sessions=1, queues=64, pages=64, frames=(1024, 256, 256, 256), **_BIG),
        Config(
            name="640x8192",
            sessions=1,
            queues=640,
            pages=8192,
            frames=(65536, 256, 256, 256),
            **_BIG,
        ),
    )
}


def digest_text(digest: int) -> str:
    """A digest of 48 bits, for messages: in hex, and of a named configuration with its name."""
    text = f"{digest:012x}"
    name = next((c.name for c in NAMED.values() if c.digest == text), None)
    return text if name is None else f"{text} ({name!r})"


def named(name: str) -> Config:
    """The configuration called `name`; a ConfigError that lists the names otherwise."""
    try:
        return NAMED[name]
    except KeyError:
        raise ConfigError(f"unknown configuration {name!r}; known: {', '.join(NAMED)}") from None
