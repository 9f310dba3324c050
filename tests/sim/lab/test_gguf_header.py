# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""A GGUF header that promises what is not there is refused at once, whatever it promises."""

import random
import struct
import time

import pytest

from kelp_sim.lab import gguf_header

STRING, ARRAY, UINT8, UINT32 = 8, 9, 0, 4


def text(content, order="<"):
    return struct.pack(order + "Q", len(content)) + content.encode()


def array(kind, count, content, order="<"):
    return struct.pack(order + "IQ", kind, count) + content


def header(*values, tensors=(), order="<", counts=None):
    """Fields of (type, value); tensors of dimensions."""
    out = b"GGUF" + struct.pack(order + "IQQ", 3, *(counts or (len(tensors), len(values))))
    for i, (kind, value) in enumerate(values):
        out += text(f"field {i}", order) + struct.pack(order + "I", kind) + value
    for i, sizes in enumerate(tensors):
        out += text(f"tensor {i}", order)
        out += struct.pack(order + f"I{len(sizes)}QIQ", len(sizes), *sizes, 0, 0)
    return out


def whole(order="<"):
    words = array(STRING, 2, text("a", order) + text("", order), order)
    pairs = array(ARRAY, 2, 2 * array(UINT8, 3, b"123", order), order)
    number = struct.pack(order + "I", 7)
    values = (UINT32, number), (ARRAY, words), (ARRAY, pairs), (STRING, text("é!", order)[:-1])
    return header(*values, tensors=[(4, 2), (3,)], order=order)


@pytest.fixture
def checked(tmp_path):
    def check(content):
        path = tmp_path / "file"
        path.write_bytes(content)
        gguf_header.check(path)

    return check


@pytest.mark.parametrize("order", "<>")
def test_a_header_is_read_to_its_end_and_no_further(checked, order):
    checked(whole(order) + b"data")
    checked(whole(order))
    for end in range(5, len(whole(order))):
        with pytest.raises((ValueError, struct.error)):
            checked(whole(order)[:end])


def nested(depth):
    return array(UINT8, 1, b"1") if not depth else array(ARRAY, 1, nested(depth - 1))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (header((ARRAY, array(UINT8, 1 << 60, b"1234"))), "an array of"),
        (header((ARRAY, array(UINT8, 1 << 23, b"1234"))), "it ends within"),
        (header(*[(ARRAY, array(UINT8, 1 << 24, bytes(1 << 24)))] * 2), "an array of"),
        (header((ARRAY, array(STRING, 1 << 23, text("a")))), "unpack_from"),
        (header((ARRAY, nested(900))), "5 deep|4 deep"),
        (header((STRING, struct.pack("<Q", (1 << 64) - 1))), "it ends within"),
        (header((77, b"1234")), "a value of type 77"),
        (header((ARRAY, array(77, 1, b"1234"))), "a value of type 77"),
        (header(counts=(0, 1 << 63)), "9223372036854775808 fields"),
        (header(counts=(1 << 32, 0)), "4294967296 tensors"),
        (header(counts=(1, 0)), "unpack_from"),
        (header(tensors=[()]), "0 dimensions"),
        (header(tensors=[(4, 0)]), r"2 dimensions, \[4, 0\]"),
        (header(tensors=[(1,) * 5]), "5 dimensions"),
        (b"GGUF", "unpack_from"),
        (b"", "empty file"),
    ],
)
def test_what_a_header_cannot_hold_is_refused_at_once(checked, content, problem):
    started = time.perf_counter()
    with pytest.raises((ValueError, struct.error), match=problem):
        checked(content)
    assert time.perf_counter() - started < 5


def test_noise_in_a_header_ends_it_or_not(checked):
    rng, ended = random.Random(1), 0
    for _ in range(500):
        content = bytearray(whole() + bytes(64))
        for _ in range(rng.choice([1, 2, 4])):
            at, big = rng.randrange(8, len(whole())), rng.choice([0, 1, 9, 2**31, 2**63, 2**64 - 1])
            content[at : at + rng.choice([1, 8])] = struct.pack("<Q", big)[:8]
        try:
            checked(bytes(content))
        except (ValueError, struct.error):
            ended += 1
    assert 20 < 500 - ended < 480
