# SPDX-License-Identifier: Apache-2.0 WITH SHL-2.1
"""The choice of one KV head compiled: docs/select.md with arithmetic of its own, equal bit for bit
to :mod:`kelp_golden.select`, and beside it the masses with everything resident.

Pages are 0 … newest. ``state`` of a page is 1 where it is resident.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kelp_golden.select import WEIGHTS, Plan
from kelp_spec.formats import ELEMENTS
from kelp_spec.select import (
    ABSENT_MORE,
    ALIGNED_BITS,
    ALIGNED_FRACTION,
    CODE_BITS,
    ESTIMATE_MASS_BITS,
    MASS_BITS,
    NEAR,
    NEAR_PLACES,
    PLANNED_FRACTION,
    RATIO_BITS,
    RECIPROCAL_BITS,
    SCORE_FRACTION,
    SCORE_LEAST,
    SCORE_MOST,
    SHARE_BITS,
)

from ..compiled import njit

__all__ = ["RESIDENT", "Asked", "Head", "Planned", "choose", "consider", "planned"]

RESIDENT = 1  #: `state` of a page that may be read
_CLAMP = (1 << ALIGNED_BITS - 1) - 1
_FRACTION = (1 << SCORE_FRACTION) - 1
_MASS, _ESTIMATE_MASS = (1 << MASS_BITS) - 1, (1 << ESTIMATE_MASS_BITS) - 1
_BYTES = CODE_BITS // 8


class Planned(NamedTuple):
    """A plan, by the bits of a code."""

    low: np.ndarray  #: int64 [lines, 32]: what a code of 0 says of each element, 3 bits behind it
    element: np.ndarray  #: int64 [lines, CODE_BITS]: of each bit; −1: of none
    up: np.ndarray  #: int64 [lines, CODE_BITS]: log2 of what a bit adds to it
    e: np.ndarray  #: int64 [lines]


def planned(plan: Plan) -> Planned:
    """A plan as the compiled choice takes it."""
    lines = len(plan.e)
    lowest = np.where(plan.count > 0, (1 << plan.step) - (1 << plan.step + plan.count), 0)
    element, up = np.full((lines, CODE_BITS), -1), np.zeros((lines, CODE_BITS), np.int64)
    for line in range(lines):
        of = np.repeat(np.arange(ELEMENTS), plan.count[line])[:CODE_BITS]
        first = np.cumsum(plan.count[line]) - plan.count[line]
        element[line, : len(of)] = of
        up[line, : len(of)] = plan.step[line, of] + 1 + np.arange(len(of)) - first[of]
    return Planned((plan.mean << PLANNED_FRACTION + 1) + lowest, element, up, plan.e)


class Head(NamedTuple):
    """What a KV head keeps: keys in block form."""

    x: np.ndarray  #: keys, int8 [tokens, lines, 32]
    e: np.ndarray  #: their exponents [tokens, lines]
    codes: np.ndarray  #: summaries, uint32 [tokens, lines]
    plan: Planned
    state: np.ndarray  #: [pages]


class Asked(NamedTuple):
    """What a SELECT says."""

    newest: int  #: page
    tokens: int  #: of it that count
    size: int  #: tokens of every other page
    quota: int
    m: int
    sh: int


@njit
def _down(x, places):
    return x >> min(places, 62)


@njit
def _aligned(dot, exponent):
    up = exponent - 12 + ALIGNED_FRACTION
    if up >= 0:
        dot = dot << min(up, ALIGNED_BITS)
    else:
        dot = dot >> min(-up, ALIGNED_BITS)
    return min(max(dot, -_CLAMP), _CLAMP)


@njit
def _scaled(raw, m, sh):
    return min(max(raw * m >> sh, SCORE_LEAST), SCORE_MOST)


@njit
def _look_up(qx, qe, plan, base, tables):
    """Of one query: into ``base`` [lines] what a line scores whose code is 0, into ``tables``
    [lines, _BYTES, 256] what each byte of a code adds to it."""
    for line in range(len(qe)):
        exponent = np.int64(qe[line]) + plan.e[line] - PLANNED_FRACTION - 1
        dot = np.int64(0)
        for i in range(qx.shape[1]):
            dot += np.int64(qx[line, i]) * plan.low[line, i]
        base[line] = _aligned(dot, exponent)
        for byte in range(_BYTES):
            tables[line, byte, 0] = 0
            for bit in range(8):
                at, weight = plan.element[line, 8 * byte + bit], np.int64(0)
                if at >= 0:
                    worth = np.int64(qx[line, at]) << plan.up[line, 8 * byte + bit]
                    weight = _aligned(worth, exponent)
                for rest in range(1 << bit):
                    tables[line, byte, (1 << bit) + rest] = tables[line, byte, rest] + weight


@njit
def _token_sum(codes, base, tables):
    """Of a token, from its codes [lines]."""
    raw = np.int64(0)
    for line in range(len(base)):
        code, found = codes[line], base[line]
        for byte in range(_BYTES):
            found += tables[line, byte, code >> 8 * byte & 255]
        raw += min(max(found, -_CLAMP), _CLAMP)
    return raw


@njit
def _score(qx, qe, key, ke, m, sh):
    raw = np.int64(0)
    for line in range(len(qe)):
        dot = np.int64(0)
        for i in range(qx.shape[1]):
            dot += np.int64(qx[line, i]) * np.int64(key[line, i])
        raw += _aligned(dot, np.int64(qe[line]) + ke[line])
    return _scaled(raw, m, sh)


@njit
def _add(e, z, score, most):
    """(e, z) with one weight more; e of −2^40 is nothing yet."""
    n, w = score >> SCORE_FRACTION, WEIGHTS[score & _FRACTION]
    top = max(e, n)
    return top, min(_down(z, top - e) + _down(w, top - n), most)


@njit
def _more(estimate, named):
    """What the pages that no head named add, of one head: UQ8.16."""
    e, z = -(1 << 40), np.int64(0)
    at, inside = -(1 << 40), np.int64(0)
    for page in range(1, len(estimate) - 1):  # the first and the newest page do not count
        e, z = _add(e, z, estimate[page], _ESTIMATE_MASS)
        if named[page]:
            at, inside = _add(at, inside, estimate[page], _ESTIMATE_MASS)
    inside = _down(inside, e - at)
    return min((max(z - inside, 0) << SHARE_BITS) // max(inside, 1), (1 << RATIO_BITS) - 1)


@njit
def _shares(e, z, counted, named, more, sums):
    """Adds each page's share of one head's mass to ``sums``."""
    top = np.int64(SCORE_LEAST >> SCORE_FRACTION)
    for page in range(len(e)):
        if counted[page]:
            top = max(top, e[page])
    whole, inside = np.int64(0), np.int64(0)
    for page in range(len(e)):
        if counted[page]:
            aligned = _down(z[page], top - e[page])
            whole += aligned
            if named[page]:
                inside += aligned
    whole += inside * more >> SHARE_BITS
    reciprocal = (1 << RECIPROCAL_BITS) // max(whole, 1)
    for page in range(len(e)):
        if counted[page]:
            share = _down(z[page], top - e[page]) * reciprocal >> RECIPROCAL_BITS - SHARE_BITS
            sums[page] += min(share, (1 << SHARE_BITS) - 1)


@njit
def consider(qx, qe, head, asked, sums, true):
    """Stage one and two of a KV head: query qx [heads, lines, 32], qe [heads, lines].

    Into ``sums`` [newest + 1] the mass of each page, a sum of shares over heads, those of absent
    pages as their codes tell; into ``true`` the same with everything resident. Returns how many
    candidates there are, how many of them absent, and how many tokens of them are looked at.
    """
    keys, ke, codes, plan, state = head
    newest, tokens, size, quota, m, sh = asked
    heads, pages = len(qx), newest + 1
    estimate = np.full((heads, pages), SCORE_LEAST)
    base = np.empty((heads, ke.shape[1]), np.int64)
    tables = np.empty((heads, ke.shape[1], _BYTES, 256), np.int64)
    named, counted = np.zeros(pages, np.bool_), np.zeros(pages, np.bool_)
    near, best = np.zeros(heads, np.int64), np.empty(newest, np.int64)
    for h in range(heads):
        _look_up(qx[h], qe[h], plan, base[h], tables[h])
        for page in range(newest):
            best[page] = -np.int64(1 << 62)
            for token in range(page * size, page * size + size):
                best[page] = max(best[page], _token_sum(codes[token], base[h], tables[h]))
            estimate[h, page] = _scaled(best[page], m, sh)
        if newest > 1:
            order = np.argsort(-best[1:newest], kind="mergesort")
            for place in order[:quota]:
                named[place + 1] = True
                near[h] = best[place + 1] - (np.int64(NEAR) << sh >> NEAR_PLACES)
    looked, looks = np.ones(pages * size, np.bool_), 0
    for page in range(pages):
        if not named[page]:
            continue
        for token in range(page * size, page * size + size):
            looked[token] = False
            for h in range(heads):
                if _token_sum(codes[token], base[h], tables[h]) >= near[h]:
                    looked[token] = True
            looks += looked[token]
    counted[:] = named
    counted[0] = counted[newest] = True
    sums[:pages] = 0
    true[:pages] = 0
    e, z = np.zeros(pages, np.int64), np.zeros(pages, np.int64)
    exact_e, exact_z = np.zeros(pages, np.int64), np.zeros(pages, np.int64)
    for h in range(heads):
        for page in range(pages):
            if not counted[page]:
                continue
            at, found = -(1 << 40), np.int64(0)
            for token in range(page * size, page * size + (tokens if page == newest else size)):
                if not looked[token]:
                    continue
                score = _score(qx[h], qe[h], keys[token], ke[token], m, sh)
                at, found = _add(at, found, score, _MASS)
            e[page] = exact_e[page] = at
            z[page] = exact_z[page] = found
            if page < newest and state[page] != RESIDENT:
                score = min(estimate[h, page] + ABSENT_MORE, SCORE_MOST)
                e[page], z[page] = score >> SCORE_FRACTION, WEIGHTS[score & _FRACTION]
        more = _more(estimate[h], named)
        _shares(e, z, counted, named, more, sums)
        _shares(exact_e, exact_z, counted, named, more, true)
    candidates, absent = 0, 0
    for page in range(pages):
        if named[page]:
            candidates += 1
            absent += state[page] != RESIDENT
    return candidates, absent, looks


@njit
def choose(sums, state, newest, target, most, chosen, wanted):
    """Into ``chosen`` [pages] bool: the first page where it is resident and the newest, then the
    best of those resident until the sum reaches ``target``, at most ``most``. Into ``wanted``: the
    absent pages that would be among them if they were here. Returns the mass of all pages that are
    scored and absent."""
    pages = newest + 1
    order = np.argsort(-sums[:pages], kind="mergesort")
    missing = np.int64(0)
    chosen[:], wanted[:] = False, False
    chosen[0] = state[0] == RESIDENT
    wanted[0] = not chosen[0] and newest > 0
    missing += sums[0] if wanted[0] else 0
    chosen[newest] = True
    base = sums[0] + (sums[newest] if newest else 0)
    held, taken, all_held, all_taken = base, 0, base, 0
    for page in order:
        if sums[page] <= 0:
            break
        if page == 0 or page == newest:
            continue
        here = state[page] == RESIDENT
        if not here:
            missing += sums[page]
        if all_held < target and all_taken < most:
            all_held += sums[page]
            all_taken += 1
            wanted[page] = not here
        if here and held < target and taken < most:
            held += sums[page]
            taken += 1
            chosen[page] = True
    return missing
