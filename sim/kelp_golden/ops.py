# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the golden tracker works on: ops and their results, page words, sessions, queue
configurations and pools (docs/design.md §2, §3)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from kelp_spec.metadata import Op as OpKind
from kelp_spec.metadata import Outcome, PageState

__all__ = ["ABSENT_WORD", "LOST_WORD", "Op", "Pool", "QueueConfig", "Result", "Session", "Word"]


class Word(NamedTuple):
    """A page word without its check bits."""

    state: int
    place: int
    format_k: int
    format_v: int
    last_step: int
    pinned: int


ABSENT_WORD = Word(int(PageState.ABSENT), 0, 0, 0, 0, 0)
LOST_WORD = Word(int(PageState.LOST), 0, 0, 0, 0, 0)


@dataclass(slots=True, eq=False, repr=False)
class Op:
    """One op; the fields are those of `Layouts.op`, `ld_id` stands for its origin, and `origin` is
    carried for the caller."""

    kind: int
    session: int = 0
    squeue: int = 0
    page: int = 0
    kv_line: int = 0
    write: int = 0
    partial: int = 0
    poison: int = 0
    has_write: int = 0
    write_slot: int = 0
    ld_id: int = 0
    origin: object = None
    refused: int = 0
    no_memory: int = 0
    miss: int = 0
    pool: int = 0
    frame: int = 0
    failed: int = 0
    miss_kind: int = 0
    lost: int = 0
    source: int = 0
    slot: int = 0
    mass: int = 0
    delta: int = 0
    written: int = 0

    def __repr__(self):
        fields = ", ".join(
            f"{name}={getattr(self, name)}" for name in self.__slots__[1:] if getattr(self, name)
        )
        return f"Op({OpKind(self.kind).name}, {fields})"


@dataclass(slots=True, eq=False)
class Session:
    """A session's registers at M3. As a descriptor for OPEN, `open` and `closing` are ignored."""

    open: int = 0
    closing: int = 0
    ld_id: int = 0
    host_type: int = 0
    used_queues: int = 0
    used_lines: int = 0
    k_only: int = 0
    used_pages: int = 0
    kv_heads: int = 0
    step: int = 0


@dataclass(slots=True, eq=False)
class QueueConfig:
    """The part of a queue's configuration that M3 looks at."""

    format_k: int = 0
    format_v: int = 0
    pool: int = 0


class Result:
    """What was decided about one op.

    `event` is the kelp_spec Event of a refusal, or 0. `reads` says that the op looked at a page
    word. `frame`, `pool` and `miss` are what the op took, gave back or used. `answer` ≠ 0 is an
    answer without memory; `use` says that the op goes to the frame entry of `frame`, `init` that it
    starts that entry anew, `lost` with every line poisoned. `score` (a ScoreEvent) comes with `gap`
    or `mass`.
    """

    __slots__ = (
        "op",
        "outcome",
        "old",
        "word",
        "changed",
        "first",
        "frame",
        "pool",
        "miss",
        "event",
        "reads",
        "corrected",
        "uncorrected",
        "answer",
        "use",
        "init",
        "lost",
        "format_k",
        "format_v",
        "score",
        "gap",
        "mass",
    )

    def __init__(self, op, word):
        self.op = op
        self.old = self.word = word
        self.outcome = self.changed = self.first = self.frame = self.pool = self.miss = (
            self.event
        ) = 0
        self.reads = self.corrected = self.uncorrected = 0
        self.answer = self.use = self.init = self.lost = 0
        self.score = self.gap = self.mass = 0
        self.format_k = self.format_v = 0

    def __repr__(self):
        fields = ", ".join(
            f"{name}={getattr(self, name)}" for name in self.__slots__[2:] if getattr(self, name)
        )
        return f"Result({self.op}, {Outcome(self.outcome).name}, {fields})"


class Pool:
    """Frames of one pool: never-used ids ascending, then freed ids in the order they came back."""

    __slots__ = ("first", "limit", "fresh", "freed", "used", "waiting", "pins")

    def __init__(self, first, limit):
        self.first = first
        self.limit = limit
        self.fresh = 0
        self.freed = deque()
        self.used = 0
        self.waiting = 0
        self.pins = 0

    @property
    def free(self):
        return self.limit - self.used

    def pop(self):
        self.used += 1
        if self.fresh < self.limit:
            self.fresh += 1
            return self.first + self.fresh - 1
        return self.freed.popleft()

    def push(self, frame):
        self.used -= 1
        self.freed.append(frame)
