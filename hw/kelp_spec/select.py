# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Widths and formats of the choice of pages near memory (docs/select.md), and the layout of
the SELECT region. Nothing here computes a score."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from .formats import ELEMENTS

__all__ = [
    "ANSWER_FIELDS",
    "BELL_FIELDS",
    "CHOSEN_FIELDS",
    "CODED_LINES",
    "CODE_BITS",
    "COUNT_BITS",
    "ESTIMATE_MASS_BITS",
    "HOLD_MOST",
    "MEAN_BITS",
    "PLANNED_BITS",
    "PLANNED_FRACTION",
    "PLAN_FIELDS",
    "Refusal",
    "SelectMap",
    "SelectStatus",
    "STEP_BITS",
    "SlotState",
    "record",
    "record_bytes",
    "select_offset_bits",
    "ABSENT_MORE",
    "ALIGNED_BITS",
    "ALIGNED_FRACTION",
    "BLOCK_EXPONENT_BITS",
    "MASS_BITS",
    "NEAR",
    "NEAR_PLACES",
    "RATIO_BITS",
    "RECIPROCAL_BITS",
    "SCORE_BITS",
    "SCORE_FRACTION",
    "SCORE_LEAST",
    "SCORE_MOST",
    "SHARE_BITS",
    "WEIGHT_BITS",
]

#: a block's exponent, signed: −127 … 130
BLOCK_EXPONENT_BITS = 9

#: of a line of a key in its page's summary; a summary's 64-byte line has those of `CODED_LINES`
CODE_BITS, CODED_LINES = 32, 16
#: an element of a key as a plan sees it, signed, with places after the point
PLANNED_BITS, PLANNED_FRACTION = 10, 2
#: of an element in a plan's line: its mean (without places), log2 of a step, bits of its code
MEAN_BITS, STEP_BITS, COUNT_BITS = 8, 3, 3

#: a line's product q · k, signed, and how many of its bits lie after the point
ALIGNED_BITS, ALIGNED_FRACTION = 24, 8

#: log2 of a token's weight, signed, and how many of its bits lie after the point
SCORE_BITS, SCORE_FRACTION = 20, 8
SCORE_LEAST, SCORE_MOST = -(1 << SCORE_BITS - 1), (1 << SCORE_BITS - 1) - 1

#: 2 to the power of a score's fraction, one bit before the point
WEIGHT_BITS = 16
#: the weights of a page's tokens, summed; more counts as the most
MASS_BITS = 24
#: the weights of the estimates of all pages, summed; the same
ESTIMATE_MASS_BITS = 32
#: what an absent page counts more than its best token is estimated to score: by how much a page's
#: mass exceeds it in the mean
ABSENT_MORE = 384
#: how far below the last page named a head still looks at a token, before scores are scaled:
#: NEAR · 2^sh >> NEAR_PLACES, 1.5 to 3 in the exponent of a weight
NEAR, NEAR_PLACES = 3, 8
#: places by which the reciprocal of a head's whole mass is shifted
RECIPROCAL_BITS = 40
#: a page's share of a head's mass, all after the point
SHARE_BITS = 16
#: what pages without exact scores add to a mass, SHARE_BITS of it after the point; more counts as
#: the most
RATIO_BITS = 24

#: log2 of the cycles after which slots are given back, and for which a SELECT waits, at most
HOLD_MOST = 24


class SelectStatus(IntEnum):
    """What an answer says of its SELECT."""

    NONE = 0  #: not yet
    DONE = 1
    REFUSED = 2


class Refusal(IntEnum):
    """Why a SELECT was refused."""

    NONE = 0
    BELL = 1  #: the doorbell was written in part, or poisoned
    QUEUE = 2  #: the session has no such queue
    PAGE = 3  #: the newest page is beyond the session
    TOKENS = 4  #: the newest page has no token, or more than a page has lines for
    #: lines of a token: no power of two, more than the device has, or not a divisor of a page's
    LINES = 5
    COUNT = 6  #: more pages than there are slots
    QUERY_NAN = 7  #: a query has a NaN
    PLAN = 8  #: a line of the plan was not written, or in part, or is none


class SlotState(IntEnum):
    """What became of a chosen page; or that the entry is of one that is wanted."""

    HELD = 0  #: it has its slot
    ABSENT = 1  #: it is not resident (any more)
    NO_ROOM = 2  #: pins and slots have all frames but the reserve
    WANTED = 3  #: it was not chosen, but would have been, had it been resident


