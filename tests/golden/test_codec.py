# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""Stored formats: their sizes, the golden model against ml_dtypes, and what must hold of any
codec."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from kelp_golden.codec import decode, encode, round_trip
from kelp_spec.formats import Format, HostType, data_lines, scale_lines, stored_page_lines
from kelp_verif.codec.codec_cases import (
    all_codes,
    all_stored,
    below_maximum,
    block_maximum,
    mixed_lines,
)
from kelp_verif.codec.codec_oracle import oracle_decode, oracle_encode

by_host = pytest.mark.parametrize("host_type", HostType, ids=lambda h: h.name.lower())
by_format = pytest.mark.parametrize("fmt", Format, ids=lambda f: f.label)
QUANTISED = [f for f in Format if f != Format.RAW16]
by_quantised = pytest.mark.parametrize("fmt", QUANTISED, ids=lambda f: f.label)

INF = {HostType.FP16: 0x7C00, HostType.BF16: 0x7F80}
NAN = {HostType.FP16: 0x7E00, HostType.BF16: 0x7FC0}

any_line = nps.arrays(np.uint16, (1, 32), elements=st.integers(0, 0xFFFF))


@st.composite
def finite_lines(draw, host_type):
    """A line of finite elements around a common magnitude, as KV lines are, or of any finite
    elements."""
    top = INF[host_type] - 1
    low = draw(st.integers(0, top))
    magnitude = draw(
        nps.arrays(
            np.uint16,
            (1, 32),
            elements=st.integers(low, min(top, low + draw(st.sampled_from([0, 50, 3000, top])))),
        )
    )
    return magnitude | draw(nps.arrays(np.uint16, (1, 32), elements=st.sampled_from([0, 0x8000])))


