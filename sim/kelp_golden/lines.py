# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""What the host's lines hold, as the device keeps them: every write makes a *version*, and a read
is answered with one (spec §5).

Where a page happens to be (DRAM, flash, on its way) changes nothing about its lines, so the golden
model keeps none of that here. Encoding and decoding are put off to :meth:`Lines.resolve`, which
does all versions of one format at once; only a partial write needs its line's value there and then.
"""

from __future__ import annotations

import numpy as np

from kelp_spec.formats import ELEMENTS, LINE_BYTES, Format

from . import codec

__all__ = ["POISONED", "ZEROS", "Lines"]

ZEROS = -1  #: version of a line that was never written
POISONED = -2  #: version that stands for a poisoned answer


class Lines:
    """Versions of host lines. A line is named by any hashable key (squeue, page, line)."""

    def __init__(self):
        self._current: dict = {}
        self._data: list[bytes] = []  # as the host wrote it
        self._kind: list[int] = []  # format << 1 | host type

    def write(self, key, data: bytes, fmt: int, host_type: int) -> int:
        """A whole line of 64 bytes; returns its version."""
        version = len(self._data)
        self._data.append(data)
        self._kind.append(fmt << 1 | host_type)
        self._current[key] = version
        return version

    def merge(
        self, key, data: bytes, byte_enable: int, fmt: int, host_type: int, *, fresh: bool
    ) -> int:
        """A partial write: read what is stored (zeros when `fresh`), replace the enabled bytes,
        store the whole line again."""
        before = bytes(LINE_BYTES) if fresh else self.resolve([self.current(key)])[0].tobytes()
        return self.write(
            key,
            bytes(
                d if byte_enable >> i & 1 else b
                for i, (b, d) in enumerate(zip(before, data, strict=True))
            ),
            fmt,
            host_type,
        )

    def current(self, key) -> int:
        """The version that a read of a valid line returns. A line that became valid with its page's
        loss, or by a write that was poison, was never written and is ZEROS under its poison."""
        return self._current.get(key, ZEROS)

    def forget(self, keys) -> None:
        """The lines of a page that is gone."""
        for key in keys:
            self._current.pop(key, None)

    def resolve(self, versions) -> np.ndarray:
        """What the host reads for each version: uint16 [n, 32]."""
        versions = np.asarray(versions, np.int64)
        out = np.zeros((len(versions), ELEMENTS), np.uint16)
        real = versions >= 0
        wanted, where = np.unique(versions[real], return_inverse=True)
        if not len(wanted):
            return out
        raw = np.frombuffer(b"".join(self._data[v] for v in wanted.tolist()), "<u2").reshape(
            -1, ELEMENTS
        )
        kinds = np.array([self._kind[v] for v in wanted.tolist()])
        values = np.empty_like(raw)
        for kind in np.unique(kinds).tolist():
            mine = kinds == kind
            payload, scale = codec.encode(
                np.ascontiguousarray(raw[mine]), kind & 1, Format(kind >> 1)
            )
            values[mine] = codec.decode(payload, scale, kind & 1, Format(kind >> 1))
        out[real] = values[where]
        return out
