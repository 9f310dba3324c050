# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Golden frame table: what the device knows of each frame, and what each op does to it (spec §3,
§4; docs/design.md §4).

Plain Python; a set of lines is an int with one bit per line. The methods are what an endpoint model
calls; :meth:`FrameTable.step` takes one op in the form in which it enters the frame stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kelp_spec.config import Config
from kelp_spec.cxlio.events import PoisonSource
from kelp_spec.metadata import Answer, DataOp, Op, Outcome

__all__ = ["Claim", "Frame", "FrameOp", "FrameTable", "LineAccess", "StepResult", "Usage"]


@dataclass(slots=True)
class Frame:
    """One entry. Bits of `valid` and `poison` are host lines of the page, K first."""

    in_use: bool = False
    dirty: bool = False
    redirty: bool = False
    used: bool = False
    source: int = 0
    squeue: int = 0
    page: int = 0
    valid: int = 0
    poison: int = 0


class LineAccess(NamedTuple):
    """What a request on a frame comes to. `fresh`: the partial write merges into zeros. `useful`:
    it is the first demand on a prefetched page."""

    kind: DataOp
    answer: Answer
    fresh: bool = False
    useful: bool = False


class Claim(NamedTuple):
    """A frame as an eviction takes it: whether flash must be written, and the line mask that goes
    along."""

    dirty: bool
    valid: int
    poison: int


class Usage(NamedTuple):
    """How a prefetch of `source` for queue `squeue` ended."""

    source: int
    squeue: int
    useful: bool


@dataclass(slots=True)
class FrameOp:
    """An op as it enters the frame stage; the names are those of the hardware's `frame_op`."""

    kind: Op
    outcome: Outcome = Outcome.DONE
    use: bool = False
    frame: int = 0
    squeue: int = 0
    page: int = 0
    kv_line: int = 0
    write: bool = False
    partial: bool = False
    poison: bool = False
    answer: Answer = Answer.NONE
    init: bool = False
    lost: bool = False
    failed: bool = False
    source: int = 0
    line_mask: tuple[int, int] = (0, 0)  #: FILL: valid, poison
    lines: int = 0  #: ERROR: the lines that lie in the DRAM line in question


class StepResult(NamedTuple):
    """`access` is None when the op emits nothing to the data path; `owner` answers PEEK: (in use,
    squeue, page). `poisoned`: lines of a page in use that were not poisoned before the op, with the
    source that the poison list gives for them; `healed`: those that are so no more."""

    access: LineAccess | None = None
    claim: Claim | None = None
    usage: Usage | None = None
    owner: tuple[bool, int, int] | None = None
    poisoned: tuple[int, PoisonSource] | None = None
    healed: int = 0


