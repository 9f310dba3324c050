# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""SECDED: every single flip corrected, every double flip detected, for the widths in use."""

import random
from itertools import combinations

import pytest
from amaranth.hdl import Const, Module, Signal
from amaranth.sim import Simulator

from kelp_hw.lib.secded import LaneSecded, Secded


def model(code):
    """encode and decode as functions of ints, from one simulation of the built logic."""
    m = Module()
    value, word = Signal(code.width), Signal(code.code_bits)
    encoded, fixed, single, double = Signal(code.code_bits), Signal(code.width), Signal(), Signal()
    data, one, more = code.repair(word, code.syndrome(word))
    m.d.comb += [encoded.eq(code.encode(value)), fixed.eq(data), single.eq(one), double.eq(more)]
    return m, value, word, encoded, (fixed, single, double)


def decode_all(code, cases):
    """For each (value, flips): (encoded, data, corrected, uncorrected)."""
    m, value, word, encoded, outputs = model(code)
    results = []

    async def bench(ctx):
        for given, flips in cases:
            ctx.set(value, given)
            sent = ctx.get(encoded)
            ctx.set(word, sent ^ flips)
            results.append((sent, *(ctx.get(o) for o in outputs)))

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
    return results


@pytest.mark.parametrize("width", [4, 16, 46, 57, 64])
@pytest.mark.sampled
def test_flips(width):
    code = Secded(width)
    rng = random.Random(width)
    assert len(set(code.columns)) == code.code_bits and all(c.bit_count() % 2 for c in code.columns)
    # The code is linear: that no two columns cancel, or look like a third, is what every pair comes
    # to. The logic is shown a sample of them.
    pairs = list(combinations(range(code.code_bits), 2))
    assert not {code.columns[a] ^ code.columns[b] for a, b in pairs} & {0, *code.columns}
    flips = [
        0,
        *(1 << b for b in range(code.code_bits)),
        *((1 << a) | (1 << b) for a, b in rng.sample(pairs, min(len(pairs), 60))),
    ]
    cases = [(rng.getrandbits(width), f) for f in flips]
    for (value, flip), (sent, data, corrected, uncorrected) in zip(
        cases, decode_all(code, cases), strict=True
    ):
        assert sent & ((1 << width) - 1) == value
        errors = flip.bit_count()
        assert (corrected, uncorrected) == (errors == 1, errors == 2), (
            flip,
            corrected,
            uncorrected,
        )
        if errors < 2:
            assert data == value, flip


@pytest.mark.parametrize("width", [4, 16, 46, 57, 64])
def test_every_syndrome_is_judged(width):
    code, judged = Secded(width), []
    m, syndrome, single, double = Module(), Signal(code.check_bits), Signal(), Signal()
    _, one, more = code.repair(Const(0, code.code_bits), syndrome)
    m.d.comb += [single.eq(one), double.eq(more)]

    async def bench(ctx):
        for each in range(1 << code.check_bits):
            ctx.set(syndrome, each)
            judged.append((ctx.get(single), ctx.get(double)))

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()
    assert judged == [
        (each in code.columns, each != 0 and each not in code.columns)
        for each in range(1 << code.check_bits)
    ]


def test_zero_is_a_code_word():
    assert decode_all(Secded(46), [(0, 0)]) == [(0, 0, 0, 0)]


def test_no_more_check_bits_than_the_bound():
    assert [Secded(w).check_bits for w in (4, 11, 16, 26, 57, 58, 64)] == [4, 5, 6, 6, 7, 8, 8]


@pytest.mark.parametrize("width", [3, 65, "8", True])
def test_width_is_checked(width):
    with pytest.raises(ValueError, match="width = .* legal: 4 … 64"):
        Secded(width)


@pytest.mark.parametrize("width", [58, 61, 64])
def test_lanes(width):
    """Every single flip and every pair, by the columns, and every syndrome, by the logic."""
    code = LaneSecded(width)
    columns, rng = code.columns, random.Random(width)
    assert len({*columns}) == width + 8 and all(column.bit_count() % 2 for column in columns)
    m, value, syndrome = Module(), Signal(width), Signal(8)
    check, fixed, single, double = Signal(8), Signal(width), Signal(), Signal()
    m.d.comb += [
        check.eq(code.check(m, value)),
        *(
            to.eq(what)
            for to, what in zip(
                (fixed, single, double), code.repair(m, value, syndrome), strict=True
            )
        ),
    ]

    async def bench(ctx):
        for bit, column in enumerate(columns[:width]):
            ctx.set(value, 1 << bit)
            assert ctx.get(check) == column
        for _ in range(50):
            row = rng.getrandbits(width)
            ctx.set(value, row)
            expected = 0
            for bit in range(width):
                expected ^= columns[bit] * (row >> bit & 1)
            assert ctx.get(check) == expected
        for each in range(256):
            ctx.set(syndrome, each)
            turned = sum(1 << bit for bit in range(width) if columns[bit] == each)
            assert ctx.get(fixed) == ctx.get(value) ^ turned
            one = each in columns
            assert (ctx.get(single), ctx.get(double)) == (one, each != 0 and not one)

    sim = Simulator(m)
    sim.add_testbench(bench)
    sim.run()


@pytest.mark.parametrize("width", [57, 65])
def test_width_of_lanes_is_checked(width):
    with pytest.raises(ValueError, match="width = .* legal: 58 … 64"):
        LaneSecded(width)
