# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The golden choice of pages: what docs/select.md says of block form, plans, summaries, estimates,
masses and the choice."""

import math
from fractions import Fraction

import numpy as np
import pytest

from kelp_golden import codec, select
from kelp_spec.formats import ELEMENTS, Format, HostType
from kelp_spec.select import (
    ABSENT_MORE,
    CODE_BITS,
    MASS_BITS,
    PLAN_FIELDS,
    SCORE_FRACTION,
    SCORE_LEAST,
    SCORE_MOST,
    SHARE_BITS,
    record_bytes,
)
from kelp_spec.select_plan import plan_lines

M, SH = 47274, 18  # log2(e) / 8


def stored_of(values, fmt, host_type=HostType.FP16):
    """Blocks of float16 [..., 32] by way of a stored format, and what a host reads back."""
    codes = values.astype(np.float16).view(np.uint16)
    payload, scale = codec.encode(codes.reshape(-1, ELEMENTS), host_type, fmt)
    back = codec.decode(payload, scale, host_type, fmt).view(np.float16).reshape(values.shape)
    shape = values.shape[:-1]
    return select.of_stored(
        payload.reshape(*shape, -1), scale.reshape(shape), host_type, fmt
    ), back.astype(np.float64)


def value(blocks):
    return blocks.x * 2.0 ** (blocks.e[..., None] - 6)


def keys_and_query(seed, *, heads=3, pages=5, tokens=16, lines=2):
    """Keys [pages, tokens, lines], query [heads, lines]: sizes and signs of all kinds."""
    rng = np.random.default_rng(seed)
    size = 2.0 ** rng.integers(-6, 4, (pages, tokens, lines, 1))
    keys = rng.normal(size=(pages, tokens, lines, ELEMENTS)) * size
    keys[rng.random(keys.shape) < 0.1] = 0
    query = rng.normal(size=(heads, lines, ELEMENTS)) * 2.0 ** rng.integers(
        -3, 3, (heads, lines, 1)
    )
    return stored_of(keys, Format.INT8)[0], stored_of(query, Format.INT8)[0]


def line_of(exponent, elements):
    """A plan's line: element → (mean, log2 of a step, bits)."""
    fields = {"exponent": exponent, "planned": 1}
    for k, (mean, step, count) in elements.items():
        fields |= {f"mean_{k}": mean, f"step_{k}": step, f"count_{k}": count}
    return np.frombuffer(record_bytes(PLAN_FIELDS, fields, 64), np.uint8)


def plan(*lines):
    """Of (exponent, elements) each."""
    return select.plan_of(np.stack([line_of(*line) for line in lines]))


def any_plan(seed, lines=2, share=0.3):
    """At random: with a larger `share` of the elements coded, of more bits than a code has."""
    rng = np.random.default_rng(seed)
    return plan(
        *(
            (
                int(rng.integers(-4, 4)),
                {
                    k: (int(rng.integers(-128, 128)), int(rng.integers(8)), int(rng.integers(8)))
                    for k in np.flatnonzero(rng.random(ELEMENTS) < share).tolist()
                },
            )
            for _ in range(lines)
        )
    )


def fields_of(plan, line):
    """Of a line, in order: element, and its mean, step and bits."""
    return [
        (k, int(plan.mean[line, k]), int(plan.step[line, k]), int(plan.count[line, k]))
        for k in range(ELEMENTS)
    ]


def code_of(x, e, plan, line):
    """The code of one key's line in Python's own numbers."""
    code = at = 0
    for k, mean, step, count in fields_of(plan, line):
        seen = math.floor(Fraction(int(x[k])) * Fraction(4) * Fraction(2) ** int(e - plan.e[line]))
        seen = max(-512, min(511, seen))
        if count:
            half = 2 ** (count - 1)
            steps = math.floor(Fraction(seen - 4 * mean, 2**step))
            code |= (max(-half, min(half - 1, steps)) + half) << at
        at += count
    return code % 2**CODE_BITS


