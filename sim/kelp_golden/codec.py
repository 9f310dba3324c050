# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Stored formats, the executable specification (spec §5; docs/arithmetic.md, "Stored formats").

:func:`encode` and :func:`decode` work on whole arrays of host lines in plain integer arithmetic. A
finite number is held as the pair (*sig*, *exp*) that means sig · 2^exp, so every step below is
exact until the one rounding, which is :func:`_rounded_quotient`.

Whatever depends on one code alone (an fp8 code, a scale and a stored element) is computed once for
every possible code and looked up.
"""

import functools

import numpy as np

from kelp_spec.formats import ELEMENTS, INT4_MANTISSA_BITS, SCALE_NAN, Format, HostType

__all__ = ["decode", "encode", "round_trip"]

#: Host type → (mantissa bits, exponent bias).
_HOST = {HostType.FP16: (10, 15), HostType.BF16: (7, 127)}
#: fp8 format → (mantissa bits, exponent bias, code of the largest finite value, code of NaN).
_FP8 = {Format.FP8_E4M3: (3, 7, 0x7E, 0x7F), Format.FP8_E5M2: (2, 15, 0x7B, 0x7E)}
_HOST_INF = {HostType.FP16: 0x7C00, HostType.BF16: 0x7F80}
_HOST_NAN = {HostType.FP16: 0x7E00, HostType.BF16: 0x7FC0}


def encode(lines: np.ndarray, host_type: HostType, fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """Host lines ``uint16[N, 32]`` → payload ``uint8[N, fmt.payload_bytes]`` and scale
    ``uint16[N]`` (0 where the format has none)."""
    lines = _checked(lines, np.uint16, ELEMENTS, "lines")
    no_scale = np.zeros(len(lines), np.uint16)
    match Format(fmt):
        case Format.RAW16:
            return lines.astype("<u2").view(np.uint8), no_scale
        case Format.FP8_E4M3 | Format.FP8_E5M2:
            return _fp8_of_host(HostType(host_type), fmt)[lines], no_scale
        case Format.INT8:
            q, scale = _encode_int8(lines, HostType(host_type))
            return q.astype(np.int8).view(np.uint8), scale
        case Format.INT4:
            q, scale = _encode_int4(lines, HostType(host_type))
            nibbles = q.astype(np.int8).view(np.uint8) & 15
            return nibbles[:, 0::2] | nibbles[:, 1::2] << 4, scale


def decode(payload: np.ndarray, scale: np.ndarray, host_type: HostType, fmt: Format) -> np.ndarray:
    """Payload ``uint8[N, fmt.payload_bytes]`` and scale ``uint16[N]`` → host lines ``uint16[N,
    32]``. Every code has a value."""
    fmt, host_type = Format(fmt), HostType(host_type)
    payload = _checked(payload, np.uint8, fmt.payload_bytes, "payload")
    scale = np.asarray(scale, np.uint16)
    if scale.shape != payload.shape[:1]:
        raise ValueError(
            f"scale has shape {scale.shape}; legal: ({len(payload)},), one for each payload"
        )
    match fmt:
        case Format.RAW16:
            return payload.view("<u2").astype(np.uint16)
        case Format.FP8_E4M3 | Format.FP8_E5M2:
            return _host_of_fp8(host_type, fmt)[payload]
        case Format.INT8:
            return _host_of_int8(host_type)[(scale[:, None] & 255) << 8 | payload]
        case Format.INT4:
            nibbles = np.stack([payload & 15, payload >> 4], axis=2).reshape(-1, ELEMENTS)
            return _host_of_int4(host_type)[(scale[:, None] & 2047) << 4 | nibbles]


def round_trip(lines: np.ndarray, host_type: HostType, fmt: Format) -> np.ndarray:
    """What a host reads of `lines` that it wrote: ``uint16[N, 32]``."""
    return decode(*encode(lines, host_type, fmt), host_type, fmt)


# - host line → stored -----------------------------------------------------------------------------


def _encode_int8(lines: np.ndarray, host_type: HostType) -> tuple[np.ndarray, np.ndarray]:
    """MXINT8: E = clamp(floor(log2 amax), -127, 127), all-zero -127; q = RNE(x · 2^(6-E)) clamped
    to ±127; scale = E + 127."""
    amax, nan = _amax(lines, host_type)
    amax_sig, amax_exp = (table[amax] for table in _host_values(host_type))
    exponent = np.clip(_floor_log2(amax_sig) + amax_exp, -127, 127)
    exponent[amax == 0] = -127
    sig, exp = (table[lines] for table in _host_values(host_type))
    # x · 2^(6-E) = sig · 2^up / 2^down. |sig| < 2^11, so 13 places down leave nothing, and at most
    # 16 up make an 8-bit q.
    shift = exp + (6 - exponent[:, None]).astype(np.int16)
    q = _rounded_shift(sig, np.clip(shift, 0, 16), np.clip(-shift, 0, 13))
    q = np.clip(q, -127, 127)
    q[nan] = 0
    return q, np.where(nan, SCALE_NAN, exponent + 127).astype(np.uint16)


def _encode_int4(lines: np.ndarray, host_type: HostType) -> tuple[np.ndarray, np.ndarray]:
    """S = (8+m)/8 · 2^(E-127), the smallest with 7S >= amax; q = RNE(x / S) clamped to ±7; scale =
    m << 8 | E."""
    amax, nan = _amax(lines, host_type)
    amax_sig, amax_exp = (table[amax].astype(np.int64) for table in _host_values(host_type))
    # 7 · (8+m) · 2^(E-130) >= sig · 2^exp. Write sig · 2^exp as f · 2^e with f an integer of 16
    # bits: then m = 0…7 of e' = e+9…e+10 hold the smallest that is large enough, and E below 0 is
    # not a scale.
    normal = np.where(amax > 0, 15 - _floor_log2(amax_sig), 0)
    f, e = amax_sig << normal, amax_exp - normal
    best = np.full(len(lines), -1)
    for above in (10, 9):
        for m in range(7, -1, -1):
            enough = 7 * (8 + m) << above >= f
            best = np.where(
                enough & (e + above + 130 >= 0), (e + above + 130) << INT4_MANTISSA_BITS | m, best
            )
    # None was left when amax is so small that E = 0, m = 0 is more than enough.
    best[(best < 0) | (amax == 0)] = 0
    exponent, m = best >> INT4_MANTISSA_BITS, best & 7
    sig, exp = (table[lines] for table in _host_values(host_type))
    # x / S = sig · 2^up / ((8+m) · 2^down). |sig| < 2^11 and 8+m >= 8, so 10 places down leave
    # nothing.
    shift = exp + (130 - exponent[:, None]).astype(np.int16)
    up, down = np.clip(shift, 0, 16).astype(np.int32), np.clip(-shift, 0, 10).astype(np.int32)
    q = _rounded_quotient(sig.astype(np.int32) << up, (8 + m[:, None]).astype(np.int32) << down)
    q = np.clip(q, -7, 7)
    q[nan] = 0
    return q, np.where(nan, SCALE_NAN, m << 8 | exponent).astype(np.uint16)


def _amax(lines: np.ndarray, host_type: HostType) -> tuple[np.ndarray, np.ndarray]:
    """Code of the largest magnitude of each line, ±Inf counted as the largest finite value; and
    whether the line holds a NaN."""
    # Magnitudes are ordered as their codes are.
    amax = (lines & 0x7FFF).max(axis=1, initial=0)
    inf = _HOST_INF[host_type]
    return np.minimum(amax, inf - 1), amax > inf


@functools.cache
def _host_values(host_type: HostType) -> tuple[np.ndarray, np.ndarray]:
    """(sig, exp) of all 65536 host codes; ±Inf as ± the largest finite value, NaN as 0."""
    bits, bias = _HOST[host_type]
    code = np.arange(1 << 16)
    magnitude = np.minimum(code & 0x7FFF, _HOST_INF[host_type] - 1)
    field, fraction = magnitude >> bits, magnitude & (1 << bits) - 1
    sig = np.where(field > 0, fraction | 1 << bits, fraction)
    exp = np.maximum(field, 1) - bias - bits
    sig = np.where(code & 0x8000, -sig, sig)
    sig[_is_host_nan(host_type)] = 0
    return sig.astype(np.int16), exp.astype(np.int16)


def _is_host_nan(host_type: HostType) -> np.ndarray:
    return np.arange(1 << 16) & 0x7FFF > _HOST_INF[host_type]


@functools.cache
def _fp8_of_host(host_type: HostType, fmt: Format) -> np.ndarray:
    """The fp8 code of each of the 65536 host codes: RNE, saturating, NaN kept with its sign."""
    bits, bias, largest, nan = _FP8[fmt]
    sig, exp = (table.astype(np.int64) for table in _host_values(host_type))
    sign, sig = (np.arange(1 << 16) >> 15 << 7), abs(sig)
    # Round to the spacing of the values around x: 2^(floor(log2 x) - bits), and nothing finer than
    # the subnormals'.
    exponent = np.maximum(np.where(sig > 0, _floor_log2(sig) + exp, -1000), 1 - bias)
    shift = exp - (exponent - bits)
    rounded = _rounded_quotient(sig << np.clip(shift, 0, 16), np.int64(1) << np.clip(-shift, 0, 20))
    # `rounded` carries the hidden bit of a normal value, which counts one exponent up, and so does
    # a carry out of rounding.
    magnitude = rounded + (exponent + bias - 1 << bits)
    code = np.minimum(magnitude, largest)
    return (sign | np.where(_is_host_nan(host_type), nan, code)).astype(np.uint8)


# - stored → host line -----------------------------------------------------------------------------


@functools.cache
def _host_of_fp8(host_type: HostType, fmt: Format) -> np.ndarray:
    bits, bias, _, nan = _FP8[fmt]
    code = np.arange(256)
    magnitude = code & 0x7F
    field, fraction = magnitude >> bits, magnitude & (1 << bits) - 1
    sig = np.where(field > 0, fraction | 1 << bits, fraction)
    host = _to_host(sig, np.maximum(field, 1) - bias - bits, host_type)
    if fmt == Format.FP8_E5M2:
        # E5M2 is IEEE-like: 7C is infinity, which the encoder never writes, and 7D…7F are NaN.
        host = np.where(magnitude == 0x7C, _HOST_INF[host_type], host)
        host = np.where(magnitude > 0x7C, _HOST_NAN[host_type], host)
    else:
        host = np.where(magnitude == nan, _HOST_NAN[host_type], host)
    return (code >> 7 << 15 | host).astype(np.uint16)


@functools.cache
def _host_of_int8(host_type: HostType) -> np.ndarray:
    """Host code by scale << 8 | q, for every scale byte and every q (-128, which the encoder never
    writes, is worth -128)."""
    scale, q = np.divmod(np.arange(1 << 16), 256)
    return _product((q ^ 128) - 128, scale - 127 - 6, scale == 255, host_type)


@functools.cache
def _host_of_int4(host_type: HostType) -> np.ndarray:
    """Host code by m << 12 | E << 4 | q, for every scale and every q (-8, which the encoder never
    writes, is worth -8)."""
    scale, q = np.divmod(np.arange(1 << 15), 16)
    m, exponent = scale >> 8, scale & 255
    return _product(((q ^ 8) - 8) * (8 + m), exponent - 127 - 3, exponent == 255, host_type)


def _product(
    value: np.ndarray, exp: np.ndarray, nan: np.ndarray, host_type: HostType
) -> np.ndarray:
    """value · 2^exp in the host type; the sign of a zero is plus, and so is a NaN's."""
    host = np.where(value < 0, 0x8000, 0) | _to_host(abs(value), exp, host_type)
    return np.where(nan, _HOST_NAN[host_type], host).astype(np.uint16)


