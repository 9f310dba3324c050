# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The register map, declared once (spec §9): the RTL decoder, host names, C header and the table in
docs/ are made from it. Plain Python.

Registers are 64 bits wide, eight to a 64-byte line of the register window. Reads have no side
effects. `scope` says who may touch one: `all` any LD-ID reads it; `control` LD-ID 0 alone;
`session` the session's owner and LD-ID 0. A refused access answers zeros / Cmp and logs an event.
OPEN finds the session's registers as a reset leaves them (:attr:`Register.forgotten`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from .config import POOLS, Config, digest_text
from .metadata import LAYER_RANGES, PrefetchSource

__all__ = [
    "Access",
    "Scope",
    "Field",
    "Register",
    "RegisterMap",
    "SessionCommand",
    "COUNTERS",
    "QUEUE_COUNTERS",
    "HISTOGRAM_BINS",
    "LONGEST_WAIT",
    "SESSION_BASE",
    "SESSION_STRIDE",
    "KELP",
    "identity_of",
    "unlike",
]

KELP = 0x4B454C50  #: "KELP", the upper half of register `identity`
SESSION_BASE = 0x1000
SESSION_STRIDE = 0x200
#: bin b counts latencies of 2^b … 2^(b+1)−1 cycles; bin 0 also 0, the last all above. A latency is
#: a difference of times of 32 bits.
HISTOGRAM_BINS = 24
#: cycles; a longer deadline counts as this. A time waited is a difference of 32 bits and looked at
#: every so many cycles: one that is over for fewer of them before it wraps may never be seen.
LONGEST_WAIT = (1 << 32) - (1 << 16)
EVENT_RECORDS = 16
#: of an event; one that is wider, as the number of a frame beyond 2^20, is cut to its lowest bits
EVENT_ARGUMENT_BITS = 20

_SOURCES = tuple(s.name.lower() for s in PrefetchSource if s)

#: Totals, 48 bits each, in order of their registers.
COUNTERS: tuple[tuple[str, str], ...] = (
    ("accesses", "first demand line of a page in a step"),
    ("reads", "demand reads"),
    ("writes", "demand writes"),
    ("hits", "accesses that found the page resident"),
    ("misses", "accesses that found it cold or fetching"),
    ("allocations", "accesses that allocated the page"),
    ("evictions", "pages made cold"),
    ("write_backs", "dirty pages written to flash"),
    ("fetches", "pages read from flash"),
    ("evicted_missed", "misses within 16 steps of the page's eviction"),
    ("corrected", "single-bit errors corrected"),
    ("uncorrected", "double-bit errors met"),
    (
        "refused",
        "requests outside the map, closed, foreign, of an unknown opcode, or after a fatal error",
    ),
    *((f"prefetch_issued_{s}", f"prefetches taken, {s}") for s in _SOURCES),
    *((f"prefetch_useful_{s}", f"demanded while resident, {s}") for s in _SOURCES),
    *((f"prefetch_late_{s}", f"demanded while fetching, {s}") for s in _SOURCES),
    *((f"prefetch_useless_{s}", f"evicted unused, {s}") for s in _SOURCES),
    *((f"prefetch_dropped_{s}", f"candidates dropped, {s}") for s in _SOURCES),
    ("hint_lines", "hint lines taken, refused ones too"),
    ("hint_updates", "page masses taken"),
    ("sweeps", "sweeps of the eviction engine"),
)

_OF_A_QUEUE = {
    "prefetch_useful": "prefetched pages demanded while resident",
    "prefetch_issued": "prefetches taken",
}
#: Per (session, queue), 32 bits each: what the total of that name counts. `wide_counters` = False
#: keeps the first four.
QUEUE_COUNTERS: tuple[tuple[str, str], ...] = tuple(
    (name, {**dict(COUNTERS), **_OF_A_QUEUE}[name])
    for name in (
        "hits",
        "misses",
        "evictions",
        "prefetch_useful",
        "allocations",
        "write_backs",
        "prefetch_issued",
        "evicted_missed",
    )
)


