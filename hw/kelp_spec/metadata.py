# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Metadata formats and the enumerations that cross blocks (spec §4, docs/design.md §2 and §3).
Plain Python."""

from __future__ import annotations

from enum import IntEnum

from .config import Config

__all__ = [
    "PageState",
    "Op",
    "ops_of",
    "Outcome",
    "MissKind",
    "PrefetchSource",
    "ScoreSource",
    "ScoreEvent",
    "DataOp",
    "Answer",
    "ColdOp",
    "ColdStatus",
    "Event",
    "EvictResult",
    "STEP_BITS",
    "SCORE_BITS",
    "LAYER_RANGES",
    "page_word_fields",
    "Protected",
    "frame_entry_fields",
]

STEP_BITS = 24  #: decode-step counter, modulo 2^24; wrap is legal
SCORE_BITS = 16  #: UQ0.16
LAYER_RANGES = 4  #: ranges of layers with their own stored formats, per session


class PageState(IntEnum):
    ABSENT = 0
    RESIDENT = 1
    WRITING_BACK = 2
    COLD = 3
    FETCHING = 4
    LOST = 5  #: absent and poisoned: its word had an uncorrectable error


class Op(IntEnum):
    """What enters the tracker pipeline (docs/design.md §3)."""

    NOP = 0
    READ = 1
    WRITE = 2
    GRANT = 3
    FILL = 4
    REPLAY = 5
    FLIP = 6
    SCAN = 7
    CLAIM = 8
    RELEASE = 9
    FREE = 10
    PREFETCH = 11
    MASS = 12
    PIN = 13
    UNPIN = 14
    STEP = 15
    OPEN = 16
    CLOSE = 17
    SCRUB = 18
    PEEK = 19
    RECOVER = 20
    CLOSED = 21  #: the closer has scrubbed every page: the session becomes free
    #: memory answered with an error: lines of a frame are lost, or it is only reported; of the
    #: frame stage alone
    ERROR = 22
    # with `Config.select` alone (docs/select.md)
    LOOK = 23  #: a line of a resident page is read for a choice; nothing changes
    HOLD = 24  #: a chosen page that is still resident takes a slot: it is protected
    UNHOLD = 25  #: and gives it back


def ops_of(config: Config) -> tuple[Op, ...]:
    """The ops that a configuration's endpoint knows, ascending."""
    return tuple(op for op in Op if config.select or op < Op.LOOK)


class Outcome(IntEnum):
    """What M3 decided about an op; carried by the commit record."""

    DONE = 0
    HIT = 1  #: demand on a resident page
    ALLOCATED = 2  #: write to an absent page took a frame
    ZERO = 3  #: read of an absent page
    POISON = 4  #: read of a lost page
    REFUSED = 5  #: outside the map, closed session, foreign LD-ID
    MISSED = 6  #: a new miss entry was made
    PARKED = 7  #: joined an existing miss entry
    #: try again later (GRANT without frame, FLIP with parked requests, SCRUB of a busy page)
    RETRY = 8
    VOID = 9  #: candidate or write-back no longer holds
    DROPPED = 10  #: prefetch not taken
    ORPHAN = 11  #: frame belongs to no page now: flush and free it


class MissKind(IntEnum):
    DEMAND = 0
    ALLOCATE = 1  #: no flash read: a write to an absent page that waits for a frame
    PREFETCH = 2


class PrefetchSource(IntEnum):
    NONE = 0
    WINDOW = 1  #: RoPE window P ± W
    SPEC_READ = 2  #: MemSpecRd
    HINT = 3  #: prefetch list of a hint line
    LAYER_AHEAD = 4  #: same page of the next layer
    PREVIOUS = 5  #: pages accessed in the previous step


class ScoreSource(IntEnum):
    NONE = 0
    PUSHED = 1
    OBSERVED = 2


class ScoreEvent(IntEnum):
    NONE = 0
    INIT = 1
    TOUCH = 2
    MASS = 3
    SCAN = 4
    SCRUB = 5  #: the page's session closes: what was learned at its distance is forgotten


