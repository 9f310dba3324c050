# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled choice is the golden model's: pages, masses, and what is missing."""

import numpy as np
import pytest

from kelp_golden import select as golden
from kelp_sim.select import kernel
from kelp_sim.select.readers import _blocks, scale_of
from kelp_spec.formats import ELEMENTS
from kelp_spec.select import PLAN_FIELDS, SCORE_LEAST, record_bytes
from kelp_spec.select_plan import plan_lines

SIZE = 16


def any_plan(rng, lines):
    """A host's nonsense: more bits than a code has, or none."""
    counts = rng.integers(0, 8, (lines, ELEMENTS)) * (rng.random((lines, ELEMENTS)) < 0.4)
    rows = []
    for line in range(lines):
        fields = {"exponent": int(rng.integers(-8, 8)), "planned": 1}
        for k in range(ELEMENTS):
            fields |= {f"mean_{k}": int(rng.integers(256)), f"step_{k}": int(rng.integers(8))}
            fields |= {f"count_{k}": int(counts[line, k])}
        rows.append(record_bytes(PLAN_FIELDS, fields, 64))
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 64)


def case(seed):
    """A KV head at random: query, keys, their codes [pages, tokens, lines], the plan, tokens of
    the newest page."""
    rng = np.random.default_rng(seed)
    dim, pages = 32 * int(rng.integers(1, 3)), int(rng.integers(1, 40))
    keys = rng.standard_normal((pages * SIZE, dim)) * rng.uniform(0.2, 3) + rng.normal(0, 2, dim)
    query = rng.standard_normal((int(rng.integers(1, 5)), dim)) * rng.uniform(0.5, 4)
    k, q = _blocks(keys.astype(np.float32)), _blocks(query.astype(np.float32))
    lines = any_plan(rng, dim // 32) if seed % 3 == 0 else plan_lines(keys, query)
    plan = golden.plan_of(lines)
    codes = golden.summary(k, plan).reshape(pages, SIZE, -1)
    return rng, q, k, (codes, plan), pages, int(rng.integers(1, SIZE + 1))


def considered(q, k, s, pages, tokens, quota, state):
    """(masses, those with everything resident, (candidates, absent, looks))."""
    m, sh = scale_of(32 * q.x.shape[1])
    sums, true = np.zeros((2, pages), np.int64)
    codes, plan = s
    kept = k.x.astype(np.int8), k.e, codes.reshape(pages * SIZE, -1), kernel.planned(plan)
    counts = kernel.consider(
        q.x.astype(np.int16),
        q.e,
        kernel.Head(*kept, state),
        kernel.Asked(pages - 1, tokens, SIZE, quota, m, sh),
        sums,
        true,
    )
    return sums, true, counts


@pytest.mark.parametrize("seed", range(40))
def test_the_choice_is_the_golden_one(seed):
    rng, q, k, s, pages, tokens = case(seed)
    quota, most = int(rng.integers(1, 12)), int(rng.integers(0, 12))
    last = (pages - 1) * SIZE + tokens
    keys = [golden.Blocks(*(part[p * SIZE : min(last, p * SIZE + SIZE)] for part in k))
            for p in range(pages)]  # fmt: skip
    m, sh = scale_of(32 * q.x.shape[1])
    target = round(0.9 * 65536) * len(q.x)
    want = golden.select_pages(q, keys, s, quota=quota, target=target, most=most, m=m, sh=sh)
    here = np.ones(pages, np.uint8)
    sums, true, _ = considered(q, k, s, pages, tokens, quota, here)
    chosen, wanted = np.zeros((2, pages), bool)
    assert kernel.choose(sums, here, pages - 1, target, most, chosen, wanted) == 0
    assert set(np.flatnonzero(chosen)) == set(want.pages) and not wanted.any()
    assert (sums[want.pages] == want.masses).all() and (sums == true).all()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_missing_and_wanted_is_the_golden_models(seed):
    """Any page but the newest absent."""
    rng, q, k, s, pages, tokens = case(seed + 100)
    quota, last = int(rng.integers(1, 12)), (pages - 1) * SIZE + tokens
    m, sh = scale_of(32 * q.x.shape[1])
    target = round(0.9 * 65536) * len(q.x)
    state = (rng.random(pages) < 0.6).astype(np.uint8)
    state[-1] = 1
    names = golden.name_pages(q, *s, quota=quota, m=m, sh=sh)
    scored, keys = np.flatnonzero(names.scored).tolist(), {}
    for p in scored:
        at = p * SIZE + names.looked(p, min(last - p * SIZE, SIZE))
        keys[p] = golden.Blocks(*(x[at] for x in k))
    want = golden.choose_pages(
        q, names, keys, target=target, most=6, m=m, sh=sh,
        absent=[p for p in scored if not state[p]],
    )  # fmt: skip
    sums, _, _ = considered(q, k, s, pages, tokens, quota, state)
    chosen, wanted = np.zeros((2, pages), bool)
    missing = kernel.choose(sums, state, pages - 1, target, 6, chosen, wanted)
    assert missing == want.missing and set(np.flatnonzero(wanted)) == set(want.wanted)
    assert set(np.flatnonzero(chosen)) | {0} == set(want.pages)


def test_an_absent_page_has_the_golden_estimate():
    _, q, k, s, pages, tokens = case(7)
    assert pages > 4
    state = np.ones(pages, np.uint8)
    state[2:4] = state[0] = 0
    sums, true, (candidates, absent, _) = considered(q, k, s, pages, tokens, pages, state)
    assert candidates == pages - 2 and absent == 2
    m, sh = scale_of(32 * q.x.shape[1])
    estimate = golden.estimates(q, *s, m, sh)
    near = golden.name_pages(q, *s, quota=pages, m=m, sh=sh).near
    near[[0, -1]] = True
    hidden = (np.arange(pages * SIZE) >= (pages - 1) * SIZE + tokens) | ~near.ravel()
    score = np.where(hidden, SCORE_LEAST, golden.scores(q, k, m, sh))
    e, z = golden.page_masses(score.reshape(len(q.x), pages, SIZE))
    named = np.ones(pages, bool)
    named[[0, -1]] = False
    exact = golden.mass_sums(e, z, named | True, named, np.zeros(len(q.x), np.int64))
    gone = [0, 2, 3]
    e[:, gone], z[:, gone] = golden.absent_masses(estimate[:, gone])
    guessed = golden.mass_sums(e, z, named | True, named, np.zeros(len(q.x), np.int64))
    assert (sums == guessed).all() and (true == exact).all()


def test_what_is_absent_is_wanted_in_its_place():
    sums, state = np.array([5, 40, 30, 20, 5]), np.array([1, 0, 1, 1, 1], np.uint8)
    chosen, wanted = np.zeros((2, 5), bool)
    missing = kernel.choose(sums, state, 4, 70, 2, chosen, wanted)
    assert missing == 40
    assert chosen.tolist() == [True, False, True, True, True], "it makes room for the next best"
    assert wanted.tolist() == [False, True, False, False, False]
    state[0] = 0
    assert kernel.choose(sums, state, 4, 70, 2, chosen, wanted) == 45
    assert wanted[0] and not chosen[0], "the first page has to be there too"