def told(code, plan, line):
    """What a line's code tells of the key's elements: the middle of a step, float."""
    found, at = np.zeros(ELEMENTS), 0
    for k, mean, step, count in fields_of(plan, line):
        found[k] = 4 * mean
        if count:
            found[k] += ((code >> at) % 2**count - 2 ** (count - 1) + 0.5) * 2**step
        at += count
    return found * 2.0 ** (int(plan.e[line]) - 8)


@pytest.mark.parametrize("fmt", [Format.INT8, Format.INT4])
def test_int8_and_int4_lose_nothing(fmt):
    values = np.random.default_rng(1).normal(size=(200, ELEMENTS)) * 5
    blocks, back = stored_of(values, fmt)
    # What is read back is rounded to fp16 once more.
    assert (np.abs(value(blocks) - back) <= np.abs(back) * 2**-11).all()
    assert np.abs(blocks.x).max() <= 127


@pytest.mark.parametrize("fmt", [Format.RAW16, Format.FP8_E4M3, Format.FP8_E5M2])
def test_raw16_and_fp8_are_seen_as_int8_would_store_them(fmt):
    blocks, back = stored_of(np.random.default_rng(2).normal(size=(200, ELEMENTS)), fmt)
    again, _ = stored_of(back, Format.INT8)
    assert all((a == b).all() for a, b in zip(blocks, again, strict=True))


@pytest.mark.parametrize("host_type", list(HostType))
def test_what_a_host_reads_has_the_block_that_is_stored(host_type):
    """Of int8 the same one; of int4 the same values, but for those of fp16 below its least number,
    in a block that may be one binary place finer."""
    size = 2.0 ** np.random.default_rng(3).integers(-30, 14, (4000, 1))
    values = (np.random.default_rng(4).normal(size=(4000, ELEMENTS)) * size).clip(-6e4, 6e4)
    if host_type is HostType.FP16:
        codes = values.astype(np.float16).view(np.uint16)
    else:
        codes = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    for fmt in (Format.INT8, Format.INT4):
        payload, scale = codec.encode(codes, host_type, fmt)
        stored = select.of_stored(payload, scale, host_type, fmt)
        read = select.of_host(codec.decode(payload, scale, host_type, fmt), host_type)
        same = (value(stored) == value(read)).all(axis=-1)
        some = (stored.x != 0).any(axis=-1)
        if fmt is Format.INT8:
            assert same.all() and (stored.e == read.e).all()
        elif host_type is HostType.BF16:
            assert same.all() and set((stored.e - read.e)[some]) == {0, 1}
        else:
            small = (scale & 255) < 106
            assert same[~small].all() and not same[small].all()
            assert set((stored.e - read.e)[some & ~small]) == {0, 1}
            rounded = np.rint(value(stored) * 2.0**24) / 2.0**24
            assert (value(read) == rounded)[small].all()


@pytest.mark.parametrize("fmt", list(Format))
def test_a_line_with_a_nan_is_zeros(fmt):
    values = np.ones((2, ELEMENTS))
    values[1, 7] = np.nan
    blocks, _ = stored_of(values, fmt)
    assert blocks.nan.tolist() == [False, True] and not blocks.x[1].any()


@pytest.mark.parametrize("seed", range(8))
def test_a_code_is_where_an_element_lies_among_steps(seed):
    """Plans of fewer bits than a code has, and of more, which are left out."""
    keys, _ = keys_and_query(seed, pages=2)
    how = any_plan(seed, share=(0.2, 0.9)[seed % 2])
    codes = select.summary(keys, how)
    assert codes.dtype == np.uint32 and codes.shape == keys.e.shape
    assert (how.count.sum(axis=-1) > CODE_BITS).all() == bool(seed % 2)
    for at in np.ndindex(codes.shape):
        assert codes[at] == code_of(keys.x[at], int(keys.e[at]), how, at[-1])


@pytest.mark.parametrize("far", [-300, -11, -10, -3, 3, 9, 10, 300])
def test_an_exponent_far_from_the_plans_clamps(far):
    x = np.zeros((1, ELEMENTS), np.int64)
    x[0, :4] = (127, -127, 1, -1)
    how = plan((-20, {k: (0, 7, 5) for k in range(5)}))
    keys = select.Blocks(x, np.array([-20 + far]), np.array([False]))
    assert select.summary(keys, how)[0] == code_of(x[0], -20 + far, how, 0)