def identity_of(config: Config) -> int:
    """What register `identity` shows, 64 bits: "KELP" (63:32), the map's major version (31:16),
    which changes where a register moves or means something else, and its minor one (15:0), which
    changes where one, a region or an event is added. 1.0 had no `event_taken`; 1.2 is 1.1 with what
    `Config.select` adds, the regions SELECT and GATHER among it."""
    return KELP << 32 | 1 << 16 | (2 if config.select else 1)


def unlike(config: Config, identity: int, digest: int) -> str | None:
    """Why a host of `config` may not use a device whose registers `identity` and `digest` (48 bits)
    show these, both values named; None where it may: "KELP", the same major version, the same minor
    one or a later one, the same digest (docs/interface.md)."""
    ours = identity_of(config)
    if identity >> 32 != KELP:
        return f"register identity shows {identity:#018x}; a KELP device's shows {ours:#018x}"
    (major, minor), (our_major, our_minor) = (
        (value >> 16 & 0xFFFF, value & 0xFFFF) for value in (identity, ours)
    )
    if major != our_major or minor < our_minor:
        return (
            f"the device has version {major}.{minor} of the register map, and this host version "
            + f"{our_major}.{our_minor}: use a host and a device of the same sources"
        )
    if digest != int(config.digest, 16):
        return (
            f"the device was built from a configuration with digest {digest_text(digest)}, "
            + f"and {config.name!r} has digest {config.digest}: name the configuration that it was "
            + "built from"
        )
    return None


class Access(Enum):
    RO = "read"
    RW = "read/write"
    WO = "write"


class Scope(Enum):
    ALL = "all"
    CONTROL = "control"
    SESSION = "session"


class SessionCommand(IntEnum):
    """Values written to a session's `command` register."""

    OPEN = 1
    CLOSE = 2
    ADVANCE = 3  #: step += `argument`
    APPLY_QUEUE = 4  #: queue parameters below → the selected queue
    APPLY_ALL = 5  #: queue parameters below → every queue of the session
    PEEK = 6  #: page word of the selected queue and page → `page_word`


@dataclass(frozen=True)
class Field:
    name: str
    low: int
    bits: int
    doc: str = ""
    reset: int = 0


@dataclass(frozen=True)
class Register:
    name: str
    offset: int
    access: Access
    scope: Scope
    fields: tuple[Field, ...]
    doc: str

    @property
    def reset(self) -> int:
        return sum(f.reset << f.low for f in self.fields)

    @property
    def forgotten(self) -> bool:
        """Takes its reset value at the end of its session's CLOSE. `shape` stays: it says whose the
        next session is."""
        return (
            self.access is Access.RW
            and self.offset >= SESSION_BASE
            and not self.name.endswith("_shape")
        )


def _whole(bits: int = 64, doc: str = "", reset: int = 0) -> tuple[Field, ...]:
    return (Field("value", 0, bits, doc, reset),)


