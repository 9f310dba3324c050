# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A second opinion on the stored formats: ml_dtypes' conversions and float64, in which every
product here is exact.

It shares nothing with the golden model but the sizes of the formats. Lines with Inf are handled as
spec §5 says (ml_dtypes and NumPy know no saturation, so values are clamped first); in lines with
NaN the NaN is put in by hand.
"""

import ml_dtypes
import numpy as np

from kelp_spec.formats import ELEMENTS, Format, HostType

__all__ = ["oracle_decode", "oracle_encode"]

_HOST = {HostType.FP16: np.float16, HostType.BF16: ml_dtypes.bfloat16}
_FP8 = {
    Format.FP8_E4M3: (ml_dtypes.float8_e4m3fn, 0x7F),
    Format.FP8_E5M2: (ml_dtypes.float8_e5m2, 0x7E),
}


def _values(lines: np.ndarray, host_type: HostType) -> np.ndarray:
    """The lines' values as float64, ±Inf as ± the largest finite value."""
    largest = float(ml_dtypes.finfo(_HOST[host_type]).max)
    # A signalling NaN is a value here, not an event.
    with np.errstate(invalid="ignore"):
        return np.clip(lines.view(_HOST[host_type]).astype(np.float64), -largest, largest)


def oracle_encode(
    lines: np.ndarray, host_type: HostType, fmt: Format
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`kelp_golden.codec.encode`."""
    x, count = _values(lines, host_type), len(lines)
    if fmt == Format.RAW16:
        return lines.view(np.uint8), np.zeros(count, np.uint16)
    if fmt in _FP8:
        dtype, nan = _FP8[fmt]
        largest = float(ml_dtypes.finfo(dtype).max)
        # float64 → float16/bfloat16 values are exact in float32, and from there ml_dtypes rounds
        # once.
        with np.errstate(invalid="ignore"):
            code = np.clip(x, -largest, largest).astype(np.float32).astype(dtype).view(np.uint8)
        return np.where(np.isnan(x), (lines >> 8 & 0x80) | nan, code).astype(np.uint8), np.zeros(
            count, np.uint16
        )
    amax = np.abs(x).max(axis=1)
    nan = np.isnan(amax)
    amax[nan] = 0
    if fmt == Format.INT8:
        exponent = np.where(amax > 0, np.clip(np.frexp(amax)[1] - 1, -127, 127), -127)
        unit, scale, limit = np.ldexp(1.0, exponent - 6), exponent + 127, 127
    else:
        # Of all scales in ascending order, the first that is large enough.
        scales = np.ldexp((8.0 + np.arange(255 * 8) % 8) / 8, np.arange(255 * 8) // 8 - 127)
        index = np.searchsorted(7 * scales, amax)
        unit, scale, limit = scales[index], index // 8 | index % 8 << 8, 7
    x[nan] = 0
    q = np.clip(np.rint(x / unit[:, None]), -limit, limit).astype(np.int8)
    scale = np.where(nan, 255, scale).astype(np.uint16)
    if fmt == Format.INT8:
        return q.view(np.uint8), scale
    return ((q[:, 0::2] & 15) | q[:, 1::2] << 4).view(np.uint8), scale


def oracle_decode(
    payload: np.ndarray, scale: np.ndarray, host_type: HostType, fmt: Format
) -> np.ndarray:
    """As :func:`kelp_golden.codec.decode`."""
    host = _HOST[host_type]
    nan = {HostType.FP16: 0x7E00, HostType.BF16: 0x7FC0}[host_type]
    if fmt == Format.RAW16:
        return payload.view(np.uint16)
    with np.errstate(invalid="ignore", over="ignore"):
        if fmt in _FP8:
            x = payload.view(_FP8[fmt][0]).astype(np.float32)
            return np.where(
                np.isnan(x),
                (payload.astype(np.uint16) >> 7 << 15) | nan,
                x.astype(host).view(np.uint16),
            ).astype(np.uint16)
        exponent = (scale & 255).astype(np.int64)[:, None]
        if fmt == Format.INT8:
            x = np.ldexp(payload.view(np.int8).astype(np.float64), exponent - 127 - 6)
        else:
            q = np.empty((len(payload), ELEMENTS), np.int8)
            q[:, 0::2], q[:, 1::2] = (payload << 4).view(np.int8) >> 4, payload.view(np.int8) >> 4
            x = np.ldexp(q * (8.0 + (scale >> 8 & 7)[:, None]), exponent - 127 - 3)
        # float32 holds these products exactly unless they are beyond every host type, or far below
        # the least.
        largest = float(ml_dtypes.finfo(host).max)
        line = np.clip(x, -largest, largest).astype(np.float32).astype(host)
        return np.where(exponent == 255, nan, line.view(np.uint16)).astype(np.uint16)