def test_the_bits_of_a_code_have_an_order():
    how = plan((0, {0: (0, 2, 3), 2: (5, 2, 2), 31: (-3, 3, 1)}))
    x = np.zeros((3, 1, ELEMENTS), np.int64)
    x[0, 0, [0, 1, 2, 31]] = (2, 99, 4, -3)  # 2, −1 and 0 steps
    x[1, 0, [0, 2, 31]] = (127, 127, -4)  # beyond, beyond, and −1
    x[2, 0, [0, 2, 31]] = (-127, -127, 127)
    keys = select.Blocks(x, np.zeros((3, 1), np.int64), np.zeros((3, 1), bool))
    want = [6 | 1 << 3 | 1 << 5, 7 | 3 << 3, 1 << 5]
    assert select.summary(keys, how)[:, 0].tolist() == want


def test_what_finds_no_place_in_a_code_is_left_out():
    how = plan((0, {k: (0, 2, 7) for k in range(6)}))
    x = np.zeros((1, ELEMENTS), np.int64)
    x[0, :6] = (-64, -64, -64, -64, 0b0101101 - 64, 63)
    keys = select.Blocks(x, np.zeros(1, np.int64), np.zeros(1, bool))
    codes = select.summary(keys, how)
    assert codes.tolist() == [0b1101 << 28]
    # In an estimate its bits are 0; of the last one nothing is coded.
    query = select.Blocks(
        np.eye(ELEMENTS, dtype=np.int64)[:7, None], np.full((7, 1), 12), np.zeros((7, 1), bool)
    )
    found = select.estimates(query, codes[None, None], how, 1 << 9, 16)[:, 0]
    assert (found / 2).tolist() == [-63.5, -63.5, -63.5, -63.5, 13 - 63.5, -63.5, 0]


@pytest.mark.parametrize("fmt", [Format.INT8, Format.RAW16])
def test_a_line_with_a_nan_is_summarised_as_zeros(fmt):
    values = np.random.default_rng(6).normal(size=(3, 2, ELEMENTS))
    values[1, 0, 5] = np.nan
    keys, _ = stored_of(values, fmt)
    zeros = keys.x.copy()
    zeros[1, 0] = 0
    how = any_plan(6)
    want = select.summary(select.Blocks(zeros, np.full_like(keys.e, -9), keys.nan), how)
    assert (select.summary(keys, how)[1, 0] == want[1, 0]).all()
    assert select.summary(keys, how)[1, 1] == code_of(keys.x[1, 1], int(keys.e[1, 1]), how, 1)


@pytest.mark.parametrize("seed", range(6))
def test_an_estimate_is_the_score_of_what_codes_tell(seed):
    """In floating point, to a rounding of 2^−8 for each bit."""
    keys, query = keys_and_query(seed)
    how = any_plan(seed, share=(0.3, 0.9)[seed % 2])
    codes = select.summary(keys, how)
    seen = np.zeros(keys.x.shape)
    for at in np.ndindex(codes.shape):
        seen[at] = told(int(codes[at]), how, at[-1])
    exact = np.einsum("hld,ptld->hpt", value(query), seen).max(axis=-1) * M / 2**SH
    found = select.estimates(query, codes, how, M, SH)
    slack = exact - found / 256
    assert (slack > -0.001).all() and (
        slack < 2 * (CODE_BITS + 2) * M / 2**SH / 256 + 1 / 256
    ).all()


def test_an_estimate_is_the_best_tokens_score_where_its_plan_has_the_bits():
    """Four elements an odd distance from their means, which are the middles of steps."""
    rng = np.random.default_rng(3)
    at = [1, 8, 20, 31]
    mean = rng.integers(-20, 20, (2, 4))
    x = np.zeros((5, 16, 2, ELEMENTS), np.int64)
    x[..., at] = mean + 2 * rng.integers(-50, 50, (5, 16, 2, 4)) + 1
    how = plan(*((3, {k: (int(m), 3, 7) for k, m in zip(at, line, strict=True)}) for line in mean))
    keys = select.Blocks(x, np.full((5, 16, 2), 3), np.zeros((5, 16, 2), bool))
    q = rng.integers(-127, 128, (3, 2, ELEMENTS))
    query = select.Blocks(q, np.full((3, 2), 4), np.zeros((3, 2), bool))
    found = select.estimates(query, select.summary(keys, how), how, M, SH)
    for page in range(5):
        token = select.Blocks(*(part[page] for part in keys))
        assert (found[:, page] == select.scores(query, token, M, SH).max(axis=1)).all()


