# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the golden tracker works on: ops and their results, page words, sessions, queue
configurations and pools (docs/design.md §2, §3)."""

from __future__ import annotations

from collections import deque
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


class Op:
    """One op; the fields are those of `Layouts.op`, `ld_id` stands for its origin, and `origin` is
    carried for the caller."""

    __slots__ = (
        "kind",
        "session",
        "squeue",
        "page",
        "kv_line",
        "write",
        "partial",
        "poison",
        "has_write",
        "write_slot",
        "ld_id",
        "origin",
        "refused",
        "no_memory",
        "miss",
        "pool",
        "frame",
        "failed",
        "miss_kind",
        "lost",
        "source",
        "slot",
        "mass",
        "delta",
        "written",
    )

    def __init__(
        self,
        kind,
        session=0,
        squeue=0,
        page=0,
        kv_line=0,
        write=0,
        partial=0,
        poison=0,
        has_write=0,
        write_slot=0,
        ld_id=0,
        origin=None,
        refused=0,
        no_memory=0,
        miss=0,
        pool=0,
        frame=0,
        failed=0,
        miss_kind=0,
        lost=0,
        source=0,
        slot=0,
        mass=0,
        delta=0,
        written=0,
    ):
        self.kind = kind
        self.session = session
        self.squeue = squeue
        self.page = page
        self.kv_line = kv_line
        self.write = write
        self.partial = partial
        self.poison = poison
        self.has_write = has_write
        self.write_slot = write_slot
        self.ld_id = ld_id
        self.origin = origin
        self.refused = refused
        self.no_memory = no_memory
        self.miss = miss
        self.pool = pool
        self.frame = frame
        self.failed = failed
        self.miss_kind = miss_kind
        self.lost = lost
        self.source = source
        self.slot = slot
        self.mass = mass
        self.delta = delta
        self.written = written

    def __repr__(self):
        fields = ", ".join(
            f"{name}={getattr(self, name)}" for name in self.__slots__[1:] if getattr(self, name)
        )
        return f"Op({OpKind(self.kind).name}, {fields})"


class Session:
    """A session's registers at M3. As a descriptor for OPEN, `open` and `closing` are ignored."""

    __slots__ = (
        "open",
        "closing",
        "ld_id",
        "host_type",
        "used_queues",
        "used_lines",
        "k_only",
        "used_pages",
        "kv_heads",
        "step",
    )

    def __init__(
        self,
        open=0,
        closing=0,
        ld_id=0,
        host_type=0,
        used_queues=0,
        used_lines=0,
        k_only=0,
        used_pages=0,
        kv_heads=0,
        step=0,
    ):
        self.open = open
        self.closing = closing
        self.ld_id = ld_id
        self.host_type = host_type
        self.used_queues = used_queues
        self.used_lines = used_lines
        self.k_only = k_only
        self.used_pages = used_pages
        self.kv_heads = kv_heads
        self.step = step


class QueueConfig:
    """The part of a queue's configuration that M3 looks at."""

    __slots__ = ("format_k", "format_v", "pool")

    def __init__(self, format_k=0, format_v=0, pool=0):
        self.format_k = format_k
        self.format_v = format_v
        self.pool = pool


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
