# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Formats a vector may be stored in, as functions from float16 [..., head_dim] to what comes back,
float32.

``raw16 fp8_e4m3 fp8_e5m2 int8 int4``: the device's, by the golden codec, 32 elements a line. A head
that is no whole number of lines is filled up with zeros, as the host does. ``int4+h``, ``int8+h``:
the same behind a Hadamard transform over the whole head, which the host undoes (for keys it can
turn the query instead). ``int8+c``, ``int4+c``: the same behind a scale for each channel, fixed by
the first tokens, which the host divides by and, for keys, multiplies the query by.

For comparison, not in hardware: ``mxfp4`` (OCP: blocks of 32, E2M1, E8M0 scale), ``nvfp4`` (blocks
of 16, E2M1, E4M3 scale, one float32 scale for each head), both also with ``+h``; of six bits
``mxfp6_e2m3`` and ``mxfp6_e3m2`` (OCP, as mxfp4) and ``int6`` (int4's scale, 31 steps);
``int4_page``: int4 whose scales lie along the other axis, one for each channel of a page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kelp_golden import codec
from kelp_spec.formats import ELEMENTS, Format, HostType

__all__ = ["DEVICE", "NAMES", "bits", "channel_scales", "hadamard", "nvfp4", "stored"]

DEVICE = tuple(fmt.label for fmt in Format)
NAMES = (
    *DEVICE,
    *("int8+h", "int4+h", "int8+c", "int4+c", "int4_page"),
    *("mxfp6_e2m3", "mxfp6_e3m2", "int6", "mxfp4", "mxfp4+h", "nvfp4", "nvfp4+h"),
)

PAGE_TOKENS = 16  #: of `int4_page`
CALIBRATION = 64  #: tokens that fix the scales of `+c`


def bits(name: str) -> float:
    """Stored bits of an element, its share of the scale included."""
    base = name.partition("+")[0]
    if base in DEVICE:
        fmt = Format.named(base)
        return fmt.element_bits + 8 * fmt.scale_bytes / ELEMENTS
    return _BITS[base]


def stored(name: str, values: np.ndarray) -> np.ndarray:
    """What is read back of ``values`` (float16 [..., head_dim]); float32."""
    base, _, before = name.partition("+")
    if name not in NAMES:
        raise ValueError(f"format {name!r} is unknown; legal: {', '.join(NAMES)}")
    if before == "h":
        turn = hadamard(values.shape[-1])
        return stored(base, (values.astype(np.float32) @ turn).astype(np.float16)) @ turn
    if before == "c":
        scale = channel_scales(values)
        return stored(base, (values / scale).astype(np.float16)) * scale
    if base in DEVICE:
        return _through_codec(Format.named(base), values)
    if base == "int4_page":
        return _by_channel(values)
    return _COMPARED[base](values.astype(np.float32))


def channel_scales(values: np.ndarray) -> np.ndarray:
    """What ``+c`` divides each channel by, float32 [..., 1, head_dim]: the root of its mean square
    over the first tokens. The two channels that RoPE turns together have one scale."""
    power = (values[..., :CALIBRATION, :].astype(np.float32) ** 2).mean(axis=-2, keepdims=True)
    pairs = power.reshape(*power.shape[:-1], 2, -1).mean(axis=-2)
    scale = np.sqrt(np.concatenate([pairs, pairs], axis=-1))
    return np.where(scale > 0, scale, 1).astype(np.float32)


def hadamard(size: int) -> np.ndarray:
    """The orthonormal, symmetric Hadamard matrix of a power of two."""
    if size < 1 or size & (size - 1):
        raise ValueError(
            f"a Hadamard transform over {size} elements is refused; legal: a power of two"
        )
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix / np.sqrt(size)).astype(np.float32)


def _through_codec(fmt: Format, values: np.ndarray) -> np.ndarray:
    if fmt is Format.RAW16:
        return values.astype(np.float32)
    padding = -values.shape[-1] % ELEMENTS
    lines = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, padding)]) if padding else values
    codes = np.ascontiguousarray(lines, np.float16).view(np.uint16).reshape(-1, ELEMENTS)
    payload, scale = codec.encode(codes, HostType.FP16, fmt)
    back = codec.decode(payload, scale, HostType.FP16, fmt).view(np.float16).reshape(lines.shape)
    return back[..., : values.shape[-1]].astype(np.float32)


