# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Block traces: which KV blocks requests asked for, as columns in one file, and importers of what
others record.

Format ``kelp-blocks-1``, an .npz: ``meta`` a JSON string {format, source, block_tokens, references,
blocks}; ``time_ms`` [references] int64, never falling; ``request`` [references] int64, never
falling; ``block`` [references] int64, 0 … blocks − 1, numbered in order of first use. Whatever is
wrong with a file is a :class:`~kelp_sim.trace.trace.TraceError` of one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kelp_spec.files import whole_file

from ..trace.trace import TraceError, parsed, printable, read_arrays, read_meta

__all__ = ["FORMAT", "IMPORTERS", "BlockTrace", "read_blocks"]

FORMAT = "kelp-blocks-1"
_COLUMNS = ("time_ms", "request", "block")
_LATEST = 1e15  #: of a timestamp, in whatever unit: as milliseconds it is an int64
#: libCacheSim's oracleGeneral record: seconds, object, bytes, next access.
_ORACLE = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])


@dataclass(frozen=True, eq=False)
class BlockTrace:
    source: str
    block_tokens: int  #: 0 where the source does not say
    time_ms: np.ndarray
    request: np.ndarray
    block: np.ndarray

    @property
    def blocks(self) -> int:
        return int(self.block.max()) + 1

    @classmethod
    def of(cls, source: str, block_tokens: int, time_ms, request, names) -> BlockTrace:
        """``names``: any sortable values; they become numbers in order of first use."""
        _, first, inverse = np.unique(np.asarray(names), return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return cls(
            source,
            block_tokens,
            np.asarray(time_ms, np.int64),
            np.asarray(request, np.int64),
            rank[inverse.ravel()],
        )

    def write(self, path: Path) -> None:
        meta = {
            "format": FORMAT,
            "source": self.source,
            "block_tokens": self.block_tokens,
            "references": len(self.block),
            "blocks": self.blocks,
        }
        columns = {c: getattr(self, c) for c in _COLUMNS}
        with whole_file(path) as file:
            np.savez_compressed(file, meta=np.array(json.dumps(meta)), **columns)


def read_blocks(path: Path) -> BlockTrace:
    """The block trace at ``path``, checked."""
    columns = read_arrays(path, ("meta", *_COLUMNS))
    meta = read_meta(path, columns.pop("meta"), FORMAT)
    count = columns["block"].size
    for name, column in columns.items():
        if column.dtype != np.int64 or column.shape != (count,) or not count:
            raise TraceError(
                f"{path}: {name} is {column.dtype}{list(column.shape)}; the format asks for "
                + f"int64[{count or 'at least 1'}]"
            )
        if name != "block" and (np.diff(column) < 0).any():
            raise TraceError(
                f"{path}: {name} falls at reference {int(np.argmax(np.diff(column) < 0)) + 1}"
            )
    firsts = np.maximum.accumulate(columns["block"])
    if columns["block"].min() < 0 or firsts[0] != 0 or (np.diff(firsts) > 1).any():
        raise TraceError(f"{path}: blocks are not numbered from 0 in order of first use")
    if (meta.get("references"), meta.get("blocks")) != (count, int(firsts[-1]) + 1):
        raise TraceError(
            f"{path}: meta states {meta.get('references')} references to {meta.get('blocks')} "
            + f"blocks; there are {count} to {int(firsts[-1]) + 1}"
        )
    block_tokens = _tokens(meta.get("block_tokens", 0), f"{path}: meta.block_tokens")
    return BlockTrace(str(meta.get("source")), block_tokens, **columns)


def _tokens(value, name: str) -> int:
    """A count of a block's tokens, 0 where it is not known."""
    if type(value) is not int or not 0 <= value < 1 << 24:
        raise TraceError(f"{name} is {printable(repr(value))}; legal: 0 … {(1 << 24) - 1}")
    return value


def _file(path: Path) -> None:
    """Refuses what is there and is none; /dev/zero has no line, and no end."""
    if path.is_dir() or path.is_char_device():
        kind = "directory" if path.is_dir() else "device"
        raise TraceError(f"{path}: is a {kind}; a file is expected")


def _lines(path: Path) -> Iterator[tuple[int, dict]]:
    _file(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    entry = parsed(line)
                except ValueError as error:
                    raise TraceError(f"{path}: line {number} is not JSON: {error}") from None
                if not isinstance(entry, dict):
                    raise TraceError(f"{path}: line {number} is no JSON object")
                yield number, entry


def _requests(
    path: Path,
    source: str,
    block_tokens: int,
    hashes: str,
    per_second: int,
    tokens: str | None = None,
) -> BlockTrace:
    times, requests, names = [], [], []
    numbers: dict[str, int] = {}
    for index, (number, entry) in enumerate(_lines(path)):
        blocks, at = entry.get(hashes), entry.get("timestamp")
        timed = isinstance(at, int | float) and not isinstance(at, bool) and abs(at) < _LATEST
        if not isinstance(blocks, list) or not timed:
            raise TraceError(f"{path}: line {number} has no timestamp or no list {hashes}")
        if tokens is not None:
            said = entry.get(tokens, block_tokens)
            block_tokens = _tokens(said, f"{path}: line {number}: {tokens}")
        names += [numbers.setdefault(str(b), len(numbers)) for b in blocks]
        times += [round(at * 1000 / per_second)] * len(blocks)
        requests += [index] * len(blocks)
    if not names:
        raise TraceError(f"{path}: names no block")
    order = np.argsort(np.array(times), kind="stable")
    renumbered = np.unique(np.array(requests)[order], return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(renumbered[1]))
    return BlockTrace.of(
        source, block_tokens, np.array(times)[order], rank[renumbered[2]], np.array(names)[order]
    )


def _mooncake(path: Path) -> BlockTrace:
    """Mooncake's released traces: milliseconds, `hash_ids` of 512-token prefix blocks."""
    return _requests(path, "mooncake", 512, "hash_ids", 1000)


def _lmcache(path: Path) -> BlockTrace:
    """LMCache's lookup log (`--lookup-hash-log-dir`): seconds, `chunk_hashes` of `chunk_size`
    tokens."""
    return _requests(path, "lmcache", 256, "chunk_hashes", 1, tokens="chunk_size")


def _oracle(path: Path) -> BlockTrace:
    """libCacheSim's oracleGeneral: 24-byte records."""
    _file(path)
    size = path.stat().st_size
    if not size or size % _ORACLE.itemsize:
        raise TraceError(
            f"{path}: {size} bytes are no whole records of {_ORACLE.itemsize} bytes "
            + "(compressed files must be unpacked first)"
        )
    records = np.fromfile(path, _ORACLE)
    if (np.diff(records["time"].astype(np.int64)) < 0).any():
        raise TraceError(f"{path}: time falls, so this is no oracleGeneral trace")
    return BlockTrace.of(
        "oracleGeneral",
        0,
        records["time"].astype(np.int64) * 1000,
        np.arange(len(records)),
        records["object"],
    )


#: Source → importer of a file of its kind.
IMPORTERS: dict[str, Callable[[Path], BlockTrace]] = {
    "mooncake": _mooncake,
    "lmcache": _lmcache,
    "oracle": _oracle,
}
