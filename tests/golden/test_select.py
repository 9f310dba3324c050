# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The golden choice of pages: what docs/select.md says of block form, summaries, bounds, masses and
the choice."""

import numpy as np
import pytest

from kelp_golden import codec, select
from kelp_spec.formats import ELEMENTS, Format, HostType
from kelp_spec.select import MASS_BITS, SCORE_FRACTION, SCORE_LEAST, SCORE_MOST, SHARE_BITS

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


def of_page(blocks, page):
    return select.Blocks(*(part[page] for part in blocks))


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


@pytest.mark.parametrize("fmt", list(Format))
def test_a_line_with_a_nan_is_zeros(fmt):
    values = np.ones((2, ELEMENTS))
    values[1, 7] = np.nan
    blocks, _ = stored_of(values, fmt)
    assert blocks.nan.tolist() == [False, True] and not blocks.x[1].any()


@pytest.mark.parametrize("seed", range(5))
def test_no_token_has_a_larger_score_than_its_pages_bound(seed):
    keys, query = keys_and_query(seed)
    summary = select.summary(keys, np.ones(keys.e.shape, bool))
    bound = select.bounds(query, summary, M, SH)
    slack = [
        bound[:, page, None] - select.scores(query, of_page(keys, page), M, SH)
        for page in range(len(keys.e))
    ]
    assert min(map(np.min, slack)) >= 0


def test_the_bound_of_one_token_is_its_score_within_a_rounding():
    """Each bound is off by at most one step of 2^(e − 5)."""
    keys, query = keys_and_query(3, tokens=1)
    bound = select.bounds(query, select.summary(keys, np.ones(keys.e.shape, bool)), M, SH)
    exact = np.einsum("hld,ptld->hp", value(query), value(keys)) * M / 2**SH
    step = np.einsum("hl,pl->hp", np.abs(value(query)).sum(-1), 2.0 ** (keys.e[:, 0] - 5))
    assert (bound / 256 - exact <= step * M / 2**SH + 0.01).all()


def test_a_summary_does_not_depend_on_the_order_of_lines():
    keys, _ = keys_and_query(4)
    written = np.random.default_rng(4).random(keys.e.shape) < 0.8
    whole = select.summary(keys, written)
    order = np.random.default_rng(5).permutation(keys.e.shape[1])
    turned = select.summary(select.Blocks(*(part[:, order] for part in keys)), written[:, order])
    assert all((a == b).all() for a, b in zip(whole, turned, strict=True))


def test_lines_never_written_and_nans_do_not_count():
    keys, _ = keys_and_query(6, pages=1)
    written = np.ones(keys.e.shape, bool)
    written[0, 3:] = False
    x, e, nan = (part.copy() for part in keys)
    nan[0, 2] = True
    some = select.summary(select.Blocks(x, e, nan), written)
    two = select.summary(select.Blocks(x[:, :2], e[:, :2], nan[:, :2]), written[:, :2])
    assert all((a == b).all() for a, b in zip(some, two, strict=True))
    none = select.summary(keys, written & False)
    assert not none.low.any() and not none.high.any() and (none.e == -127).all()


def test_bounds_of_a_summary_have_a_place():
    x = np.zeros((1, 2, 1, ELEMENTS), np.int64)
    x[0, :, 0, 0], x[0, :, 0, 1] = (127, -127), 127
    keys = select.Blocks(x, np.zeros((1, 2, 1), np.int64), np.zeros((1, 2, 1), bool))
    found = select.summary(keys, np.ones((1, 2, 1), bool))
    assert (found.low[0, 0, :3].tolist(), found.high[0, 0, :3].tolist()) == (
        [-64, 63, 0],
        [64, 64, 0],
    )


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
    bound = np.array([[5, 9, 9, 1], [0, 0, 0, 7]])
    assert select.candidates(bound, 1).tolist() == [False, True, False, True]
    assert select.candidates(bound, 2).tolist() == [True, True, True, True]


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


def test_what_is_not_scored_counts_as_its_bounds_say():
    # Three quarters of them: weights 1, 8 and 64.
    bound = np.array([[0, 1024, 2048, SCORE_LEAST]])
    named = np.array([False, False, True, False])
    assert select.unscored(bound, named).tolist() == [9 * 2**SHARE_BITS // 64]
    assert select.unscored(bound, named | True).tolist() == [0]


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