class DataOp(IntEnum):
    ANSWER = 0  #: answer without memory
    READ = 1
    WRITE = 2
    FLUSH = 3


class Answer(IntEnum):
    """Kind of response a data op ends in."""

    NONE = 0
    DATA = 1  #: DRS MemData from memory
    ZEROS = 2  #: DRS MemData, zeros
    POISON = 3  #: DRS MemData, poison set, zeros
    NXM = 4  #: DRS MemData-NXM
    CMP = 5  #: NDR Cmp


class ColdOp(IntEnum):
    READ = 0  #: lba → frame
    WRITE = 1  #: frame → lba
    ABORT = 2
    ERASE = 3  #: all that was written is gone; of a device that sanitizes


class ColdStatus(IntEnum):
    OK = 0
    FAILED = 1
    ABORTED = 2


class EvictResult(IntEnum):
    COLD = 0
    CANCELLED = 1
    FAILED = 2


class Event(IntEnum):
    """Event-log codes (spec §9)."""

    NONE = 0
    OUT_OF_MAP = 1
    CLOSED_SESSION = 2
    FOREIGN_LD = 3
    UNKNOWN_OPCODE = 4
    CORRECTED = 5
    UNCORRECTED = 6
    FETCH_FAILED = 7
    WRITE_BACK_FAILED = 8
    PIN_REFUSED = 9
    NO_VICTIM = 10
    HINT_BAD_PAGE = 11
    HINT_MALFORMED = 12
    OPEN_REFUSED = 13
    REGISTER_REFUSED = 14
    POISON_RECEIVED = 15
    FRAME_RECOVERED = 16
    STARVED = 17
    HINT_GAP = 18
    HINT_BAD_QUEUE = 19
    FATAL = 20  #: a memory lost what cannot be rebuilt: no data are answered until reset
    #: more page words were lost at once than wait for a search: the whole frame table is swept
    FRAME_SWEEP = 21
    MEMORY_READ_FAILED = 22  #: memory answered a read with an error
    MEMORY_WRITE_FAILED = 23  #: memory's error took lines that were written: they are poisoned
    SELECT_REFUSED = 24  #: the argument is a kelp_spec.select.Refusal
    SNOOP_LOST = 25  #: the host did not give a line back that was called back: it is poisoned
    BIRSP_UNASKED = 26  #: a BIRsp that answers no BISnp
    COPY_UNGRANTED = 27  #: the host keeps a copy that it was never granted
    #: memory answered a line of a page's summary with an error, argument 1 a write's: it is made
    #: anew
    SUMMARY_LOST = 28
    #: a word of a memory that is no page word is beyond repair: no page was lost with it, but for
    #: lines that are poisoned. The argument is the Protected; SCORES names the page
    WORD_LOST = 29


class Protected(IntEnum):
    """Who read a memory word beyond repair: the argument of WORD_LOST and FATAL
    (docs/protection.md)."""

    FRAME_TABLE = 0
    TRACKER = 1
    DATA_FIFO = 2
    MISS_BUFFER = 3
    COLD_SCHEDULER = 4
    DATA_PATH = 5
    EVICTION = 6
    HOST = 7
    SCORES = 8


def page_word_fields(config: Config) -> tuple[tuple[str, int], ...]:
    """(name, bits) of a page word, lowest first; SECDED is added over all of it."""
    return (
        ("state", 3),
        ("place", config.place_bits),
        ("format_k", 3),
        ("format_v", 3),
        ("last_step", STEP_BITS),
        # the host pinned it; with `select`, above that: it has a slot
        ("pinned", 2 if config.select else 1),
    )


def frame_entry_fields(config: Config) -> tuple[tuple[str, int], ...]:
    """(name, bits) of a frame-table entry, lowest first."""
    return (
        ("in_use", 1),
        ("dirty", 1),
        ("redirty", 1),
        ("used", 1),
        ("source", 3),
        ("squeue", config.squeue_bits),
        ("page", config.page_bits),
        ("valid", config.page_lines),
        ("poison", config.page_lines),
    )