@pytest.mark.parametrize("exponent", [-250, -30, -8, 0, 7, 12, 40, 250])
def test_estimates_are_exact_in_plain_integers(exponent):
    """Against Python's own integers, at exponents where floating point would give way."""
    rng = np.random.default_rng(9)
    how = any_plan(9, share=0.5)
    q = rng.integers(-127, 128, (2, 2, ELEMENTS))
    query = select.Blocks(q, exponent - how.e[None] + 0 * q[..., 0], np.zeros((2, 2), bool))
    codes = rng.integers(0, 1 << 32, (1, 3, 2)).astype(np.uint32)
    most = 2**23 - 1

    def clamped(product):
        # Of products in eighths of 2^(exponent − 12), eight places after the point.
        up = Fraction(2) ** (exponent - 12 - 3 + 8)
        return max(-most, min(most, math.floor(product * up)))

    for head, got in enumerate(select.estimates(query, codes, how, M, SH)[:, 0]):
        each = []
        for token in range(3):
            raw = 0
            for line in range(2):
                base, bits, at = 0, 0, 0
                for k, mean, step, count in fields_of(how, line):
                    x, code = int(q[head, line, k]), int(codes[0, token, line])
                    low = 2**step - 2 ** (step + count) if count else 0
                    base += x * (8 * mean + low)
                    for bit in range(at, min(at + count, CODE_BITS)):
                        bits += clamped(x * 2 ** (step + 1 + bit - at)) * (code >> bit & 1)
                    at += count
                raw += max(-most, min(most, clamped(base) + bits))
            each.append(raw)
        assert got == max(SCORE_LEAST, min(SCORE_MOST, max(each) * M >> SH))


@pytest.mark.parametrize("up", [-23, -24, -25, -40, -200])
def test_a_product_is_shifted_by_24_places_at_most(up):
    """What is left of a code of 0 tells: of the largest that there is, and of one bit nothing."""
    how = plan((-100, {k: (-128, 7, 7) for k in range(ELEMENTS)}))
    q = np.array([127, -127])[:, None, None] + np.zeros((2, 1, ELEMENTS), int)
    query = select.Blocks(q, np.full((2, 1), up + 7 + 100), np.zeros((2, 1), bool))
    base = [x * ELEMENTS * (-8 * 128 + 2**7 - 2**14) for x in (127, -127)]
    found = select.token_sums(query, np.zeros((1, 1, 1), np.uint32), how)[:, 0, 0]
    assert found.tolist() == [each >> min(-up, 24) for each in base]
    assert found.tolist() == [-5, 4] or up > -24


def test_estimates_saturate():
    how = plan((130, {k: (127, 7, 1) for k in range(ELEMENTS)}))
    q = np.full((2, 1, ELEMENTS), 127)
    q[1] = -127
    query = select.Blocks(q, np.full((2, 1), 130), np.zeros((2, 1), bool))
    found = select.estimates(query, np.full((1, 1, 1), 0xFFFFFFFF, np.uint32), how, 65535, 0)
    assert found[:, 0].tolist() == [SCORE_MOST, SCORE_LEAST]


def test_a_plan_is_read_as_it_was_written():
    elements = {0: (-128, 7, 7), 7: (127, 0, 1), 31: (-1, 3, 0)}
    found = plan((-256, elements), (130, {}))
    assert found.e.tolist() == [-256, 130]
    for k, (mean, step, count) in elements.items():
        assert (found.mean[0, k], found.step[0, k], found.count[0, k]) == (mean, step, count)
    assert not any(part[1].any() for part in found[:3])


