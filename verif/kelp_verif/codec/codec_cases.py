# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Stimulus for the codecs: exhaustive sets, given in chunks of bounded size, and the random mixture
that every bench shares."""

from collections.abc import Iterator

import numpy as np

from kelp_spec.formats import ELEMENTS, LINE_BYTES, Format, HostType

__all__ = [
    "CHUNK",
    "all_codes",
    "all_stored",
    "below_maximum",
    "block_maximum",
    "mixed_lines",
    "mixed_stored",
]

CHUNK = 1 << 17
_FRACTION_BITS = {HostType.FP16: 10, HostType.BF16: 7}
_INF = {HostType.FP16: 0x7C00, HostType.BF16: 0x7F80}
_LANES = np.arange(ELEMENTS)


def all_codes() -> np.ndarray:
    """Lines in which every 16-bit code is once in every lane, ``uint16[65536, 32]``; codes in a
    line have nothing to do with each other."""
    return (np.arange(1 << 16)[:, None] + 2047 * _LANES).astype(np.uint16)


def block_maximum(
    host_type: HostType, rng: np.random.Generator, lanes: int
) -> Iterator[np.ndarray]:
    """Lines with every code, NaN and Inf too, as the largest magnitude in every lane.

    ``lanes`` elements of a line, evenly spread, hold the code or its negative; the others are
    smaller: 1 is the strictest and takes 2 million lines, 32 takes 65536.
    """
    codes = np.arange(1 << 16)
    for shift in range(ELEMENTS // lanes):
        has_code = _LANES % (ELEMENTS // lanes) == shift
        for part in np.array_split(codes, -(-len(codes) // CHUNK)):
            magnitude = part[:, None] & 0x7FFF
            # Mostly near the maximum, so that a lane that is compared wrongly shows.
            spread = rng.integers(1, 16, (len(part), ELEMENTS))
            lower = np.maximum(
                magnitude - 1 - (rng.integers(0, 1 << 15, spread.shape) >> spread), 0
            )
            lower |= rng.integers(0, 2, spread.shape) << 15
            sign = rng.integers(0, 2, spread.shape) << 15
            first = np.argmax(has_code)
            sign[:, first] = 0
            yield np.where(has_code, part[:, None] ^ sign, lower).astype(np.uint16)


def below_maximum(
    host_type: HostType, rng: np.random.Generator, reach: int
) -> Iterator[np.ndarray]:
    """Lines with every finite code in every lane, below a maximum in another lane of each larger
    exponent, at most ``reach`` above its own.

    The maximum's lane goes round, its fraction and sign are random; for the largest exponent field
    it is Inf.
    """
    bits, inf = _FRACTION_BITS[host_type], _INF[host_type]
    for field in range(1, (inf >> bits) + 1):
        least = max(0, field - reach) << bits
        codes = np.arange(least, field << bits)
        codes = np.concatenate([codes, codes | 0x8000])
        # In lane l of line j comes the next code that the lane has not had, except in its turn to
        # hold the maximum.
        count = -(-len(codes) * ELEMENTS // (ELEMENTS - 1)) + 1
        for start in range(0, count, CHUNK):
            j = np.arange(start, min(start + CHUNK, count))[:, None]
            turns = (j + ELEMENTS - 1 - _LANES) // ELEMENTS
            lines = codes[(j - turns) % len(codes)]
            fraction = rng.integers(0, 1 << bits, len(j)) if field << bits < inf else 0
            maximum = field << bits | fraction | rng.integers(0, 2, len(j)) << 15
            yield np.where(j % ELEMENTS == _LANES, maximum[:, None], lines).astype(np.uint16)


def all_stored(fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """Payloads and scales with every stored element under every scale in every lane; what a format
    does not use of the scale is random."""
    rng = np.random.default_rng(7)
    if fmt == Format.RAW16:
        lines = all_codes()
        return lines.view(np.uint8), rng.integers(0, 1 << 16, len(lines)).astype(np.uint16)
    scales = {Format.INT8: 256, Format.INT4: 2048}.get(fmt, 1)
    elements = 1 << fmt.element_bits
    scale, first = (
        grid.ravel() for grid in np.meshgrid(np.arange(scales), np.arange(elements), indexing="ij")
    )
    stored = (first[:, None] + 11 * _LANES) % elements
    payload = stored[:, 0::2] | stored[:, 1::2] << 4 if fmt == Format.INT4 else stored
    noise = rng.integers(0, 1 << 16, len(scale)) & ~(scales - 1)
    return payload.astype(np.uint8), (scale | noise).astype(np.uint16)


def mixed_lines(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lines, host types and formats in any order: unrelated codes, narrow and wide blocks, small
    values, zeros, Inf, few NaN."""
    host_type = rng.integers(0, len(HostType), count)
    inf = np.where(host_type == HostType.BF16, _INF[HostType.BF16], _INF[HostType.FP16])[:, None]
    shape = (count, ELEMENTS)
    centre = rng.integers(0, inf, (count, 1))
    unrelated = np.minimum(rng.integers(0, 1 << 15, shape), inf)
    narrow = np.clip(centre + rng.integers(-400, 400, shape), 0, inf)
    wide = np.clip(centre - rng.integers(0, inf // 4, shape), 0, inf)
    small = rng.integers(0, 1 << 15, shape) >> rng.integers(1, 15, (count, 1))
    sparse = np.where(rng.random(shape) < 0.9, 0, np.minimum(small, inf))
    kind = rng.integers(0, 5, (count, 1))
    magnitude = np.select(
        [kind == n for n in range(4)], [narrow, wide, np.minimum(small, inf), sparse], unrelated
    )
    nan = rng.random(shape) < 0.0005
    magnitude = np.where(nan, inf + rng.integers(1, 128, shape), magnitude)
    lines = magnitude | rng.integers(0, 2, shape) << 15
    return lines.astype(np.uint16), host_type, rng.integers(0, len(Format), count)


def mixed_stored(
    rng: np.random.Generator, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Payloads of a whole line's width, scales, host types and formats in any order, nothing left
    out."""
    payload = rng.integers(0, 256, (count, LINE_BYTES), dtype=np.uint8)
    scale = rng.integers(0, 1 << 16, count).astype(np.uint16)
    return (
        payload,
        scale,
        rng.integers(0, len(HostType), count),
        rng.integers(0, len(Format), count),
    )