def _to_host(sig: np.ndarray, exp: np.ndarray, host_type: HostType) -> np.ndarray:
    """The host code of sig · 2^exp >= 0: RNE, subnormals kept, finite overflow clamped to the
    largest finite value."""
    bits, bias = _HOST[host_type]
    sig, exp = sig.astype(np.int64), exp.astype(np.int64)
    exponent = np.maximum(np.where(sig > 0, _floor_log2(sig) + exp, -1000), 1 - bias)
    shift = exp - (exponent - bits)
    rounded = _rounded_quotient(sig << np.clip(shift, 0, 16), np.int64(1) << np.clip(-shift, 0, 20))
    return np.minimum(rounded + (exponent + bias - 1 << bits), _HOST_INF[host_type] - 1)


# - arithmetic -------------------------------------------------------------------------------------


def _floor_log2(n: np.ndarray) -> np.ndarray:
    """floor(log2 n) of integers 1…2^16; 0 for 0."""
    n = np.asarray(n)
    result = np.zeros(n.shape, np.int64)
    for power in range(1, 17):
        result += n >= 1 << power
    return result


def _rounded_quotient(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator to the nearest integer, ties to the even one; denominator > 0."""
    quotient, rest = np.divmod(2 * numerator + denominator, 2 * denominator)
    # rest == 0: exactly halfway, and the upper neighbour was taken.
    return quotient - ((rest == 0) & (quotient & 1 == 1))


def _rounded_shift(value: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """As :func:`_rounded_quotient` for value · 2^up / 2^down with one of the two zero, without a
    division."""
    value = value.astype(np.int32) << up
    half = (1 << down.astype(np.int32)) >> 1
    odd = value >> down & 1
    # Just under a half, plus one if the integer below is odd: exactly halfway then goes up from an
    # odd and stays on an even integer.
    return value + np.where(down > 0, half - 1 + odd, 0) >> down


def _checked(array: np.ndarray, dtype: type, width: int, name: str) -> np.ndarray:
    array = np.ascontiguousarray(array)
    if array.dtype != dtype or array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"{name} is {array.dtype}{list(array.shape)}; legal: {np.dtype(dtype)}[N, {width}]"
        )
    return array