def as_float(lines, host_type):
    with np.errstate(invalid="ignore"):
        if host_type == HostType.BF16:
            return (lines.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return lines.view(np.float16).astype(np.float64)


# ---- sizes ----


@pytest.mark.parametrize(
    "fmt, lines",
    [
        (Format.RAW16, 128),
        (Format.FP8_E4M3, 64),
        (Format.FP8_E5M2, 64),
        (Format.INT8, 66),
        (Format.INT4, 36),
    ],
)
def test_stored_page_of_128_lines(fmt, lines):
    assert stored_page_lines(fmt, 128) == lines == data_lines(fmt, 128) + scale_lines(fmt, 128)


def test_partly_filled_dram_lines_count_whole():
    assert [data_lines(Format.INT4, n) for n in range(6)] == [0, 1, 1, 1, 1, 2]
    assert [scale_lines(Format.INT8, n) for n in (0, 1, 64, 65)] == [0, 1, 1, 2]
    with pytest.raises(ValueError, match="host_lines = -1 .*legal"):
        data_lines(Format.INT8, -1)


def test_formats_by_name():
    assert [Format.named(f.label) for f in Format] == list(Format)
    with pytest.raises(
        ValueError, match="'int5' is unknown; legal: raw16, fp8_e4m3, fp8_e5m2, int8, int4"
    ):
        Format.named("int5")


# ---- golden model against ml_dtypes ----


@by_host
@by_format
def test_every_code_against_ml_dtypes(fmt, host_type):
    lines = all_codes()[::32] if fmt in (Format.INT8, Format.INT4) else all_codes()
    for got, want in zip(
        encode(lines, host_type, fmt), oracle_encode(lines, host_type, fmt), strict=True
    ):
        assert np.array_equal(got, want)


@by_host
@pytest.mark.parametrize("fmt", [Format.INT8, Format.INT4], ids=lambda f: f.label)
def test_blocks_against_ml_dtypes(fmt, host_type):
    rng = np.random.default_rng(21)
    chunks = [
        *block_maximum(host_type, rng, lanes=32),
        *below_maximum(host_type, rng, reach=2),
        mixed_lines(rng, 50_000)[0],
    ]
    lines = np.concatenate(chunks)
    for got, want in zip(
        encode(lines, host_type, fmt), oracle_encode(lines, host_type, fmt), strict=True
    ):
        assert np.array_equal(got, want)


@by_host
@by_format
def test_every_stored_code_against_ml_dtypes(fmt, host_type):
    payload, scale = all_stored(fmt)
    assert np.array_equal(
        decode(payload, scale, host_type, fmt), oracle_decode(payload, scale, host_type, fmt)
    )


# ---- properties ----


@given(line=any_line, host_type=st.sampled_from(HostType), fmt=st.sampled_from(QUANTISED))
def test_stored_twice_is_stored_once(line, host_type, fmt):
    """What comes back out is stored without further loss."""
    if fmt == Format.INT4:
        # int4 holds this only where an element uses the whole range and S · q is exact in the host
        # type; see the next test.
        line = np.where((line & 0x7FFF) >= INF[host_type], 0x4000, line).astype(np.uint16)
        line[0, 0] |= 0x2000
    payload, scale = encode(line, host_type, fmt)
    if (
        fmt == Format.INT4
        and not np.isin(payload & 15, (7, 9)).any()
        and not np.isin(payload >> 4, (7, 9)).any()
    ):
        return
    first = decode(payload, scale, host_type, fmt)
    assert np.array_equal(first, round_trip(first, host_type, fmt))


def test_int4_that_does_not_reach_seven_may_move_again():
    """1.99 needs S = 20/64, where it is a 6; 6 S alone would do with S = 18/64. docs/arithmetic.md
    says so."""
    line = np.full((1, 32), 0x3FFF, np.uint16)
    payload, scale = encode(line, HostType.FP16, Format.INT4)
    assert (payload == 0x66).all()
    assert (
        encode(decode(payload, scale, HostType.FP16, Format.INT4), HostType.FP16, Format.INT4)[1][0]
        != scale[0]
    )


@given(data=st.data(), host_type=st.sampled_from(HostType))
def test_error_bounds(data, host_type):
    """docs/arithmetic.md, "What follows"; beside what the host type itself rounds."""
    line = data.draw(finite_lines(host_type))
    x = as_float(line, host_type)
    amax = abs(x).max()
    least = {HostType.FP16: 2.0**-24, HostType.BF16: 2.0**-133}[host_type]
    for fmt, share in ((Format.INT8, 1 / 128), (Format.INT4, 9 / 112)):
        y = as_float(round_trip(line, host_type, fmt), host_type)
        floor = 2.0**-127 if host_type == HostType.BF16 else 0
        assert (abs(x - y) <= max(amax * share, floor) + least).all()


@given(
    a=st.integers(0, 0x7FFF),
    b=st.integers(0, 0x7FFF),
    host_type=st.sampled_from(HostType),
    fmt=st.sampled_from(QUANTISED),
)
def test_order_is_kept(a, b, host_type, fmt):
    """Of two elements of a line, the larger does not come back smaller; and a line and its negative
    come back as negatives."""
    top = INF[host_type]
    line = np.zeros((1, 32), np.uint16)
    line[0, :3] = min(a, top), min(b, top), max(min(a, top), min(b, top))
    out = round_trip(line, host_type, fmt)
    assert (out[0, 0] <= out[0, 1]) == (line[0, 0] <= line[0, 1]) or out[0, 0] == out[0, 1]
    mirrored = round_trip(line ^ 0x8000, host_type, fmt)
    assert np.array_equal(out & 0x7FFF, mirrored & 0x7FFF)


@given(line=any_line, host_type=st.sampled_from(HostType))
def test_raw16_is_the_line_itself(line, host_type):
    assert np.array_equal(round_trip(line, host_type, Format.RAW16), line)


# ---- the corners that the specification names ----


@by_host
@by_quantised
def test_zeros_come_back_as_zeros(fmt, host_type):
    payload, scale = encode(np.zeros((1, 32), np.uint16), host_type, fmt)
    assert not payload.any() and not scale.any()
    assert not decode(payload, scale, host_type, fmt).any()


@by_host
@by_quantised
def test_infinity_counts_as_the_largest_finite_value(fmt, host_type):
    inf = INF[host_type]
    lines = np.array([[inf, inf | 0x8000] * 16, [inf - 1, inf - 1 | 0x8000] * 16], np.uint16)
    payload, scale = encode(lines, host_type, fmt)
    assert np.array_equal(payload[0], payload[1]) and scale[0] == scale[1]


@by_host
def test_nan_of_fp8_keeps_its_sign(host_type):
    line = np.zeros((1, 32), np.uint16)
    line[0, :2] = INF[host_type] + 1, 0xFFFF
    for fmt, nan in ((Format.FP8_E4M3, 0x7F), (Format.FP8_E5M2, 0x7E)):
        payload, scale = encode(line, host_type, fmt)
        assert list(payload[0, :3]) == [nan, nan | 0x80, 0]
        assert list(decode(payload, scale, host_type, fmt)[0, :3]) == [
            NAN[host_type],
            NAN[host_type] | 0x8000,
            0,
        ]


@by_host
@pytest.mark.parametrize("fmt", [Format.INT8, Format.INT4], ids=lambda f: f.label)
def test_one_nan_makes_the_block_positive_nan(fmt, host_type):
    line = np.full((1, 32), 0x3C00, np.uint16)
    line[0, 31] = 0xFFFF
    payload, scale = encode(line, host_type, fmt)
    assert scale[0] == 255 and not payload.any()
    assert (decode(payload, scale, host_type, fmt) == NAN[host_type]).all()


def test_infinity_of_e5m2_is_infinity():
    payload = np.full((1, 32), 0xFC, np.uint8)
    for host_type in HostType:
        assert (
            decode(payload, np.zeros(1, np.uint16), host_type, Format.FP8_E5M2)
            == INF[host_type] | 0x8000
        ).all()


@by_host
def test_int4_takes_the_smallest_scale_that_reaches(host_type):
    lines = np.concatenate([*block_maximum(host_type, np.random.default_rng(22), lanes=32)])
    _, scale = encode(lines, host_type, Format.INT4)
    amax = abs(as_float(lines, host_type))
    amax = np.minimum(amax, as_float(np.array([INF[host_type] - 1], np.uint16), host_type)).max(
        axis=1
    )
    finite = scale != 255
    exponent, m = (scale & 255).astype(int), (scale >> 8).astype(int)
    assert (7 * np.ldexp((8 + m) / 8, exponent - 127) >= amax)[finite].all()
    smaller = np.where(
        m > 0, np.ldexp((7 + m) / 8, exponent - 127), np.ldexp(15 / 8, exponent - 128)
    )
    assert (7 * smaller < amax)[finite & (scale > 0)].all()


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"lines is uint16\[2, 31\]; legal"):
        encode(np.zeros((2, 31), np.uint16), HostType.FP16, Format.INT8)
    with pytest.raises(ValueError, match="lines is int64"):
        encode(np.zeros((2, 32), np.int64), HostType.FP16, Format.INT8)
    with pytest.raises(ValueError, match="payload is uint8"):
        decode(np.zeros((2, 31), np.uint8), np.zeros(2, np.uint16), HostType.FP16, Format.INT8)
    with pytest.raises(ValueError, match="scale has shape"):
        decode(np.zeros((2, 32), np.uint8), np.zeros(3, np.uint16), HostType.FP16, Format.INT8)
