# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The quantiser and the dequantiser in RTL: exhaustively against the golden model and ml_dtypes,
under back-pressure."""

import numpy as np
import pytest

from kelp_golden.codec import decode, encode
from kelp_spec.formats import Format, HostType
from kelp_verif.codec.codec_bench import expected_lines, expected_stored
from kelp_verif.codec.codec_cases import (
    CHUNK,
    all_codes,
    all_stored,
    below_maximum,
    block_maximum,
    mixed_lines,
    mixed_stored,
)
from kelp_verif.codec.codec_model import (
    META_BITS,
    pack_lines,
    pack_stored,
    rtl_decode,
    rtl_encode,
    unpack_lines,
    unpack_stored,
)
from kelp_verif.codec.codec_oracle import oracle_decode, oracle_encode

BLOCK_FORMATS = (Format.INT8, Format.INT4)
by_host = pytest.mark.parametrize("host_type", HostType, ids=lambda h: h.name.lower())
by_format = pytest.mark.parametrize("fmt", Format, ids=lambda f: f.label)
by_block_format = pytest.mark.parametrize("fmt", BLOCK_FORMATS, ids=lambda f: f.label)
#: Elements at a time: a line at once, or in two or four beats. The logic of a lane is the same, and
#: four beats have all the rest; each width is a model of its own, the largest of half a minute.
LANES = (*(pytest.param(wide, marks=pytest.mark.slow) for wide in (32, 16)), 8)
by_lanes = pytest.mark.parametrize("lanes", LANES, ids=lambda n: f"{n}lanes")


def assert_encodes(lines, host_type, fmt, lanes=8):
    """RTL = golden model = ml_dtypes, for lines of one kind."""
    payload, scale, _, _ = unpack_stored(
        rtl_encode(pack_lines(lines, int(host_type), int(fmt)), lanes=lanes).words
    )
    for reference in (encode, oracle_encode):
        want_payload, want_scale = reference(lines, host_type, fmt)
        bad = np.flatnonzero(
            (payload[:, : fmt.payload_bytes] != want_payload).any(axis=1) | (scale != want_scale)
        )
        at = bad[:1]
        assert not len(bad), (
            f"{reference.__name__}: {len(bad)} of {len(lines)} lines differ, first {lines[at]}: "
            + (
                f"RTL {payload[at, : fmt.payload_bytes]}, scale {scale[at]}; want "
                + f"{want_payload[at]}, scale {want_scale[at]}"
            )
        )
    assert not payload[:, fmt.payload_bytes :].any(), "bits above the payload are not zero"


@by_host
@by_format
@by_lanes
def test_every_code_in_every_lane(lanes, fmt, host_type):
    assert_encodes(all_codes(), host_type, fmt, lanes)


@by_host
@by_block_format
@by_lanes
@pytest.mark.sampled
def test_every_code_as_block_maximum_in_every_lane(lanes, fmt, host_type):
    for lines in block_maximum(host_type, np.random.default_rng(11), lanes=8):
        assert_encodes(lines, host_type, fmt, lanes)


@by_host
@by_block_format
@pytest.mark.sampled
def test_every_code_below_larger_exponents_in_every_lane(fmt, host_type):
    # Twelve exponents below the maximum everything is zero in either format; the slow test goes all
    # the way down.
    for lines in _joined(below_maximum(host_type, np.random.default_rng(12), reach=12)):
        assert_encodes(lines, host_type, fmt)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_host
@by_block_format
def test_every_code_as_only_maximum_in_every_lane(fmt, host_type):
    for lines in block_maximum(host_type, np.random.default_rng(13), lanes=1):
        assert_encodes(lines, host_type, fmt)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_host
@by_block_format
def test_every_code_below_every_larger_exponent_in_every_lane(fmt, host_type):
    for lines in _joined(below_maximum(host_type, np.random.default_rng(14), reach=255)):
        assert_encodes(lines, host_type, fmt)


@by_host
@by_format
@by_lanes
def test_every_stored_element_under_every_scale_in_every_lane(lanes, fmt, host_type):
    payload, scale = all_stored(fmt)
    lines, _ = unpack_lines(
        rtl_decode(pack_stored(payload, scale, int(host_type), int(fmt)), lanes=lanes).words
    )
    for reference in (decode, oracle_decode):
        want = reference(payload, scale, host_type, fmt)
        bad = np.argwhere(lines != want)
        line, lane = bad[0] if len(bad) else (0, 0)
        assert not len(bad), (
            f"{reference.__name__}: {len(bad)} elements differ, first in lane {lane}, scale "
            + f"{scale[line]:#x}: "
            + (
                f"RTL {lines[line, lane]:#06x}, want {want[line, lane]:#06x}, payload "
                + f"{payload[line]}"
            )
        )


@pytest.mark.parametrize("valid, ready", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.5), (0.6, 0.6)])
@pytest.mark.parametrize("lanes", LANES)
def test_mixed_stream_under_back_pressure(lanes, valid, ready):
    rng = np.random.default_rng(15)
    lines, host_type, fmt = mixed_lines(rng, 20_000)
    payload, scale, out_fmt, meta = unpack_stored(
        rtl_encode(
            pack_lines(lines, host_type, fmt), lanes=lanes, valid=valid, ready=ready, seed=3
        ).words
    )
    want_payload, want_scale = expected_stored(lines, host_type, fmt)
    assert (
        (payload == want_payload).all() and (scale == want_scale).all() and (out_fmt == fmt).all()
    )
    assert (meta == np.arange(len(lines)) % (1 << META_BITS)).all()
    payload, scale, host_type, fmt = mixed_stored(rng, 20_000)
    got, meta = unpack_lines(
        rtl_decode(
            pack_stored(payload, scale, host_type, fmt),
            lanes=lanes,
            valid=valid,
            ready=ready,
            seed=4,
        ).words
    )
    assert (got == expected_lines(payload, scale, host_type, fmt)).all()
    assert (meta == np.arange(len(got)) % (1 << META_BITS)).all()


def _joined(chunks):
    """Chunks of lines joined to CHUNK or a little more: a run has a fixed cost."""
    held = []
    for lines in chunks:
        held.append(lines)
        if sum(map(len, held)) >= CHUNK:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)
