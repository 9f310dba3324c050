# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1

"""The compiled choice is the golden model's: pages, masses, and what is missing."""

import numpy as np
import pytest

from kelp_golden import select as golden
from kelp_sim.select import kernel
from kelp_sim.select.readers import _blocks, scale_of
from kelp_spec.select import SCORE_LEAST, SEEN_NEVER

SIZE = 16


def case(seed):
    """A KV head at random: query, keys, their summaries, tokens of the newest page."""
    rng = np.random.default_rng(seed)
    dim, pages = 32 * int(rng.integers(1, 3)), int(rng.integers(1, 40))
    keys = rng.standard_normal((pages * SIZE, dim)) * rng.uniform(0.2, 3) + rng.normal(0, 2, dim)
    query = rng.standard_normal((int(rng.integers(1, 5)), dim)) * rng.uniform(0.5, 4)
    k, q = _blocks(keys.astype(np.float32)), _blocks(query.astype(np.float32))
    whole = golden.Blocks(*(part.reshape(pages, SIZE, *part.shape[1:]) for part in k))
    tokens = int(rng.integers(1, SIZE + 1))
    return rng, q, k, golden.summary(whole, np.ones(whole.e.shape, bool)), pages, tokens


def never(pages, q):
    return np.full((pages, len(q.x)), SEEN_NEVER, np.int16)


def considered(q, k, s, pages, tokens, quota, state, seen):
    """(masses, those with everything resident, (candidates, absent))."""
    m, sh = scale_of(32 * q.x.shape[1])
    sums, true = np.zeros((2, pages), np.int64)
    kept = k.x.astype(np.int8), k.e, s.low.astype(np.int8), s.high.astype(np.int8), s.e
    counts = kernel.consider(
        q.x.astype(np.int16),
        q.e,
        kernel.Head(*kept, state, seen),
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
    sums, true, _ = considered(q, k, s, pages, tokens, quota, here, never(pages, q))
    chosen, wanted = np.zeros((2, pages), bool)
    assert kernel.choose(sums, here, pages - 1, target, most, chosen, wanted) == 0
    assert set(np.flatnonzero(chosen)) == set(want.pages) and not wanted.any()
    assert (sums[want.pages] == want.masses).all() and (sums == true).all()


@pytest.mark.parametrize("seed", range(12))
def test_what_is_missing_and_wanted_is_the_golden_models(seed):
    """Any page but the newest absent, some of them seen before: two choices, one after another."""
    rng, q, k, s, pages, tokens = case(seed + 100)
    quota, last = int(rng.integers(1, 12)), (pages - 1) * SIZE + tokens
    m, sh = scale_of(32 * q.x.shape[1])
    target, seen, known = round(0.9 * 65536) * len(q.x), never(pages, q), {}
    for _ in range(2):
        state = (rng.random(pages) < 0.6).astype(np.uint8)
        state[-1] = 1
        names = golden.name_pages(q, s, quota=quota, m=m, sh=sh)
        scored = np.flatnonzero(names.scored).tolist()
        keys = {p: golden.Blocks(*(x[p * SIZE : min(last, p * SIZE + SIZE)] for x in k))
                for p in scored}  # fmt: skip
        want = golden.choose_pages(
            q, names, keys, target=target, most=6, m=m, sh=sh,
            known=golden.Known([p for p in scored if not state[p]], known),
        )  # fmt: skip
        sums, _, _ = considered(q, k, s, pages, tokens, quota, state, seen)
        chosen, wanted = np.zeros((2, pages), bool)
        missing = kernel.choose(sums, state, pages - 1, target, 6, chosen, wanted)
        assert missing == want.missing and set(np.flatnonzero(wanted)) == set(want.wanted)
        assert set(np.flatnonzero(chosen)) | {0} == set(want.pages)
        assert all((seen[page] == masses).all() for page, masses in known.items())


def test_an_absent_page_has_the_golden_estimate():
    _, q, k, s, pages, tokens = case(7)
    assert pages > 4
    state, seen = np.ones(pages, np.uint8), never(pages, q)
    state[2:4] = state[0] = 0
    seen[2] = seen[0] = -20
    sums, true, (candidates, absent) = considered(q, k, s, pages, tokens, pages, state, seen)
    assert candidates == pages - 2 and absent == 2
    m, sh = scale_of(32 * q.x.shape[1])
    bound = golden.bounds(q, s, m, sh)
    e, z = golden.page_masses(
        golden.scores(q, k, m, sh)[:, : pages * SIZE].reshape(len(q.x), pages, SIZE)
    )
    hidden = np.arange(pages * SIZE) >= (pages - 1) * SIZE + tokens
    score = np.where(hidden, SCORE_LEAST, golden.scores(q, k, m, sh))
    e, z = golden.page_masses(score.reshape(len(q.x), pages, SIZE))
    named = np.ones(pages, bool)
    named[[0, -1]] = False
    exact = golden.mass_sums(e, z, named | True, named, np.zeros(len(q.x), np.int64))
    assert (seen[1] == golden.remember(e[:, 1], z[:, 1])).all(), "what is resident is remembered"
    assert (seen[2] == -20).all() and (seen[3] == SEEN_NEVER).all(), "what is absent is not"
    bound[:, 0] = SCORE_LEAST  # of the first page there is none
    for page in (0, 2, 3):
        e[:, page], z[:, page] = golden.recall(seen[page].astype(np.int64), bound[:, page])
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