@pytest.mark.parametrize("bit", [458, 459, 511])
def test_what_has_a_spare_bit_or_was_not_written_is_no_plan(bit):
    line = line_of(3, {0: (1, 2, 3)}).copy()
    assert sum(bits for _, bits in PLAN_FIELDS) == 458
    assert select.plan_of(np.stack([line, line])) is not None
    line[bit // 8] |= 1 << bit % 8
    assert select.plan_of(np.stack([line_of(3, {}), line])) is None
    assert select.plan_of(np.stack([line_of(3, {}), np.zeros(64, np.uint8)])) is None
    assert select.plan_of(np.full((1, 64), 255, np.uint8)) is None


def test_a_hosts_plan_spends_bits_where_queries_look():
    rng = np.random.default_rng(11)
    keys = rng.normal(size=(600, 64)) * np.r_[np.full(32, 4.0), np.full(32, 0.01)] + 3
    query = rng.normal(size=(50, 64)) * np.where(np.arange(64) % 4 == 0, 8, 0.01)
    how = select.plan_of(plan_lines(keys, query))
    assert (how.count.sum(axis=1) <= CODE_BITS).all()
    assert (how.count[0, ::4] > 2).all() and how.count[0].sum() - how.count[0, ::4].sum() < 8
    blocks, _ = stored_of(keys.reshape(600, 2, ELEMENTS), Format.INT8)
    asked, _ = stored_of(query.reshape(50, 2, ELEMENTS), Format.INT8)
    codes = select.summary(blocks, how)
    exact = select.scores(asked, blocks, M, SH)
    found = select.estimates(asked, codes[:, None], how, M, SH)
    assert (found - exact).std() < 0.15 * (exact - exact.mean(axis=1, keepdims=True)).std()


@pytest.mark.filterwarnings("error")
def test_a_hosts_plan_takes_any_nan_as_zero():
    """A signalling one, too, of which NumPy warns when it makes it wider."""
    rng = np.random.default_rng(4)
    keys, queries = rng.standard_normal((2, 40, 64)).astype(np.float32)
    without = keys.copy()
    keys.view(np.uint32)[3, 3], without[3, 3] = 0x7FA0_0001, 0
    assert (plan_lines(keys, queries) == plan_lines(without, queries)).all()


def test_scores_saturate_and_a_nan_has_the_least():
    x = np.full((2, 1, ELEMENTS), 127)
    keys = select.Blocks(x, np.full((2, 1), 127), np.array([[False], [True]]))
    query = select.Blocks(np.stack([x[0], -x[0]]), np.full((2, 1), 127), np.zeros((2, 1), bool))
    assert select.scores(query, keys, 65535, 0).tolist() == [
        [SCORE_MOST, SCORE_LEAST],
        [SCORE_LEAST, SCORE_LEAST],
    ]


@pytest.mark.parametrize("exponent", [-250, -40, -17, 0, 3, 40, 250])
def test_scores_are_exact_in_plain_integers(exponent):
    """Against Python's own integers, at exponents where floating point would give way."""
    rng = np.random.default_rng(7)
    x, q = rng.integers(-127, 128, (3, 2, ELEMENTS)), rng.integers(-127, 128, (1, 2, ELEMENTS))
    e = exponent // 2
    keys = select.Blocks(x, np.full((3, 2), e), np.zeros((3, 2), bool))
    query = select.Blocks(q, np.full((1, 2), exponent - e), np.zeros((1, 2), bool))
    most = 2**23 - 1
    for token, got in enumerate(select.scores(query, keys, M, SH)[0]):
        raw = 0
        for line in range(2):
            d = sum(int(a) * int(b) for a, b in zip(x[token, line], q[0, line], strict=True))
            raw += max(-most, min(most, d * 2 ** max(exponent - 4, 0) // 2 ** max(4 - exponent, 0)))
        assert got == max(SCORE_LEAST, min(SCORE_MOST, raw * M >> SH))


def test_a_candidate_is_among_some_heads_best_and_the_lower_page_wins_a_tie():
    estimate = np.array([[5, 9, 9, 1], [0, 0, 0, 7]])
    assert select.candidates(estimate, 1).tolist() == [False, True, False, True]
    assert select.candidates(estimate, 2).tolist() == [True, True, True, True]


def test_a_weight_is_two_to_the_score():
    score = np.arange(-3000, 3000)
    n, w = select.weight(score)
    assert (np.abs(w * 2.0 ** (n - 15) / 2.0 ** (score / 256) - 1) < 2**-15).all()


def test_a_pages_mass_is_the_sum_of_its_weights():
    score = np.random.default_rng(8).integers(-2000, 1500, (40, 16))
    e, z = select.page_masses(score)
    assert (e == (score >> SCORE_FRACTION).max(1)).all()
    assert (np.abs(z * 2.0 ** (e - 15) / (2.0 ** (score / 256)).sum(1) - 1) < 16 * 2**-15).all()


def test_a_pages_mass_has_its_most():
    e, z = select.page_masses(np.full((1, 1 << 10), 255))
    assert (e[0], z[0]) == (0, (1 << MASS_BITS) - 1)


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_mass_sums_are_the_softmax(heads):
    rng = np.random.default_rng(heads)
    score = rng.integers(-2000, 1500, (heads, 30, 16))
    counted = rng.random(30) < 0.8
    named = counted & (rng.random(30) < 0.9)
    more = rng.integers(0, 1 << 15, heads)
    sums = select.mass_sums(*select.page_masses(score), counted, named, more)
    mass = (2.0 ** (score / 256)).sum(2)
    whole = (mass * counted).sum(1) + (mass * named).sum(1) * more / 2**SHARE_BITS
    exact = (mass * counted / whole[:, None]).sum(0)
    assert np.abs(sums / 2**SHARE_BITS - exact).max() < heads * 2**-10


def test_what_is_not_scored_counts_as_its_estimates_say():
    estimate = np.array([[0, 768, 1536, SCORE_LEAST]])  # weights 1, 8 and 64
    named = np.array([False, False, True, False])
    assert select.unscored(estimate, named).tolist() == [9 * 2**SHARE_BITS // 64]
    assert select.unscored(estimate, named | True).tolist() == [0]


def test_an_absent_page_counts_more_than_its_best_token():
    e, z = select.absent_masses(np.array([0, 500, SCORE_MOST, SCORE_LEAST]))
    mass = np.log2(z / 2.0**15) * 256 + e * 256
    want = [ABSENT_MORE, 500 + ABSENT_MORE, SCORE_MOST, SCORE_LEAST + ABSENT_MORE]
    assert np.abs(mass - want).max() < 0.1


def test_the_choice():
    pages, masses = np.array([0, 3, 5, 6, 9]), np.array([10, 30, 50, 30, 5])
    present = np.array([True, True, False, True, True])

    def choose(target, most):
        found = select.choose(pages, masses, present, [0, 9], target=target, most=most)
        return found.pages.tolist(), found.masses.tolist(), found.missing

    assert choose(1000, 8) == ([0, 9, 3, 6], [10, 5, 30, 30], 50), "page 5 is not at hand"
    assert choose(1000, 1) == ([0, 9, 3], [10, 5, 30], 50), "of equal ones the lower page"
    assert choose(46, 8) == choose(1000, 8) and choose(45, 8) == choose(1000, 1)
    assert choose(15, 8) == choose(1000, 0) == ([0, 9], [10, 5], 50)


def test_what_is_wanted_is_what_would_be_chosen_were_all_there():
    pages, masses = np.arange(6), np.array([10, 40, 0, 30, 20, 5])
    present, always = np.array([0, 0, 1, 1, 0, 1], bool), [0, 5]

    def wanted(target, most):
        found = select.choose(pages, masses, present, always, target=target, most=most)
        assert found.missing == 70
        return found.pages.tolist(), found.wanted.tolist()

    assert wanted(1000, 4) == ([0, 5, 3], [0, 1, 4])
    assert wanted(1000, 2) == ([0, 5, 3], [0, 1])
    assert wanted(55, 4) == ([0, 5, 3], [0, 1]), "40 and what always is reach it"
    assert wanted(15, 4) == ([0, 5], [0])
