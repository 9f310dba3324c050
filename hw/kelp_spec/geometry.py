# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Where a stored page's lines and scales lie in its frame, and which pool it takes (docs/design.md
§2). Plain Python.

A frame holds K data lines, V data lines, then scales from the next whole line: K's, then V's. K and
V may be stored in different formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .formats import LINE_BYTES, Format, data_lines

__all__ = ["LinePlace", "StoredPage", "smallest_pool", "stored_lines"]


class LinePlace(NamedTuple):
    """Where one host line is stored, in its frame."""

    offset: int  #: DRAM line of the payload
    part: int  #: which of the payloads in that DRAM line
    scale_offset: int  #: DRAM line of the scale; 0 when the format has none
    scale_byte: int  #: byte of the scale in that line; 0 when the format has none


@dataclass(frozen=True)
class StoredPage:
    """A page of `used_lines` host lines per half, K stored in `format_k`, V in `format_v`; `k_only`
    stores no V."""

    format_k: Format
    format_v: Format
    used_lines: int
    k_only: bool = False

    @property
    def v_lines(self) -> int:
        return 0 if self.k_only else self.used_lines

    @property
    def v_base(self) -> int:
        """DRAM line of V's first payload."""
        return data_lines(self.format_k, self.used_lines)

    @property
    def scale_base(self) -> int:
        """DRAM line of the first scale."""
        return self.v_base + data_lines(self.format_v, self.v_lines)

    @property
    def v_scale_start(self) -> int:
        """Byte of V's first scale, from scale_base; aligned to a V scale."""
        k_bytes = self.used_lines * self.format_k.scale_bytes
        unit = self.format_v.scale_bytes or 1
        return -(-k_bytes // unit) * unit

    @property
    def lines(self) -> int:
        """DRAM lines of the whole stored page."""
        k_bytes = self.used_lines * self.format_k.scale_bytes
        v_bytes = self.v_lines * self.format_v.scale_bytes
        return self.scale_base + -(
            -(self.v_scale_start + v_bytes if v_bytes else k_bytes) // LINE_BYTES
        )

    def place(self, kv: int, line: int) -> LinePlace:
        """Place of line `line` of K (kv 0) or V (kv 1)."""
        if not 0 <= line < (self.v_lines if kv else self.used_lines):
            raise ValueError(
                f"line = {line} of {'V' if kv else 'K'} is not in a page of {self.used_lines} "
                + "lines per half"
            )
        fmt = self.format_v if kv else self.format_k
        per = fmt.lines_per_dram_line
        byte = (self.v_scale_start if kv else 0) + line * fmt.scale_bytes
        offset = (self.v_base if kv else 0) + line // per
        if not fmt.scale_bytes:
            return LinePlace(offset, line % per, 0, 0)
        return LinePlace(
            offset, line % per, self.scale_base + byte // LINE_BYTES, byte % LINE_BYTES
        )


def stored_lines(format_k: Format, format_v: Format, used_lines: int, k_only: bool = False) -> int:
    """DRAM lines of a stored page (per 128 host lines: raw16 128, fp8 64, int8 66, int4 36)."""
    return StoredPage(format_k, format_v, used_lines, k_only).lines


def smallest_pool(frame_lines: tuple[int, ...], lines: int) -> int:
    """Index of the pool with the smallest frame that holds `lines`, lower index first; ValueError
    when none does."""
    fitting = [(size, pool) for pool, size in enumerate(frame_lines) if size >= lines]
    if not fitting:
        raise ValueError(f"a stored page of {lines} lines fits no pool; frames hold {frame_lines}")
    return min(fitting)[1]