class FrameTable:
    """All frames of one configuration, none in use at first."""

    def __init__(self, config: Config):
        self.config = config
        self.frames = [Frame() for _ in range(config.total_frames)]
        self._all_lines = (1 << config.page_lines) - 1

    def __getitem__(self, frame: int) -> Frame:
        return self.frames[frame]

    def look(self, frame: int, line: int) -> Answer:
        """What a line is answered with; nothing changes."""
        f = self.frames[frame]
        if f.poison >> line & 1:
            return Answer.POISON
        return Answer.DATA if f.valid >> line & 1 else Answer.ZEROS

    def start(
        self,
        frame: int,
        squeue: int,
        page: int,
        *,
        source: int = 0,
        valid: int = 0,
        poison: int = 0,
        ruined: bool = False,
    ) -> None:
        """Give a free frame to a page. `ruined`: its lines are lost, so each is there and
        poisoned."""
        if self.frames[frame].in_use:
            raise ValueError(
                f"frame {frame} is given to squeue {squeue} page {page} but still belongs to "
                + f"{self.frames[frame]}"
            )
        if ruined:
            valid = poison = self._all_lines
        self.frames[frame] = Frame(
            in_use=True, source=source, squeue=squeue, page=page, valid=valid, poison=poison
        )

    def read(self, frame: int, line: int, *, late: bool = False) -> LineAccess:
        """A host read of one line. `late` requests had parked while the page was fetched."""
        f = self.frames[frame]
        useful, f.used = self._first_use(f, late), True
        if f.poison >> line & 1:
            return LineAccess(DataOp.ANSWER, Answer.POISON, useful=useful)
        if not f.valid >> line & 1:
            return LineAccess(DataOp.ANSWER, Answer.ZEROS, useful=useful)
        return LineAccess(DataOp.READ, Answer.DATA, useful=useful)

    def write(
        self,
        frame: int,
        line: int,
        *,
        partial: bool = False,
        poison: bool = False,
        late: bool = False,
    ) -> LineAccess:
        """A host write of one line. Only a whole, sound line heals a poisoned one."""
        f = self.frames[frame]
        useful, f.used = self._first_use(f, late), True
        bit = 1 << line
        fresh = partial and not f.valid & bit
        f.valid |= bit
        f.dirty = f.redirty = True
        if poison:
            f.poison |= bit
            return LineAccess(DataOp.ANSWER, Answer.CMP, fresh, useful)
        if not partial:
            f.poison &= ~bit
        return LineAccess(DataOp.WRITE, Answer.CMP, fresh, useful)

    def own(self, frame: int) -> None:
        """The frame was given so that a line of it may be owned (HDM-DB): flash may have an old
        page."""
        f = self.frames[frame]
        f.dirty = f.redirty = True

    @staticmethod
    def _first_use(f: Frame, late: bool) -> bool:
        return bool(f.source) and not f.used and not late

    def claim(self, frame: int) -> Claim:
        """An eviction begins; writes from now on show in `redirty`."""
        f = self.frames[frame]
        f.redirty = False
        return Claim(f.dirty, f.valid, f.poison)

    def cancel(self, frame: int, squeue: int, page: int) -> None:
        """A page was used again while its eviction wrote it to flash, which went well: only later
        writes are still missing there."""
        f = self.frames[frame]
        if f.in_use and (f.squeue, f.page) == (squeue, page):
            f.dirty = f.redirty

    def lose(self, frame: int, lines: int) -> None:
        """Memory lost what was written: those of the lines that were written are poisoned, and
        flash must learn of it."""
        f = self.frames[frame]
        if lost := lines & f.valid if f.in_use else 0:
            f.poison |= lost
            f.dirty = f.redirty = True

    def end(self, frame: int) -> Usage | None:
        """The frame leaves its page; a prefetch that nobody asked for was useless."""
        f = self.frames[frame]
        usage = Usage(f.source, f.squeue, False) if f.in_use and f.source and not f.used else None
        f.in_use = False
        return usage

    def step(self, op: FrameOp) -> StepResult:
        """One op, with everything the hardware's frame stage decides about it."""
        f = self.frames[op.frame]
        before = f.poison if op.use and not op.init else 0
        result = self._step(op)
        f = self.frames[op.frame]
        if not (op.use and f.in_use):
            return result
        lines = f.poison & ~before
        return result._replace(
            poisoned=(lines, self._source(op)) if lines else None, healed=before & ~f.poison
        )

    @staticmethod
    def _source(op: FrameOp) -> PoisonSource:
        if op.lost or op.failed or op.kind == Op.ERROR:
            return PoisonSource.INTERNAL
        # a FILL brings what was poisoned when the page left
        return PoisonSource.UNKNOWN if op.kind == Op.FILL else PoisonSource.EXTERNAL

    def _step(self, op: FrameOp) -> StepResult:
        access = LineAccess(DataOp.ANSWER, op.answer) if op.answer else None
        if not op.use:
            return StepResult(access)
        if op.init:
            valid, poison = op.line_mask if op.kind == Op.FILL else (0, 0)
            self.start(
                op.frame,
                op.squeue,
                op.page,
                source=op.source,
                valid=valid,
                poison=poison,
                ruined=op.lost or op.failed,
            )
        flush = LineAccess(DataOp.FLUSH, Answer.NONE)
        good, gone = op.outcome == Outcome.DONE, op.outcome == Outcome.ORPHAN
        if access:
            return StepResult(access)
        if op.kind in (Op.READ, Op.WRITE, Op.REPLAY):
            late = op.kind == Op.REPLAY
            if op.kind == Op.WRITE or late and op.write:
                access = self.write(
                    op.frame, op.kv_line, partial=op.partial, poison=op.poison, late=late
                )
            else:
                access = self.read(op.frame, op.kv_line, late=late)
                if op.partial and (op.init or late):
                    self.own(op.frame)
            f = self.frames[op.frame]
            return StepResult(
                access, usage=Usage(f.source, f.squeue, True) if access.useful else None
            )
        if op.kind == Op.CLAIM and good:
            return StepResult(flush, claim=self.claim(op.frame))
        if op.kind == Op.RELEASE and not op.failed:
            if good:
                return StepResult(usage=self.end(op.frame))
            if op.outcome == Outcome.VOID:
                self.cancel(op.frame, op.squeue, op.page)
        elif op.kind in (Op.SCRUB, Op.RECOVER) and (good or gone) or op.kind == Op.FLIP and gone:
            return StepResult(flush, usage=self.end(op.frame))
        elif op.kind == Op.ERROR and op.poison:
            self.lose(op.frame, op.lines)
        elif op.kind == Op.PEEK:
            f = self.frames[op.frame]
            return StepResult(owner=(f.in_use, f.squeue, f.page))
        return StepResult()
