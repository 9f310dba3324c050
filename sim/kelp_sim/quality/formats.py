# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""Formats a vector may be stored in, as functions from float16 [..., head_dim] to what comes back,
float32.

``raw16 fp8_e4m3 fp8_e5m2 int8 int4``: the device's, by the golden codec, 32 elements a line. A head
that is no whole number of lines is filled up with zeros, as the host does. ``int4+h``, ``int8+h``:
the same behind a Hadamard transform over the whole head, which the host undoes (for keys it can
turn the query instead). For comparison, not in hardware: ``mxfp4`` (OCP: blocks of 32, E2M1, E8M0
scale) and ``nvfp4`` (blocks of 16, E2M1, E4M3 scale, one float32 scale for each head), both also
with ``+h``.
"""

from __future__ import annotations

import numpy as np

from kelp_golden import codec
from kelp_spec.formats import ELEMENTS, Format, HostType

__all__ = ["DEVICE", "NAMES", "bits", "hadamard", "mxfp4", "nvfp4", "stored"]

DEVICE = tuple(fmt.label for fmt in Format)
NAMES = (*DEVICE, "int8+h", "int4+h", "mxfp4", "mxfp4+h", "nvfp4", "nvfp4+h")

_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_E2M1_MIDDLES = (_E2M1[1:] + _E2M1[:-1]) / 2


def bits(name: str) -> float:
    """Stored bits of an element, its share of the scale included."""
    base = name.removesuffix("+h")
    if base in DEVICE:
        fmt = Format.named(base)
        return fmt.element_bits + 8 * fmt.scale_bytes / ELEMENTS
    return {"mxfp4": 4 + 8 / 32, "nvfp4": 4 + 8 / 16}[base]


def stored(name: str, values: np.ndarray) -> np.ndarray:
    """What is read back of ``values`` (float16 [..., head_dim]); float32."""
    base = name.removesuffix("+h")
    if name not in NAMES:
        raise ValueError(f"format {name!r} is unknown; legal: {', '.join(NAMES)}")
    if name != base:
        turn = hadamard(values.shape[-1])
        return stored(base, (values.astype(np.float32) @ turn).astype(np.float16)) @ turn
    if base in DEVICE:
        return _through_codec(Format.named(base), values)
    return (mxfp4 if base == "mxfp4" else nvfp4)(values.astype(np.float32))


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


def mxfp4(values: np.ndarray) -> np.ndarray:
    """OCP MXFP4: scale 2^(⌊log2 amax⌋ − 2) of 32 elements, saturating, ties to the even code."""
    blocks = _blocks(values, 32)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = np.exp2(np.clip(np.floor(np.log2(np.where(amax > 0, amax, 1))) - 2, -127, 127)).astype(
        np.float32
    )
    return _unblocked(_e2m1(blocks / scale) * scale, values.shape)


def nvfp4(values: np.ndarray) -> np.ndarray:
    """NVFP4: amax / 6 of 16 elements as an E4M3 number, times one float32 for each head (the first
    axis but last two), such that the largest is 448."""
    whole = np.abs(values).max(axis=(-2, -1), keepdims=True) / (6 * 448)
    whole = np.where(whole > 0, whole, 1).astype(np.float32)
    blocks = _blocks(values / whole, 16)
    amax = np.abs(blocks).max(axis=-1, keepdims=True)
    scale = _e4m3(amax / 6)
    back = np.where(scale > 0, _e2m1(blocks / np.where(scale > 0, scale, 1)) * scale, 0)
    return _unblocked(back, values.shape) * whole


def _blocks(values: np.ndarray, size: int) -> np.ndarray:
    if values.shape[-1] % size:
        raise ValueError(f"head_dim = {values.shape[-1]} is refused; legal: a multiple of {size}")
    return values.reshape(*values.shape[:-1], -1, size)


def _unblocked(blocks: np.ndarray, shape) -> np.ndarray:
    return blocks.reshape(shape).astype(np.float32)


def _e2m1(values: np.ndarray) -> np.ndarray:
    """Nearest of ±0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to the even code; larger ones to 6."""
    magnitude = np.abs(values)
    low = np.searchsorted(_E2M1_MIDDLES, magnitude, side="left")
    tied = (low < len(_E2M1_MIDDLES)) & (
        magnitude == _E2M1_MIDDLES[np.minimum(low, len(_E2M1_MIDDLES) - 1)]
    )
    return np.sign(values) * _E2M1[low + (tied & (low % 2 == 1))]


def _e4m3(values: np.ndarray) -> np.ndarray:
    """Nearest E4M3 number of values ≥ 0, saturating at 448."""
    exponent = np.maximum(np.floor(np.log2(np.where(values > 0, values, 1))), -6)
    step = np.exp2(exponent - 3)
    return np.minimum(np.rint(values / step) * step, 448.0).astype(np.float32)
