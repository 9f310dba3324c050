# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Where a session's keys and values lie in the address map, as whole arrays; and 16-bit host types
for NumPy, which has no bfloat16 of its own."""

from __future__ import annotations

import functools

import numpy as np

from kelp_spec.config import Config
from kelp_spec.formats import ELEMENTS, LINE_BYTES, HostType

from .arguments import unmasked
from .shape import ModelShape

__all__ = ["Layout", "bf16_to_float32", "float32_to_bf16", "to_bits", "to_float32"]


def float32_to_bf16(x) -> np.ndarray:
    """float32 → bfloat16 bit patterns, uint16: round to nearest even, NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(x), bits >> 16 | 0x40, rounded).astype(np.uint16)


def bf16_to_float32(bits) -> np.ndarray:
    """bfloat16 bit patterns, uint16 → float32, exactly."""
    return (np.ascontiguousarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def to_bits(array, host_type: HostType, name: str) -> np.ndarray:
    """Elements as uint16 bit patterns; ValueError for what is not the session's type.

    Taken as they are: two-byte integers, and other types of two bytes that are numbers; but float16
    only where the session is fp16, and another package's bfloat16 only where it is bf16. What has
    the other byte order is turned round.
    """
    array = np.asarray(unmasked(name, array))
    other = "bfloat16" if host_type == HostType.FP16 else "float16"
    kind = array.dtype.type
    if array.dtype.itemsize != 2 or kind.__name__ == other or issubclass(kind, np.flexible):
        legal = (
            "float16 or uint16 bit patterns"
            if host_type == HostType.FP16
            else "uint16 bit patterns or a bfloat16 type (cxl_kv.float32_to_bf16 makes them)"
        )
        raise ValueError(f"{name} of dtype {array.dtype} is refused; this session takes {legal}")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).view(np.uint16)


def to_float32(bits, host_type: HostType) -> np.ndarray:
    """Bit patterns of host elements, uint16 → float32, exactly."""
    bits = np.ascontiguousarray(bits, np.uint16)
    if host_type == HostType.FP16:
        return bits.view(np.float16).astype(np.float32)
    return bf16_to_float32(bits)


class Layout:
    """Addresses of one session's lines.

    Parameters
    ----------
    config : Config
    session : int
    shape : ModelShape
    """

    def __init__(self, config: Config, session: int, shape: ModelShape):
        self.config, self.session, self.shape = config, session, shape
        self.page_tokens = shape.page_tokens_in(config)
        self.token_lines = shape.token_lines
        # An address is its queue half's first one, and its token's line within that half.
        queues = np.arange(shape.queues).reshape(shape.layers, shape.kv_heads, 1)
        first = (session << config.queue_bits) + queues << config.page_bits + config.line_bits
        halves = np.arange(shape.halves) << config.half_line_bits
        self._first = (first + halves << 6).astype(np.uint64)
        self._latest = (0, 0, 0), np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self._in_half = _in_half(config.pages, config.line_bits, self.page_tokens, self.token_lines)

    def addresses(self, layers, heads, positions) -> np.ndarray:
        """uint64[layers, heads, halves, positions, token_lines]; each argument is an array of
        indices or a slice."""
        first = self._first[layers][:, heads]
        return first[..., None, None] + self._in_half[positions]

    def spans(self, layers, heads, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """The lines of positions start … stop − 1, in the order of :meth:`addresses`, page by page:
        where each page's begin, uint64[n], and how many they are, int64[n]."""
        halves = self._first[layers][:, heads].reshape(-1, 1)
        latest, of = self._latest, (start, stop, len(halves))
        if latest[0] != of:  # layer after layer asks for the same
            latest = self._latest = of, *self._spans(*of)
        _, begin, counts = latest
        return (halves + begin).reshape(-1), counts

    def _spans(self, start: int, stop: int, halves: int) -> tuple[np.ndarray, np.ndarray]:
        """uint64[pages]: where each page begins in its half; int64[halves · pages]: its lines."""
        tokens, lines = self.page_tokens, self.token_lines
        begin = self._in_half[start // tokens * tokens : stop : tokens, 0].copy()
        counts = np.full(len(begin), tokens * lines)
        if len(begin):
            begin[0] = self._in_half[start, 0]
            counts[0] -= start % tokens * lines
            counts[-1] -= -stop % tokens * lines
        return begin, np.tile(counts, halves)

    def place(self, address: int) -> dict[str, int]:
        """session, layer, head and page of a line."""
        c = self.config
        x = int(address) >> 6 + c.line_bits
        page, x = x & c.pages - 1, x >> c.page_bits
        layer, head = divmod(x & (1 << c.queue_bits) - 1, self.shape.kv_heads)
        return dict(session=self.session, layer=layer, head=head, page=page)

    def to_lines(self, k: np.ndarray, v: np.ndarray | None) -> np.ndarray:
        """uint16[layers, heads, positions, head_dim] of K and V → uint8[n, 64] in the order of
        :meth:`addresses`; padded with zeros to whole lines."""
        shape = (*k.shape[:2], self.shape.halves, k.shape[2], self.token_lines * ELEMENTS)
        if self.shape.halves == 1 and self.shape.head_dim == shape[-1]:
            return np.ascontiguousarray(k).view(np.uint8).reshape(-1, LINE_BYTES)
        rows = (
            np.empty(shape, np.uint16)
            if self.shape.head_dim == shape[-1]
            else np.zeros(shape, np.uint16)
        )
        rows[:, :, 0, :, : self.shape.head_dim] = k
        if v is not None:
            rows[:, :, 1, :, : self.shape.head_dim] = v
        return rows.view(np.uint8).reshape(-1, LINE_BYTES)

    def from_lines(
        self, lines: np.ndarray, layers: int, heads: int, positions: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The way back; K and V are views of `lines`."""
        rows = lines.view(np.uint16).reshape(
            layers, heads, self.shape.halves, positions, self.token_lines * ELEMENTS
        )[..., : self.shape.head_dim]
        return rows[:, :, 0], rows[:, :, 1] if self.shape.halves == 2 else None


@functools.lru_cache(8)
def _in_half(pages: int, line_bits: int, page_tokens: int, token_lines: int) -> np.ndarray:
    """uint64[positions, token_lines]: each token's lines within its half of the queue, of all
    positions that the pages hold. Shared by sessions of one shape."""
    in_page = np.arange(page_tokens * token_lines).reshape(1, page_tokens, token_lines)
    x = (np.arange(pages) << line_bits)[:, None, None] + in_page << 6
    table = x.astype(np.uint64).reshape(-1, token_lines)
    table.flags.writeable = False
    return table