def _by_channel(values: np.ndarray) -> np.ndarray:
    """int4 with one scale for each channel of :data:`PAGE_TOKENS` tokens; the last page may be
    short."""
    tokens, dim = values.shape[-2:]
    padding = -tokens % PAGE_TOKENS
    pages = np.pad(values, [(0, 0)] * (values.ndim - 2) + [(0, padding), (0, 0)])
    columns = np.swapaxes(pages.reshape(*pages.shape[:-2], -1, PAGE_TOKENS, dim), -1, -2)
    # The codec fills a short block up with zeros.
    back = _through_codec(Format.INT4, columns)
    return np.swapaxes(back, -1, -2).reshape(pages.shape)[..., :tokens, :]


def _mx(values: np.ndarray, number: _Number) -> np.ndarray:
    """An OCP MX format: scale 2^(⌊log2 amax⌋ − the element's largest exponent) of 32 elements,
    saturating, ties to the even code."""
    blocks = _blocks(values, 32)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    exponent = np.floor(np.log2(np.where(amax > 0, amax, 1))) - np.floor(np.log2(number.most))
    scale = np.exp2(np.clip(exponent, -127, 127)).astype(np.float32)
    return _unblocked(_rounded(blocks / scale, number) * scale, values.shape)


def _int6(values: np.ndarray) -> np.ndarray:
    """31 steps of int4's scale, (8 + m) / 8 · 2^e, the smallest that reaches amax."""
    blocks = _blocks(values, ELEMENTS)
    amax = np.abs(blocks).max(axis=-1, keepdims=True) / 31
    power = np.exp2(np.floor(np.log2(np.where(amax > 0, amax, 1))))
    scale = np.ceil(np.where(amax > 0, amax, 1) / power * 8) / 8 * power
    return _unblocked(np.rint(blocks / scale) * scale, values.shape)


def nvfp4(values: np.ndarray) -> np.ndarray:
    """NVFP4: amax / 6 of 16 elements as an E4M3 number, times one float32 for each head (the first
    axis but last two), such that the largest is 448."""
    whole = np.abs(values).max(axis=(-2, -1), keepdims=True) / (6 * 448)
    whole = np.where(whole > 0, whole, 1).astype(np.float32)
    blocks = _blocks(values / whole, 16)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = _rounded(amax / 6, _E4M3)
    back = np.where(scale > 0, _rounded(blocks / np.where(scale > 0, scale, 1), _E2M1) * scale, 0)
    return _unblocked(back, values.shape) * whole


def _blocks(values: np.ndarray, size: int) -> np.ndarray:
    if values.shape[-1] % size:
        raise ValueError(f"head_dim = {values.shape[-1]} is refused; legal: a multiple of {size}")
    return values.reshape(*values.shape[:-1], -1, size)


def _unblocked(blocks: np.ndarray, shape) -> np.ndarray:
    return blocks.reshape(shape).astype(np.float32)


class _Number(NamedTuple):
    """A small floating-point number."""

    mantissa: int  #: bits
    least: int  #: exponent of the smallest normal number
    most: float  #: the largest number


_E2M1, _E4M3 = _Number(1, 0, 6.0), _Number(3, -6, 448.0)
_E2M3, _E3M2 = _Number(3, 0, 7.5), _Number(2, -2, 28.0)


def _rounded(values: np.ndarray, number: _Number) -> np.ndarray:
    """The nearest number; ties to the even code; larger ones to the largest."""
    magnitude = np.abs(values)
    exponent = np.floor(np.log2(np.where(magnitude > 0, magnitude, 1)))
    step = np.exp2(np.maximum(exponent, number.least) - number.mantissa)
    return np.sign(values) * np.minimum(np.rint(magnitude / step) * step, number.most)


_COMPARED = {
    "mxfp4": lambda values: _mx(values, _E2M1),
    "mxfp6_e2m3": lambda values: _mx(values, _E2M3),
    "mxfp6_e3m2": lambda values: _mx(values, _E3M2),
    "int6": _int6,
    "nvfp4": nvfp4,
}
_BITS = {
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
    "mxfp6_e2m3": 6 + 8 / 32,
    "mxfp6_e3m2": 6 + 8 / 32,
    "int6": 6 + 16 / 32,
    "int4_page": 4 + 16 / PAGE_TOKENS,
}