#: Fields of a doorbell line, lowest bits first; `spare` and `beyond`, and what is behind the last
#: one, are not looked at. `most`: pages beside the first and the newest;
#: `release`: give back the session's slots and choose nothing; `fetch`: pages that were scored and
#: are not resident are asked of the prefetcher; `speculative`: do that, and choose nothing;
#: `waits`: while more than `wait_above` is missing, for 2^patience cycles at most; `fetch_from`: of
#: pages that are wanted, those with so much mass are; `tables`: of a guess, tables say which.
BELL_FIELDS = (
    ("sequence", 32),
    ("queue", 16),
    ("layer", 16),
    ("newest", 16),
    ("tokens", 16),
    ("lines", 8),
    ("most", 8),
    ("hold", 8),
    ("release", 1),
    ("fetch", 1),
    ("speculative", 1),
    ("waits", 1),
    ("tables", 1),
    ("spare", 3),
    ("target", 32),
    ("m", 16),
    ("sh", 5),
    ("beyond", 3),
    ("wait_above", 32),
    ("patience", 8),
    ("fetch_from", 32),
)
#: Fields of a plan's line, lowest bits first; `planned` is 1, and what is beyond is 0.
PLAN_FIELDS = (
    *((f"mean_{k}", MEAN_BITS) for k in range(ELEMENTS)),
    *((f"step_{k}", STEP_BITS) for k in range(ELEMENTS)),
    *((f"count_{k}", COUNT_BITS) for k in range(ELEMENTS)),
    ("exponent", BLOCK_EXPONENT_BITS),
    ("planned", 1),
)
#: Fields of an answer's first line. `missing`: the estimated mass of pages that were scored and
#: not resident; `wanted`: how many that are not chosen would be, were all resident, of which
#: `SelectMap.named_places` have an entry; both 0 without `Config.select_estimates`.
ANSWER_FIELDS = (
    ("sequence", 32),
    ("status", 8),
    ("refusal", 8),
    ("count", 8),
    ("absent", 16),
    ("generation", 16),
    ("missing", 32),
    ("wanted", 8),
)
#: Fields of each of the pages chosen, eight to a line, in the lines behind it, and from the last
#: place downwards of those that are wanted. `tokens`: that the page has, as the doorbell says:
#: those of a whole page, or of the newest.
CHOSEN_FIELDS = (("page", 16), ("state", 4), ("tokens", 12), ("mass", 32))


def record_bytes(fields, values: dict[str, int], size: int = 0) -> bytes:
    """Little-endian bytes of `fields`, lowest bits first; what is not named is 0, as is what is
    behind them up to `size` bytes."""
    word = at = 0
    for name, bits in fields:
        word |= (values.get(name, 0) & (1 << bits) - 1) << at
        at += bits
    return word.to_bytes(max(size, at // 8), "little")


def record(fields, data: bytes) -> dict[str, int]:
    """The way back, of bytes that may go on."""
    word, found = int.from_bytes(data, "little"), {}
    for name, bits in fields:
        found[name] = word & (1 << bits) - 1
        word >>= bits
    return found


def _log2(n: int) -> int:
    return max(0, (n - 1).bit_length())


class _Config(Protocol):
    """What the region goes by, of a `kelp_spec.config.Config`, which asks here whether it fits."""

    sessions: int
    session_bits: int
    select: int
    select_heads: int
    select_lines: int
    select_groups: int


@dataclass(frozen=True)
class SelectMap:
    """Lines of the SELECT region: `session | group | half | line`. The lower half of a block holds
    the queries, `head | line of a token`, and the plan as one head more; the upper half takes the
    doorbell at its first line, and is read for the answer."""

    config: _Config

    @property
    def query_lines(self) -> int:
        """Lines of a group's queries, and of its plan."""
        return (self.config.select_heads + 1) * self.config.select_lines

    @property
    def answer_lines(self) -> int:
        return 1 + -(-self.config.select // 8)

    def named_places(self, count: int, wanted: int) -> range:
        """Places among an answer's entries of the pages that are wanted, first one first, behind
        `count` chosen ones: of so many that are wanted as many as have room."""
        last = self.config.select - 1
        return range(last, max(last - wanted, count - 1), -1)

    @property
    def half_bits(self) -> int:
        return max(_log2(self.query_lines), _log2(self.answer_lines))

    @property
    def group_bits(self) -> int:
        return _log2(self.config.select_groups)

    @property
    def offset_bits(self) -> int:
        return self.config.session_bits + self.group_bits + 1 + self.half_bits

    def query(self, session: int, group: int, head: int = 0, line: int = 0) -> int:
        """Line of a query in the region."""
        return self._block(session, group) << 1 + self.half_bits | (
            head * self.config.select_lines + line
        )

    def plan(self, session: int, group: int, line: int = 0) -> int:
        """Line of a plan in the region."""
        return self.query(session, group, self.config.select_heads, line)

    def bell(self, session: int, group: int) -> int:
        """Line of the doorbell, and of the answer's first line."""
        return (self._block(session, group) << 1 | 1) << self.half_bits

    def _block(self, session: int, group: int) -> int:
        for name, value, limit in (
            ("session", session, self.config.sessions),
            ("group", group, self.config.select_groups),
        ):
            if not 0 <= value < limit:
                raise ValueError(f"{name} = {value} is refused; legal: 0 … {limit - 1}")
        return session << self.group_bits | group


def select_offset_bits(config: _Config) -> int:
    """Bits of a line in the SELECT region, 0 where there is none."""
    return SelectMap(config).offset_bits if config.select else 0
