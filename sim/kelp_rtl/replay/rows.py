# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Ops as rows of numbers, so that what a device in lock-step committed and what the golden model
did are compared as two arrays.

A row holds every argument that counts for its kind of op (docs/design.md §3; the rest is left at
zero), the outcome, what was taken, and the page word before and after.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kelp_golden.audit.stream import FrameRecord, ResultRecord, ScoreRecord
from kelp_golden.ops import Op as GoldenOp
from kelp_golden.ops import Result, Word
from kelp_spec.metadata import Op, Outcome

from ..records import Commits

__all__ = [
    "ARGUMENTS",
    "DECIDED",
    "ENTRIES",
    "ENTRY",
    "ENTRY_FIELDS",
    "FRAMED",
    "OPS",
    "SCORED",
    "SCORES",
    "WORD",
    "audit_records",
    "columns",
    "describe",
    "device_entries",
    "device_ops",
    "device_scores",
    "golden_op",
    "mask_ops",
    "result_record",
]

#: Fields of a page word and of a frame entry, as commit records name them.
WORD = ("state", "place", "format_k", "format_v", "last_step", "pinned")
ENTRY_FIELDS = ("in_use", "dirty", "redirty", "used", "source", "squeue", "page", "valid", "poison")

#: What the audit takes of a `result` record: the golden op's arguments in their order, and what was
#: decided; of a `frame` record the op and the entry; of a `score` record.
ARGUMENTS = tuple(
    f"op.{name}"
    for name in (
        "kind session squeue page kv_line write partial poison has_write write_slot "
        + "origin.ld_id origin.tag refused no_memory "
        + "miss pool frame failed miss_kind lost source slot mass delta written"
    ).split()
)
DECIDED = (
    "outcome",
    *(f"old.{name}" for name in WORD),
    *(f"word.{name}" for name in WORD),
    *("changed", "first", "frame", "pool", "miss", "corrected", "uncorrected"),
)
FRAMED = tuple(
    f"op.{name}"
    for name in (
        "kind outcome use write partial poison answer origin.ld_id origin.tag frame squeue page "
        + "kv_line"
    ).split()
)
ENTRIES = tuple(f"entry.{name}" for name in ENTRY_FIELDS)
SCORED = ("kind", "squeue", "page", "score", "profile")

_ARGUMENTS = tuple(
    (
        "session squeue page kv_line write partial poison miss pool frame failed miss_kind lost "
        + "source slot mass delta written"
    ).split()
)
_TAKEN = ("changed", "first", "frame", "miss")

#: Columns of an op's row.
OPS = (
    "kind",
    "outcome",
    *(f"op.{name}" for name in _ARGUMENTS),
    *_TAKEN,
    *(f"old.{name}" for name in WORD),
    *(f"word.{name}" for name in WORD),
)
#: Columns of a frame entry's row: the op that used it, then the entry after it.
ENTRY = ("kind", "frame", *ENTRY_FIELDS)
#: Columns of a score's row.
SCORES = ("event", "squeue", "page", "score", "profile")

_PAGE = ("squeue", "page")
_COUNTS = {
    Op.READ: (*_PAGE, "kv_line", "partial", "poison"),
    Op.WRITE: (*_PAGE, "kv_line", "partial", "poison"),
    Op.GRANT: ("miss", "pool", "failed"),
    Op.FILL: (*_PAGE, "miss", "frame", "failed", "miss_kind", "lost", "source"),
    Op.REPLAY: (*_PAGE, "kv_line", "write", "partial", "poison", "miss", "frame", "failed"),
    Op.FLIP: (*_PAGE, "miss", "frame", "failed"),
    Op.SCAN: (*_PAGE, "mass"),
    Op.CLAIM: (*_PAGE, "delta", "mass"),
    Op.RELEASE: (*_PAGE, "frame", "failed", "written", "mass"),
    Op.FREE: ("pool", "frame"),
    Op.PREFETCH: (*_PAGE, "source"),
    Op.MASS: (*_PAGE, "mass"),
    Op.STEP: ("session", "delta"),
    Op.OPEN: ("session",),
    Op.CLOSE: ("session",),
    Op.CLOSED: ("session",),
}
_WORDLESS = (Op.NOP, Op.GRANT, Op.FREE, Op.STEP, Op.OPEN, Op.CLOSE, Op.CLOSED)
_TAKES_MISS = (int(Outcome.MISSED), int(Outcome.PARKED))


def _masks() -> np.ndarray:
    """[kind, column]: 1 where the column counts."""
    masks = np.zeros((len(Op), len(OPS)), np.int64)
    masks[:, :2] = 1
    for kind in Op:
        columns = [f"op.{name}" for name in _COUNTS.get(kind, _PAGE)] + ["frame"]
        if kind not in _WORDLESS:
            columns += ["changed", "first", "miss", *OPS[OPS.index("old.state") :]]
        masks[kind, [OPS.index(name) for name in columns]] = 1
    return masks


_MASKS = _masks()
_HOT_MASK = np.array(
    [
        name
        in (
            "kind",
            "outcome",
            "op.squeue",
            "op.page",
            "op.kv_line",
            "op.partial",
            "op.poison",
            "changed",
            "first",
            "frame",
        )
        for name in OPS
    ],
    np.int64,
)
_FRAME, _MISS = OPS.index("frame"), OPS.index("miss")


