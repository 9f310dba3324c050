# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Commit records as the compiled driver logs them: whole payloads, fields taken apart when somebody
asks, for all records at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kelp_hw.export.packing import Packing

__all__ = ["Commits", "Records"]


class Records:
    """`n` payloads of one layout. `records["op.kind"]` is that field of all of them, cached.

    Fields of up to 63 bits are int64, of 64 bits uint64, wider ones uint8[n, bytes] with the lowest
    byte first.

    Attributes
    ----------
    cycle : int64[n]
        The endpoint's time of each record.
    order : int64[n]
        Its place among the records of all types, since the driver began.
    hot : bool[n]
        Came by the hot lane (frame records; False elsewhere).
    words : uint32[n, words]
    names : tuple of str
        The fields; those of nested structs have a dot.
    """

    def __init__(self, layout, words, cycle, order, hot):
        self._fields = Packing(layout).fields
        self.names = tuple(self._fields)
        self.words, self.cycle, self.order, self.hot = words, cycle, order, hot
        self._cache = {}

    def __len__(self):
        return len(self.cycle)

    def __contains__(self, name):
        return name in self._fields

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._cache:
            if name not in self._fields:
                raise KeyError(
                    f"{name!r} is not a field of these records; fields: {', '.join(self.names)}"
                )
            low, mask = self._fields[name]
            self._cache[name] = self._extract(low, mask.bit_length())
        return self._cache[name]

    def _extract(self, low, bits):
        pieces = [self._word(low + at, min(32, bits - at)) for at in range(0, bits, 32)]
        if bits > 64:
            return np.stack(pieces, axis=1).view(np.uint8)[:, : -(-bits // 8)]
        value = pieces[0].astype(np.uint64)
        if len(pieces) > 1:
            value |= pieces[1].astype(np.uint64) << np.uint64(32)
        return value if bits == 64 else value.view(np.int64)

    def _word(self, low, bits):
        at, shift = divmod(low, 32)
        value = self.words[:, at] >> np.uint32(shift)
        if shift + bits > 32:
            value = value | self.words[:, at + 1] << np.uint32(32 - shift)
        return value & np.uint32((1 << bits) - 1)


@dataclass(frozen=True)
class Commits:
    """The commit stream of a while, by type."""

    result: Records
    frame: Records
    score: Records

    def __len__(self):
        return len(self.result) + len(self.frame) + len(self.score)

    def sequence(self) -> tuple[np.ndarray, np.ndarray]:
        """(type, index) of all records in the endpoint's order; type 0 is `result`, 1 `frame`, 2
        `score`."""
        parts = (self.result, self.frame, self.score)
        order = np.concatenate([p.order for p in parts])
        types = np.concatenate([np.full(len(p), i, np.uint8) for i, p in enumerate(parts)])
        index = np.concatenate([np.arange(len(p)) for p in parts])
        along = np.argsort(order, kind="stable")
        return types[along], index[along]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """("result" | "frame" | "score", index) in the endpoint's order."""
        names = ("result", "frame", "score")
        for kind, index in zip(*self.sequence(), strict=True):
            yield names[kind], int(index)