class RegisterMap:
    """All registers of one configuration; `registers` by ascending offset, `by_name`, and one
    session's as `session(s)`."""

    def __init__(self, config: Config):
        self.config = config
        self.registers = tuple(
            sorted(
                (
                    *self._global(),
                    *self._counters(),
                    *(r for s in range(config.sessions) for r in self.session(s)),
                ),
                key=lambda r: r.offset,
            )
        )
        self.by_name = {r.name: r for r in self.registers}
        offsets = [r.offset for r in self.registers]
        assert len(set(offsets)) == len(offsets) and len(self.by_name) == len(offsets), (
            "register map overlaps"
        )

    def _global(self):
        yield from self._identity()
        yield from self._settings()
        yield from self._event_control()
        yield from self._pools()
        yield from self._event_records()

    def _identity(self):
        c, RO, A = self.config, Access.RO, Scope.ALL
        yield Register(
            "identity",
            0x000,
            RO,
            A,
            _whole(64, reset=identity_of(c)),
            '"KELP" and the version of this map (docs/interface.md)',
        )
        yield Register(
            "digest",
            0x008,
            RO,
            A,
            _whole(48, reset=int(c.digest, 16)),
            "digest of the configuration",
        )
        yield Register(
            "geometry",
            0x010,
            RO,
            A,
            (
                Field("sessions", 0, 8, "", c.sessions),
                Field("queues", 8, 16, "", c.queues),
                Field("pages", 24, 16, "", c.pages),
                Field("half_lines", 40, 16, "", c.half_lines),
            ),
            "sizes of the address map",
        )
        yield Register(
            "status",
            0x018,
            RO,
            A,
            (
                Field("ready", 0, 1, "the reset scrub is over"),
                Field(
                    "quiescent",
                    1,
                    1,
                    "when the latest request came, mostly this read, nothing would have changed "
                    + "until one came or the tier answered",
                ),
                Field("irq", 2, 1, "interrupt pending"),
                Field("event_overflow", 3, 1, "events were lost since it was last cleared"),
                Field("fatal", 4, 1, "a memory lost what cannot be rebuilt; reads answer poison"),
            ),
            "state of the endpoint",
        )

    def _settings(self):
        RW, C = Access.RW, Scope.CONTROL
        yield Register(
            "low_water",
            0x020,
            RW,
            C,
            _whole(16, "frames", 2),
            "frames of each used pool that prefetch leaves free",
        )
        yield Register(
            "high_water",
            0x068,
            RW,
            C,
            _whole(16, "frames", 4),
            "eviction keeps max(low_water, high_water) frames of each used pool free; "
            + "prefetch may take those above low_water",
        )
        yield Register(
            "reserve",
            0x028,
            RW,
            C,
            _whole(16, "frames", 4),
            "frames of a pool that pins may never take; with coherence one more than the "
            + "directory has sectors, where this is less; counts for pins to come: where it is "
            + "raised, or a limit lowered, those that are there stay",
        )
        yield Register(
            "cold_retries",
            0x030,
            RW,
            C,
            _whole(4, "", 2),
            "tries after a failed or lost cold command",
        )
        yield Register(
            "cold_timeout",
            0x038,
            RW,
            C,
            _whole(32, "cycles", 1 << 20),
            "a cold command without completion counts as failed; counts at once, also for commands "
            + "and ABORTs under way: never less than the tier's own (docs/cold_tier.md); more than "
            + "2^32 − 2^16 counts as that",
        )
        yield Register(
            "starve_limit",
            0x040,
            RW,
            C,
            _whole(32, "cycles", 1 << 24),
            "a miss without a frame is answered with poison; counts at once, also for misses that "
            + "wait; more than 2^32 − 2^16 counts as that",
        )
        yield Register(
            "prefetch_enable",
            0x048,
            RW,
            C,
            tuple(Field(s, i, 1, "") for i, s in enumerate(_SOURCES)),
            "prefetch sources switched on",
        )

    def _event_control(self):
        RO, RW, WO, C = Access.RO, Access.RW, Access.WO, Scope.CONTROL
        yield Register(
            "event_clear",
            0x050,
            WO,
            C,
            _whole(1),
            "write 1: empty the event log, clear overflow and irq; what came since the log was "
            + "read goes, too, and is not told: for a host that begins anew",
        )
        yield Register(
            "event_taken",
            0x070,
            WO,
            C,
            (
                Field(
                    "count",
                    0,
                    5,
                    "so many of the oldest records have been read and leave, all "
                    + "where there are fewer",
                ),
                Field("overflow", 8, 1, "event_overflow has been read as 1 and falls"),
            ),
            "drains the event log: what came since event_count was read stays, with its record or "
            + "its overflow; irq falls once no record is left",
        )
        yield Register(
            "irq_enable", 0x058, RW, C, _whole(32, "bit = event code"), "events that raise irq"
        )
        yield Register("event_count", 0x060, RO, C, _whole(8), "records in the event log")

    def _pools(self):
        c, RO, RW, C = self.config, Access.RO, Access.RW, Scope.CONTROL
        for p, pool in enumerate(POOLS):
            yield Register(
                f"pool_limit_{pool}",
                0x080 + 8 * p,
                RW,
                C,
                _whole(24, "frames", c.frames[p]),
                "frames in use at most, 0 meaning 1; with coherence one more than the directory "
                + "has sectors at least; written while some are, it reads back at once and holds "
                + "from when none is",
            )
            yield Register(
                f"pool_used_{pool}", 0x0A0 + 8 * p, RO, C, _whole(24, "frames"), "frames in use"
            )

    def _event_records(self):
        RO, C = Access.RO, Scope.CONTROL
        for i in range(EVENT_RECORDS):
            yield Register(
                f"event_{i}",
                0x100 + 16 * i,
                RO,
                C,
                (
                    Field("code", 0, 8, "kelp_spec.metadata.Event"),
                    Field("ld_id", 8, 4, "whose request it was"),
                    Field("squeue", 12, 16, "session · queues + queue, `queues` of `geometry`"),
                    Field("page", 28, 16, ""),
                    Field(
                        "argument",
                        44,
                        EVENT_ARGUMENT_BITS,
                        "docs/errors.md; the lowest bits of a wider one",
                    ),
                ),
                "event record, oldest first",
            )
            yield Register(
                f"event_time_{i}",
                0x108 + 16 * i,
                RO,
                C,
                _whole(32, "cycles"),
                "time of the event, modulo 2^32",
            )

    def _counters(self):
        for i, (name, doc) in enumerate(COUNTERS):
            yield Register(
                f"count_{name}", 0x400 + 8 * i, Access.RO, Scope.CONTROL, _whole(48), doc
            )
        for i in range(HISTOGRAM_BINS):
            yield Register(
                f"hit_latency_{i}",
                0x800 + 8 * i,
                Access.RO,
                Scope.CONTROL,
                _whole(32),
                "answers in 2^n … 2^(n+1) − 1 cycles, n its number, that no miss held up, of "
                + "refusals too; stands still at 2^32 − 1",
            )
            yield Register(
                f"miss_latency_{i}",
                0x900 + 8 * i,
                Access.RO,
                Scope.CONTROL,
                _whole(32),
                "misses answered in 2^n … 2^(n+1) − 1 cycles; stands still at 2^32 − 1",
            )

    def session(self, s: int) -> tuple[Register, ...]:
        """The registers of session `s`."""
        base, p = SESSION_BASE + SESSION_STRIDE * s, f"s{s}_"
        return (
            *self._session_life(p, base),
            *self._session_queues(p, base),
            *self._session_counters(p, base),
        )

    def _session_life(self, p: str, base: int) -> tuple[Register, ...]:
        """Descriptor, commands and state of the session with prefix `p`."""
        c = self.config
        RO, RW, WO, C, S = Access.RO, Access.RW, Access.WO, Scope.CONTROL, Scope.SESSION
        return (
            Register(
                p + "shape",
                base + 0x00,
                RW,
                C,
                (
                    Field("layers", 0, 10, "", 1),
                    Field("kv_heads", 10, 10, "", 1),
                    Field(
                        "used_lines",
                        20,
                        10,
                        "host lines of a page's K half = tokens per page × lines per token",
                        c.half_lines,
                    ),
                    Field("host_type", 30, 1, "0 fp16, 1 bf16"),
                    Field("k_only", 31, 1, "V lines do not exist"),
                    Field("used_pages", 32, 14, "", c.pages),
                    Field("owner", 46, 4, "LD-ID"),
                ),
                "model descriptor; taken by OPEN",
            ),
            Register(
                p + "formats",
                base + 0x08,
                RW,
                C,
                tuple(
                    field
                    for r in range(LAYER_RANGES)
                    for field in (
                        Field(f"last_layer_{r}", 16 * r, 10, "", 1023),
                        Field(f"format_k_{r}", 16 * r + 10, 3, ""),
                        Field(f"format_v_{r}", 16 * r + 13, 3, ""),
                    )
                ),
                "stored formats by layer: the first range whose last_layer is not below the "
                + "layer; taken by OPEN",
            ),
            Register(
                p + "command",
                base + 0x10,
                WO,
                S,
                (
                    Field("command", 0, 4, "SessionCommand; OPEN and CLOSE need LD-ID 0"),
                    Field("argument", 16, 24, "ADVANCE: steps"),
                ),
                "session command",
            ),
            Register(
                p + "state",
                base + 0x18,
                RO,
                S,
                (
                    Field("open", 0, 1),
                    Field("busy", 1, 1, "opening, closing or a command under way"),
                    Field("refused", 2, 1, "the last command was refused"),
                    Field("decode", 3, 1, "phase: decode"),
                    Field("step", 8, 24),
                ),
                "state of the session",
            ),
            Register(
                p + "auto_step",
                base + 0x20,
                RW,
                S,
                _whole(24, "accesses", 0),
                "observed score: the step advances every so many accesses; 0 off",
            ),
        )

    def _session_queues(self, p: str, base: int) -> tuple[Register, ...]:
        """The selected queue's parameters, and what can be seen of it."""
        RO, RW, C, S = Access.RO, Access.RW, Scope.CONTROL, Scope.SESSION
        return (
            Register(
                p + "queue",
                base + 0x28,
                RW,
                S,
                (Field("queue", 0, 10), Field("page", 16, 14)),
                "selects a queue (and a page for PEEK)",
            ),
            Register(
                p + "policy",
                base + 0x30,
                RW,
                S,
                (
                    Field("alpha", 0, 9, "α · 256, 1 … 256", 26),
                    Field("mass_shift", 12, 4, "k of x = mass << k"),
                    Field("score_source", 16, 2, "0 none, 1 pushed, 2 observed"),
                    Field("window", 20, 6, "RoPE window in pages; 0 off"),
                    Field("policy", 32, 1, "0 the plain formula, 1 `kelp` (docs/policy.md)"),
                    *self._tables(),
                ),
                "queue parameters, taken by OPEN for all queues, and by APPLY",
            ),
            Register(
                p + "recency",
                base + 0x38,
                RW,
                S,
                (
                    Field("tau_m", 0, 16, "m in 2^15 … 2^16−1", 48409),
                    Field("tau_sh", 16, 5, "sh + 1: 0 … 16", 10),
                    Field("idle_m", 24, 16, "m of −65536·log2(1 − α)", 40504),
                    Field("idle_sh", 40, 5, "sh + 4: 0 … 19", 6),
                ),
                "decay constants, taken as `policy` is",
            ),
            Register(
                p + "budget",
                base + 0x40,
                RW,
                C,
                _whole(32, "DRAM lines (64 B); 0 none: whatever is resident is beyond it"),
                "residency budget of each queue, taken as `policy` is",
            ),
            Register(
                p + "page_word",
                base + 0x48,
                RO,
                S,
                (
                    Field("state", 0, 3),
                    Field("format_k", 3, 3),
                    Field("format_v", 6, 3),
                    Field("pinned", 9, 1, "by a hint; a slot does not show"),
                    Field(
                        "place",
                        10,
                        24,
                        "of a resident page its frame, numbered through all pools; of one that is "
                        + "fetched its miss entry",
                    ),
                    Field("last_step", 34, 24),
                ),
                "page word of the last PEEK",
            ),
            Register(
                p + "resident",
                base + 0x50,
                RO,
                S,
                _whole(32, "DRAM lines"),
                "resident lines of the selected queue",
            ),
        )

    def _tables(self) -> tuple[Field, ...]:
        if not self.config.select_tables:
            return ()
        of = "with `policy` 1: pages are worth what tables of choices say (docs/select_tables.md)"
        return (Field("tables", 33, 1, of),)

    def _session_counters(self, p: str, base: int) -> tuple[Register, ...]:
        names = QUEUE_COUNTERS if self.config.wide_counters else QUEUE_COUNTERS[:4]
        return tuple(
            Register(
                f"{p}queue_{name}",
                base + 0x80 + 8 * i,
                Access.RO,
                Scope.SESSION,
                _whole(32),
                doc + " since OPEN (selected queue), modulo 2^32",
            )
            for i, (name, doc) in enumerate(names)
        )