def golden_op(result: Result) -> tuple:
    """A row of what the golden model did; `mask_ops` drops what does not count."""
    op = result.op
    return (
        op.kind,
        result.outcome,
        op.session,
        op.squeue,
        op.page,
        op.kv_line,
        op.write,
        op.partial,
        op.poison,
        op.miss,
        op.pool,
        op.frame,
        op.failed,
        op.miss_kind,
        op.lost,
        op.source,
        op.slot,
        op.mass,
        op.delta,
        op.written,
        result.changed,
        result.first,
        result.frame,
        result.miss,
        *result.old,
        *result.word,
    )


def mask_ops(rows: np.ndarray, hot: np.ndarray) -> np.ndarray:
    """The rows with everything at zero that does not count for their kind and outcome; of a `hot`
    one counts what its lane looks at."""
    kind, outcome = rows[:, 0], rows[:, 1]
    rows = rows * np.where(hot[:, None], _HOT_MASK, _MASKS[kind])
    rows[~np.isin(outcome, _TAKES_MISS), _MISS] = 0
    # A frame is taken or used by these alone.
    taken = np.isin(kind, (Op.READ, Op.WRITE)) & np.isin(
        outcome, (Outcome.HIT, Outcome.ALLOCATED)
    ) | np.isin(kind, (Op.GRANT, Op.CLAIM)) & (outcome == Outcome.DONE)
    taken |= (kind == Op.PREFETCH) & (outcome == Outcome.MISSED)
    rows[~taken, _FRAME] = 0
    return rows


def columns(records, names) -> list[tuple]:
    """These fields of each of the records."""
    return list(zip(*(wide_integers(records[name]).tolist() for name in names), strict=True))


def result_record(arguments: tuple, decided: tuple) -> ResultRecord:
    """For the audit, of one record's `ARGUMENTS` and `DECIDED`."""
    # `origin` is the caller's own in a golden op: the tag goes along in the record.
    op = GoldenOp(*arguments[:11], None, *arguments[12:])
    old, word = Word(*decided[1:7]), Word(*decided[7:13])
    return ResultRecord(op, arguments[11], decided[0], old, word, *decided[13:])


def audit_records(commits: Commits) -> Iterator[ResultRecord | FrameRecord | ScoreRecord]:
    """All records, in the endpoint's order, as the audit takes them."""
    ops, decided = columns(commits.result, ARGUMENTS), columns(commits.result, DECIDED)
    framed, entries = columns(commits.frame, FRAMED), columns(commits.frame, ENTRIES)
    scored, hot = columns(commits.score, SCORED), commits.frame.hot.tolist()
    for of, i in zip(*map(np.ndarray.tolist, commits.sequence()), strict=True):
        if of == 0:
            yield result_record(ops[i], decided[i])
        elif of == 1:
            yield FrameRecord(hot[i], *framed[i], entries[i])
        else:
            yield ScoreRecord(*scored[i])


def device_ops(
    commits: Commits, types: np.ndarray, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all ops in a commit stream, unmasked, and which came by the hot lane. `types` and
    `index` are the stream's order."""
    results, frames = commits.result, commits.frame
    frame_hot = (
        frames.hot[index * (types == 1)] & (types == 1)
        if len(frames)
        else np.zeros(len(types), bool)
    )
    is_op = (types == 0) | frame_hot
    of, at = types[is_op], index[is_op]
    rows = np.zeros((len(of), len(OPS)), np.int64)
    slow, hot = of == 0, of == 1
    for column, name in enumerate(OPS):
        if len(results):
            rows[slow, column] = results["op.kind" if name == "kind" else name][at[slow]]
        if hot.any() and (field := _HOT_FIELDS.get(name)):
            rows[hot, column] = frames[field][at[hot]]
    return rows, hot


_HOT_FIELDS = {
    "kind": "op.kind",
    "outcome": "op.outcome",
    "op.squeue": "op.squeue",
    "op.page": "op.page",
    "op.kv_line": "op.kv_line",
    "op.partial": "op.partial",
    "op.poison": "op.poison",
    "frame": "op.frame",
}


def device_entries(commits: Commits, types: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Rows of all frame entries that ops used; `valid` and `poison` as Python integers where they
    take more than 63 bits."""
    frames = commits.frame
    at = index[types == 1]
    if not len(at):
        return np.zeros((0, len(ENTRY)), np.int64)
    at = at[frames["op.use"][at] == 1]
    columns = [
        wide_integers(
            frames[f"entry.{name}" if name not in ("kind", "frame") else f"op.{name}"][at]
        )
        for name in ENTRY
    ]
    return np.stack(
        [
            np.asarray(column, object if any(c.dtype == object for c in columns) else np.int64)
            for column in columns
        ],
        axis=1,
    )


def device_scores(commits: Commits, types: np.ndarray, index: np.ndarray) -> np.ndarray:
    at = index[types == 2]
    return np.stack(
        [commits.score[name][at] for name in ("kind", "squeue", "page", "score", "profile")], axis=1
    )


def wide_integers(column: np.ndarray) -> np.ndarray:
    """A field of any width as integers, one a record; Python's where one has a 64th bit."""
    if column.ndim == 1:
        return column if column.max(initial=0) < 1 << 63 else column.astype(object)
    return np.array([int.from_bytes(row.tobytes(), "little") for row in column] or [0], object)[
        : len(column)
    ]


def describe(names: tuple[str, ...], device, golden) -> str:
    """The columns in which two rows differ."""
    return ", ".join(
        f"{name}: device {d}, golden {g}"
        for name, d, g in zip(names, device, golden, strict=True)
        if d != g
    )
